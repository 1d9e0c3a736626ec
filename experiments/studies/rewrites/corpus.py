"""Run every rewrite rule over the corpus of kernels and tabulate what comes out, per rule.

    python -m experiments.studies.rewrites.corpus [--write docs/rewrites.md] [--only pallas/name.py ...]

Counted per rule: proposals, how many parse and pass the dialect, how many agree with their parent in the
interpreter (40 dB, no device; Triton 3.x interpreter or Pallas interpret mode), and the slowest proposal.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from testkit.rewriting import Case, Trial, load_cases, propose_all, run_checks
from tilewright.evolve.proposers.rewrite.base import Language, Rule
from tilewright.evolve.proposers.rewrite.registry import rules

ABOUT = """\
[Write a rewrite rule](write_a_rewrite_rule.md) says how to add one.

**Choice of a rule.** Each campaign learns which rules pay (`evolve/proposers/rule_credit.py`). A rule earns
the gain of its children over their parents, per evaluation. Credit fades by 5 % with every rewrite, and a
fifth of all draws ignores it. Rules that only set a launch option begin with less credit. With probability
1/4 another rewrite follows on top of the last, up to three. A rule runs once at each site of a source. A
child that differs from a known genome only in layout, comments or declarations is not evaluated; a child that
compiles to a known artefact is not measured.

**Unsupported sources** (a source that does not parse, a `grid_spec`, a kernel made by a call) yield no
proposal and one line in `campaign.log` beside the journal, which names the construct.

## triton_lower_to_gluon

The rule writes a tiled Triton product in Gluon for Hopper.

* **It keeps** the work of each old program (a new program computes `consumers` × `pieces` old tiles; those
  past the end repeat the last), the order of the steps of K and of the additions of one element, and every
  statement that the result needs. Loads behind the product move in front of it. Loads of operands become
  copies with zeros outside the tensor. The store of the tile becomes a copy through shared memory. The old
  kernel stays, for tensors whose rows do not begin at multiples of 16 bytes.
* **It lowers more.** Tiles whose rows begin anywhere, such as those of a group of tokens, if the grid's two
  axes number row tiles and column tiles. Weights in sheets (`[groups, K, N]`), if they are contiguous and K
  is a multiple of a step.
* **It refuses** more than one loop with one `dot`; operands that are computed, padded with a value other than
  zero, or masked by more than the tensor's sides or one limit; other grids for tiles that begin anywhere;
  rows past a limit that are stored or mixed with others; loops over K that depend on the tile; results that
  depend on the program's number; atomics, early returns, `while`, stores before the last step; names that
  Gluon lacks.
* **Its parameters** are the source's tile sizes and:

| parameter | sets |
| --- | --- |
| `consumers`, `pieces` | groups of warps that multiply, and tiles of each |
| `stages` | stages of the ring; as many as shared memory holds |
| `walk_rows`, `programs` | order of tiles, number of programs |
| `slots`, `parts` | a tile is stored in `parts` through `slots` |
| `producer_registers` | registers of the warp that copies |
| `in_flight` or `pin` | products that add in place, or sums that stay in their registers |
| `ring` | bring one number for each row and step, such as a scale, with the operands |

## triton_lower_chain_to_gluon

The rule writes a loop of two products, the second of what is made of the first (attention), in Gluon for Hopper.

* **It keeps** the work of each old program (a new one computes `consumers` of them side by side), the order of
  steps and every statement. A statement that only a mask changes runs without it where the mask hides nothing in
  the whole tile: such steps come first, in a loop of their own. In `exp(x * factor - y)`, where `y`
  is the row's largest score and the host knows that the factor is above zero, and in `exp(y - z)` of two such rows,
  the unscaled difference is taken first and multiplied by the factor; a sum over a row's number becomes its product
  with the inverse. The old kernel stays for tensors that no descriptor describes and factors below zero.
* **It lowers** causal and full attention, shared heads of keys, windows, caps and biases; pointers and block pointers
  that a loop advances, descriptors that the kernel makes, transposed keys; a left operand that is scaled or cast before
  the loop; several such loops one after the other, also in helpers that return a tuple of names; grids of two or three
  axes, and of one whose programs are read as `p % n` and `p // n` alone.
* **It refuses** keys or values behind descriptors that the host makes, masked by a number that only the device knows
  (sequences of several lengths) or by more than sides; grids whose programs share no keys along one axis, or that the
  kernel counts; sums that are not stored as a tile of a tensor; loops that read the second product's sums; atomics,
  early returns, `while`. So it refuses the backward loops, which have more than two products.
* **Its parameters**:

| parameter | sets |
| --- | --- |
| `rows`, `columns` | rows of a group of warps, keys of a step |
| `consumers`, `stages` | groups of warps (0: three if the registers suffice, else two), stages of the ring |
| `overlap` | the first product beside the second of the step before, if the registers have room for both |
| `laps` | heads in use at a time: as many as have tiles for so many laps of all programs |

## triton_compute_operand_once

The rule moves the computation of a `dot`'s operand (codes that are unpacked, scaled, cast) into a kernel of
its own, which writes the operand to memory. The product then loads it and can be lowered.

* **It keeps** every statement of the operand, with what its masks put past the ends.
* **It refuses** operands that depend on the other tile, on the program's number or on what the loop carries;
  types without a `.to(...)`; loops that do not step through K from 0; bounds that the host does not know;
  products in a loop over tiles.

## Pallas: attention

* `unroll_grid_axis` turns the fastest grid axis into a Python loop inside the step. The order of steps stays,
  and conditions on the program id are decided while tracing. It refuses axes of which only the first and the
  last step differ, extents that do not divide (`cdiv`), blocks that move with more than the plain axis, and
  aliased outputs.
* `skip_masked_tiles` reads a mask that compares sums of positions and offsets. It leaves out a step whose
  whole tile is masked; if only the device knows the offsets, by a conditional block. It does so only if
  everything the step leaves behind comes from maxima and exponentials of the masked scores. A row that no
  tile shows may differ.
* `normalise_once` keeps U of a running U / l. It refuses an average that is read before it is complete.
* `base_two_softmax` multiplies scores by log2(e). It refuses scores or maxima that are used other than in
  comparisons and in exponentials of a difference.
* `row_sums_in_dot` rounds to bfloat16. The gates decide whether the error is small enough.

## All rules"""


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
        *ABOUT.splitlines(),
        "",
    ]
    total, legal, right = len(trials), sum(not t.dialect for t in trials), sum(bool(t.ok) for t in trials)
    run = sum(not t.dialect for t in trials)
    slowest = max((t.seconds for t in trials), default=0.0)
    lines += [
        f"Each rule was applied once at each site of the {len(cases)} kernels in `testkit/corpus`. *dialect*: "
        "children that pass the dialect check. *agrees*: children that agree with their parent to 40 dB or better, "
        "in an interpreter on small inputs (Gluon in the emulator, which also finds races and deadlocks).",
        "",
        f"**{total} proposals, {100 * legal / max(1, total):.1f} % pass the dialect, "
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
