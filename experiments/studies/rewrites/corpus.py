"""Run every rewrite rule over the corpus of kernels and tabulate what comes out, per rule.

    python -m experiments.studies.rewrites.corpus [--write docs/rewrites.md] [--only pallas/name.py ...]

Counted per rule: proposals, how many parse and pass the dialect, how many agree with their parent in the
interpreter (40 dB, no device; Triton 3.x interpreter or Pallas interpret mode), and the slowest proposal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from testkit import CORPUS
from tilewright.evolve.proposers.rewrite.base import Language, Rule
from tilewright.evolve.proposers.rewrite.proposer import offers, rewrite
from tilewright.evolve.proposers.rewrite.registry import rules
from tilewright.fitness.dialect import check as dialect_check

CHECKER = Path(__file__).with_name("check.py")
JOBS_PER_PROCESS = 60
FAST_COMPILES = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Every kernel runs once, on small inputs: compiling it for the host is what takes the time."""

ABOUT = """\
**Which rule comes next** is learned within a campaign (`evolve/proposers/rule_credit.py`): a rule earns by its
children's gain over their own parents, per evaluation; credit fades by 5 % with every rewrite, and a fifth of all
draws ignores it. Rules that only turn a knob of the launch are presumed to be worth less. With probability 1/4
another rewrite goes on top of the last, up to three. A rule is applied once at a site of a source, and a child that
only differs in layout, comments or declarations from a known genome is never evaluated, one that compiles to a
known artefact never measured.

**What a rule cannot follow** (a source that does not parse, a `grid_spec`, a kernel made by a call, ...) yields no
proposal and one line in `campaign.log` beside the journal, naming the construct.

**On tpu7x (modelled)** the explicit transfers (`manual_copy`, `double_buffered_copy`, `emit_pipeline`) compile,
pass the gates and are simulated, but on the fused FP8 product they are slower than the grid's own pipeline ([a
recorded campaign](../experiments/records/rewrites/rewrite_g512.md), 1024x2048x4096): from the naive kernel's 19.6 us, a
pipeline inside the kernel reads 34.0 us and a double-buffered copy of the weights 33.2 us. A table of scalars in
VMEM does not compile there when it is indexed along lanes; `scalar_input_in_smem` makes it legal."""


@dataclass
class Trial:
    """One proposal: where it came from, and what became of it."""

    kernel: str
    rule: str
    site: str
    source: str = ""
    params: dict = field(default_factory=dict)
    dialect: str = ""
    ok: bool | None = None
    reason: str = ""
    seconds: float = 0.0

    @property
    def runnable(self) -> bool:
        """Gluon has no interpreter: its children are held to the dialect only."""
        return not self.kernel.startswith("gluon")


@dataclass(frozen=True)
class Case:
    """A corpus kernel and the inputs it is run on."""

    name: str
    source: str
    params: dict
    inputs: list

    @property
    def language(self) -> str:
        return self.name.split("/")[0]


def load_cases(only: Sequence[str] = ()) -> list[Case]:
    table = json.loads((CORPUS / "cases.json").read_text())
    cases = []
    for name, entry in table.items():
        if only and not any(part in name for part in only):
            continue
        cases.append(Case(name, (CORPUS / name).read_text(), entry["params"], entry["inputs"]))
    return cases


def inherited(case: Case, params: Mapping) -> dict:
    """The child's parameters, with the case's values where both have one: inputs fit those."""
    return {name: case.params.get(name, value) for name, value in params.items()}


def propose_all(case: Case) -> list[Trial]:
    """Every (rule, site) of a kernel applied once."""
    trials = []
    entry = "build" if case.language == "pallas" else "launch"
    for rule, site in offers(case.source):
        began = time.process_time()
        proposal = rewrite(case.source, case.params, rule, site, np.random.default_rng(0))
        trial = Trial(case.name, rule.name, site.key, seconds=time.process_time() - began)
        if proposal is None:
            continue
        trial.source, trial.params = proposal.source, inherited(case, proposal.params)
        violations = dialect_check(proposal.source, entry=entry)
        trial.dialect = str(violations[0]) if violations else ""
        trials.append(trial)
    return trials


def run_checks(cases: Iterable[Case], trials: Sequence[Trial]) -> None:
    """Run the trials in interpreters, many per process, and note the outcome in each."""
    by_name = {c.name: c for c in cases}
    groups: dict[str, list[int]] = defaultdict(list)
    for number, trial in enumerate(trials):
        if not trial.dialect and trial.runnable:
            groups["pallas" if trial.kernel.startswith("pallas") else "triton"].append(number)
    for language, numbers in groups.items():
        for start in range(0, len(numbers), JOBS_PER_PROCESS):
            _run_batch(language, numbers[start : start + JOBS_PER_PROCESS], trials, by_name)


def _run_batch(
    language: str, numbers: Sequence[int], trials: Sequence[Trial], by_name: dict[str, Case]
) -> None:
    left = list(numbers)
    while left:
        done = _run_process(language, left, trials, by_name)
        if not done:
            trials[left[0]].ok, trials[left[0]].reason = False, "the interpreter died"
            done = {left[0]}
        left = [n for n in left if n not in done]


def _run_process(
    language: str, numbers: Sequence[int], trials: Sequence[Trial], by_name: dict[str, Case]
) -> set[int]:
    jobs = []
    for number in numbers:
        trial, case = trials[number], by_name[trials[number].kernel]
        jobs.append(
            {
                "id": number,
                "parent": case.source,
                "parent_params": case.params,
                "source": trial.source,
                "params": trial.params,
                "inputs": case.inputs,
            }
        )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TRITON_INTERPRET": "1", "XLA_FLAGS": FAST_COMPILES}
    result = subprocess.run(
        [sys.executable, str(CHECKER)],
        input=json.dumps({"language": language, "jobs": jobs}),
        capture_output=True,
        text=True,
        env=environment,
        timeout=2400,
        check=False,
    )
    done = set()
    for line in result.stdout.splitlines():
        if line.startswith("{"):
            answer = json.loads(line)
            trial = trials[answer["id"]]
            trial.ok, trial.reason = answer["ok"], answer["reason"]
            done.add(answer["id"])
    return done


def _all_rules() -> list[Rule]:
    found: dict[str, Rule] = {}
    for language in Language:
        for rule in rules(language):
            found.setdefault(rule.name, rule)
    return list(found.values())


def table(cases: Sequence[Case], trials: Sequence[Trial]) -> str:
    """The Markdown page."""
    lines = [
        "# Rewrite rules",
        "",
        "Generated by `python -m experiments.studies.rewrites.corpus --write docs/rewrites.md`; do not edit.",
        "",
        f"Corpus: {len(cases)} kernels in `testkit/corpus`, written for the tests in several styles. Every rule is "
        "applied once at every site it offers.",
        "*dialect*: the child parses and passes the dialect check. *agrees*: run in an interpreter on small inputs "
        "(no device), it agrees with its parent to 40 dB or better. Interpreters cannot run every construct a device "
        "can, so *agrees* is a lower bound.",
        "",
        *ABOUT.splitlines(),
        "",
    ]
    total, legal, right = len(trials), sum(not t.dialect for t in trials), sum(bool(t.ok) for t in trials)
    run = sum(t.runnable for t in trials)
    slowest = max((t.seconds for t in trials), default=0.0)
    lines += [
        f"**All rules: {total} proposals, {100 * legal / max(1, total):.1f} % pass the dialect, "
        f"{right} of the {run} that an interpreter can run agree with their parent "
        f"({100 * right / max(1, run):.1f} %); slowest proposal {slowest:.2f} s (host CPU).**",
        "",
        "| rule | kernels | proposals | dialect | agrees | why it can help |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule in _all_rules():
        mine = [t for t in trials if t.rule == rule.name]
        share = [f"{sum(f(t) for t in mine)}" for f in (lambda t: not t.dialect, lambda t: bool(t.ok))]
        kernels = len({t.kernel for t in mine})
        agrees = f"{share[1]}/{sum(t.runnable for t in mine)}"
        lines.append(f"| `{rule.name}` | {kernels} | {len(mine)} | {share[0]} | {agrees} | {rule.why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--no-run", action="store_true", help="check the dialect only")
    options = parser.parse_args()
    cases = load_cases(options.only)
    trials = [t for case in cases for t in propose_all(case)]
    if not options.no_run:
        run_checks(cases, trials)
    for trial in trials:
        if trial.dialect or trial.ok is False:
            sys.stderr.write(f"{trial.kernel} {trial.rule} {trial.site}: {trial.dialect or trial.reason}\n")
    page = table(cases, trials)
    if options.write:
        options.write.write_text(page)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
