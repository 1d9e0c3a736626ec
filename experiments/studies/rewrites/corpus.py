"""Run every rewrite rule over the corpus of kernels and tabulate what comes out, per rule.

    python -m experiments.studies.rewrites.corpus [--write docs/rewrites.md] [--only pallas/name.py ...]

Counted per rule: proposals, how many parse and pass the dialect, how many agree with their parent in the
interpreter (40 dB, no device; Triton 3.x interpreter or Pallas interpret mode), and the slowest proposal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from testkit.rewriting import Case, Trial, load_cases, propose_all, run_checks
from tilewright.evolve.proposers.rewrite.base import Language, Rule
from tilewright.evolve.proposers.rewrite.registry import rules

ABOUT = """\
A reference; [this page](write_a_rewrite_rule.md) says how to write one.

**Which rule comes next** is learned within a campaign (`evolve/proposers/rule_credit.py`): a rule earns by its
children's gain over their own parents, per evaluation; credit fades by 5 % with every rewrite, and a fifth of all
draws ignores it. Rules that only turn a knob of the launch are presumed to be worth less. With probability 1/4
another rewrite goes on top of the last, up to three. A rule is applied once at a site of a source, and a child that
only differs in layout, comments or declarations from a known genome is never evaluated, one that compiles to a
known artefact never measured.

**What a rule cannot follow** (a source that does not parse, a `grid_spec`, a kernel made by a call, ...) yields no
proposal and one line in `campaign.log` beside the journal, naming the construct.

**`triton_lower_to_gluon`** writes a tiled product in Gluon for Hopper. *It keeps*: which programs there are in effect
(each new program computes `consumers` x `pieces` tiles of the old one, those past the end repeat the last), the
order of the steps of K and of the additions of one element, every statement that the result needs, word for word but
for the language's name. Loads that stand behind the product move in front of it; loads of the operands become copies,
whose rows and columns outside the tensor are zero; the store of the tile becomes a copy through shared memory. What
stands behind the loop and acts on each column alone is done for `parts` of the columns in turn. The old kernel stays
and serves tensors whose rows do not begin at 16 bytes, which no descriptor describes; no rule changes it any more.
*Tiles whose rows begin anywhere*, such as those of a group of tokens, are lowered where the grid's two axes number
tiles of rows and of columns: the groups of warps share the rows of one tile; rows past a limit that the loads' and
all stores' masks name are multiplied and not stored, and a tile that is all past it has no steps. *Weights in
sheets* (`[groups, K, N]`) are one matrix where the host finds them contiguous and K a multiple of a step. *It
refuses*: more than one loop with one `dot`; operands that are computed, padded with something other than zero, or
masked by more than the sides of the launch's tensors or such a limit; tiles that begin anywhere on another grid;
rows past a limit that are stored or mixed with others; loops over K whose bounds or places depend on the tile;
results that depend on the program's number; atomics, early returns, `while`, stores before the last step; names of
the language that Gluon has not. *It decides by parameters*: `consumers`, `pieces`, `stages`, `walk_rows`, `programs`,
`slots` and `parts` (columns of a tile are stored in so many parts through so many slots), `producer_registers`,
`in_flight` (products that add in place) or `pin` (sums kept where they stand), `ahead` (other loads of a step are made
while the product before runs; off at first) and `ring` (a number for each row in each step, such as a scale, comes by
bulk copy with the operands, where its rows begin at 16 bytes and nothing behind the product mixes rows), beside the
tile sizes of the source. As many stages are made as shared memory holds.

**`triton_compute_operand_once`** moves what computes an operand of a `dot` (codes that are unpacked, scaled, cast) into
a kernel of its own, which writes the operand's tiles to memory; the product loads them, and can be lowered then.
*It keeps*: every statement of the operand, with what its masks put past the ends, tile by tile. *It refuses*: operands
that depend on the other tile, on the program's number or on what the loop carries; types that no `.to(...)` says;
loops that do not step through K from 0; bounds that the host does not know; products in a loop over tiles.

**`triton_rows_per_program`** makes a program of a row kernel compute `rows` neighbouring rows along one axis of the
grid. *It keeps*: the operations on each row, in their order; programs past the last row repeat it. *It refuses*:
values of two axes, branches and loop bounds that depend on the row, early returns, atomics, scans, integers that a
loop carries, and a tensor that is read and written.

**On tpu7x (modelled)** a kernel that `emit_pipeline` wrote takes as long as the grid's own pipeline
([table](../experiments/records/tpu/transfers.md)). `deep_pipeline` is `emit_pipeline` with two to four buffers of
each input. It *refuses* inputs whose number of buffers the launch sets, and block specifications that an output
shares.

**For attention in Pallas.** `unroll_grid_axis` walks the fastest grid axis in a Python loop in the step, so the order
of all steps stays; its program id becomes a number, and conditions on it are decided while tracing. It *refuses* axes
whose steps differ by the first and the last alone, extents that do not divide (`cdiv`), blocks that move with
anything but the plain axis, aliased outputs.
`skip_masked_tiles` reads a mask that compares sums of positions and offsets: where the least or the largest
difference over a tile hides the whole tile, the step is left out; where only the device knows the offsets, by a
conditional block. A step is left out only if all it leaves behind comes from
maxima and exponentials of the masked scores; a row that no tile shows at all may then differ. `normalise_once` keeps
U of a running U / l, and *refuses* an average that is looked at before it is finished. `base_two_softmax` multiplies
scores by log2(e), and *refuses* where they or their maxima are used but for comparisons and in exponentials of a
difference. `narrow_exponent` and `row_sums_in_dot` round to bfloat16: the gates decide
whether the error is small enough."""


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
        "(no device; Gluon in the emulator, which also finds races and deadlocks), it agrees with its parent to 40 dB "
        "or better.",
        "",
        *ABOUT.splitlines(),
        "",
    ]
    total, legal, right = len(trials), sum(not t.dialect for t in trials), sum(bool(t.ok) for t in trials)
    run = sum(not t.dialect for t in trials)
    slowest = max((t.seconds for t in trials), default=0.0)
    lines += [
        f"**All rules: {total} proposals, {100 * legal / max(1, total):.1f} % pass the dialect, "
        f"{right} of the {run} that pass it agree with their parent "
        f"({100 * right / max(1, run):.1f} %); slowest proposal {slowest:.2f} s (host CPU).**",
        "",
        "| rule | kernels | proposals | dialect | agrees | why it can help |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule in _all_rules():
        mine = [t for t in trials if t.rule == rule.name]
        share = [f"{sum(f(t) for t in mine)}" for f in (lambda t: not t.dialect, lambda t: bool(t.ok))]
        kernels = len({t.kernel for t in mine})
        agrees = f"{share[1]}/{sum(not t.dialect for t in mine)}"
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
