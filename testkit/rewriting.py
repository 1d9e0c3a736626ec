"""Rewrite rules on the corpus: every proposal, and whether it computes what its parent does."""

import functools
import json
import os
import subprocess
import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from testkit import CORPUS, ROOT
from tilewright.evolve.proposers.rewrite.base import KernelSource, Rule, Unsupported
from tilewright.evolve.proposers.rewrite.proposer import offers, rewrite
from tilewright.fitness.dialect import check as dialect_check

CHECKER = Path(__file__).with_name("rewrite_check.py")
FAST_COMPILES = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Every kernel runs once, on small inputs: compiling it for the host is what takes the time."""


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
        cases.append(Case(name, _source(name, entry), entry["params"], entry["inputs"]))
    return cases


def _source(name: str, entry: Mapping) -> str:
    """The text of a kernel in the corpus, or of a seed kernel with some words replaced."""
    if "seed" not in entry:
        return (CORPUS / name).read_text()
    text = (ROOT / "seeds" / entry["seed"]).read_text()
    for old, new in entry["with"].items():
        text = text.replace(old, new)
    return text


def inherited(case: Case, params: Mapping) -> dict:
    """The child's parameters, with the case's values where both have one: inputs fit those."""
    return {name: case.params.get(name, value) for name, value in params.items()}


@functools.cache
def rewritten(rule: type[Rule], source: str) -> str:
    """A source after a rule on the one place that it finds there. Raises Unsupported."""
    made, kernel = rule(), KernelSource(source)
    (site,) = made.sites(kernel)
    child = made.apply(kernel, site, np.random.default_rng(0))
    assert child is not None
    return child.source


@functools.cache
def refusal(rule: type[Rule], source: str) -> str:
    """Why a rule leaves a source; "" where it does not."""
    try:
        rewritten(rule, source)
    except Unsupported as error:
        return str(error)
    return ""


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
        if not trial.dialect:
            groups["pallas" if trial.kernel.startswith("pallas") else "triton"].append(number)
    for language, left in groups.items():
        while left:
            jobs = [_job(number, trials[number], by_name[trials[number].kernel]) for number in left]
            done = {answer["id"]: answer for answer in _checker(language).ask(jobs)}
            for number, answer in (done or {left[0]: {"ok": False, "reason": "the interpreter died"}}).items():
                trials[number].ok, trials[number].reason = answer["ok"], answer["reason"]
            left = [number for number in left if trials[number].ok is None]


def _job(number: int, trial: Trial, case: Case) -> dict:
    child = {"id": number, "source": trial.source, "params": trial.params, "inputs": case.inputs}
    return {**child, "parent": case.source, "parent_params": case.params}


class _Checker:
    """The child of one language, kept from task to task, since its imports take seconds; made anew once it has died."""

    def __init__(self, language: str) -> None:
        self._language = language
        self._process: subprocess.Popen[str] | None = None

    def ask(self, jobs: Sequence[dict]) -> Iterator[dict]:
        """Answers to one task; fewer than jobs where the child died."""
        if self._process is None or self._process.poll() is not None:
            environment = {"JAX_PLATFORMS": "cpu", "TRITON_INTERPRET": "1", "XLA_FLAGS": FAST_COMPILES}
            self._process = subprocess.Popen(
                [sys.executable, str(CHECKER), self._language],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **environment},
            )
            weakref.finalize(self, _end, self._process)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(jobs) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line == "end\n":
                return
            if line.startswith("{"):
                yield json.loads(line)
        process.wait()
        self._process = None


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate()


_checker = functools.cache(_Checker)
