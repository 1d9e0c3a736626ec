"""The screen that ``check`` and ``tune`` show before a campaign: arguments, results, judge, parameters, space."""

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tilewright.fitness.dialect import is_cuda
from tilewright.fitness.original import is_original
from tilewright.fitness.targets import Target
from tilewright.workers.intake.calls.call_text import SHORT
from tilewright.workers.intake.judge.self_reference import SELF


def lines(answer: Mapping[str, Any], reference: str, target: str) -> Iterator[str]:
    """A line for each thing: arguments, results, knobs, meaning, checks, space, notes."""
    from tilewright.workers.intake.calls.dtypes import is_narrow
    from tilewright.workers.intake.operator import LEAST_CODES, Operand, is_code

    dims = answer["dims"]
    for row in answer["operands"]:
        yield f"  argument   {row[0]} {_shape(row, dims[0])}"
    for name, dtype, shape, min_db, worst, *_ in answer["results"]:
        coded = is_narrow(dtype) or is_code(dtype, [Operand(o[0], o[1], ()) for o in answer["operands"]])
        few = f"{LEAST_CODES:.1%} of its codes are equal, the others are off by one"
        bound = f"at least {min_db:g} dB" if min_db else few if coded else "exact"
        single = f", no element off by more than {worst:.2g} of the values around it" if worst else ""
        yield f"  result     {name} {_shape((name, dtype, shape), dims[0])}: {bound}{single}"
    precision = answer["precision"] or "its own precision"
    if reference == SELF:
        yield f"  judge      the original kernel, in {precision}: its own mistakes are not found without --reference"
    else:
        yield f"  judge      {reference.rpartition('/')[2]}({answer['call']}) in {precision}"
    sources = {k["name"]: k["source"] for k in answer["knobs"]}
    for name, values in answer["space"].items():
        shown = " ".join(map(str, values))
        yield f"  knob       {name} = {answer['defaults'][name]}, values {shown} ({sources[name]})"
    for held, why in (answer.get("constraints") or {}).items():
        yield f"  together   {held}: {why}"
    for row in answer["fixed"]:
        yield f"  fixed      {row['name']} = {row['value']}: {row['why']}"
    checked = ", ".join("x".join(str(n) for n in shape.values()) for shape in answer["check"])
    yield f"  checked    small shapes {checked}, with inputs {', '.join(answer['kinds'])}"
    yield from _space(answer)
    for line in answer.get("left_out", ()):
        yield f"  left out   {line}"
    yield f"  gradients  {gradients(answer)}"
    for note in answer["notes"]:
        yield f"  note       {note}"
    yield f"  target     {target}"
    way = "by tilewright promote, once a device or a time model has judged it"
    no = "no: the function runs as it stands; use the module that tune writes"
    yield f"  promoted   {no if is_original(answer['source']) else way}"


def gradients(answer: Mapping[str, Any]) -> str:
    """Which gradients a winner serves, or why none."""
    pair = (answer.get("wrapper") or {}).get("pair")
    if pair:
        names = ", ".join(pair["gradients"])
        return (
            f"forward and backward are taken together: gradients of {names}, judged and timed with the outputs; "
            "a gradient of a gradient is an error"
        )
    if "def launch(" not in str(answer["source"]):  # Pallas
        return "the winner has the derivatives of the original, if that has any"
    why = f" ({answer['no_backward']})" if answer.get("no_backward") else ""
    return f"a call that needs one goes to the original: no backward was taken in{why}"


COLUMNS = 80
_INDENT = 13


def screen(answer: Mapping[str, Any], reference: str, target: str) -> Iterator[str]:
    """``lines``, each folded at 80 columns below its own beginning."""
    yield from _folded(lines(answer, reference, target))


def rewrites(answer: Mapping[str, Any], target: Target) -> Iterator[str]:
    """Rules of rewriting that find a place in the kernel, which takes a second to say."""
    yield from _folded(_rewrites(answer["source"], target))


def _folded(texts: Iterable[str]) -> Iterator[str]:
    for line in texts:
        yield from textwrap.wrap(
            line, COLUMNS, subsequent_indent=" " * _INDENT, break_long_words=False, break_on_hyphens=False
        )


def interpreter_line(answer: Mapping[str, Any]) -> str:
    """The shapes that the interpreter runs, in place of those of the calls."""
    ran, asked = (
        ", ".join("x".join(str(n) for n in shape.values()) for shape in shapes)
        for shapes in (answer.get("small", answer["check"]), answer["dims"])
    )
    return f"  runs at    {ran}, not {asked}: the interpreter is slow, its times mean nothing, and the seed wins"


def _space(answer: Mapping[str, Any]) -> Iterator[str]:
    """Points of the space, and how many of them each shape takes, with the values it does not."""
    space = answer["space"]
    points = math.prod(len(v) for v in space.values())
    legal = answer.get("legal") or {}
    lost = []
    for shape, valid_values in legal.items():
        refused = {n: [v for v in space[n] if v not in valid_values[n]] for n in space}
        if any(refused.values()):
            left = math.prod(len(v) for v in valid_values.values())
            text = ", ".join(f"{n} {' '.join(map(str, v))}" for n, v in refused.items() if v)
            lost.append(f"  space      at most {left} of them are valid at {shape}, which excludes {text}")
    timed, checked = len(answer["dims"]), len(answer["check"])
    end = "" if lost else f", all valid at the {timed} timed and {checked} checked shapes"
    yield f"  space      {points} points{end}"
    yield from lost


def _rewrites(source: str, target: Target) -> Iterator[str]:
    from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported
    from tilewright.evolve.proposers.rewrite.gluon.chain.write import LowerChain
    from tilewright.evolve.proposers.rewrite.gluon.lower import LowerProduct
    from tilewright.evolve.proposers.rewrite.registry import absent_rules, openings, rules

    if is_original(source) or is_cuda(source):
        yield "  rewrites   none: the function runs as it stands, only its parameters are tuned"
        return
    kernel, applied, refused = KernelSource(source), [], dict[str, Unsupported]()
    absent = absent_rules(target)
    every = [rule for rule in rules(kernel.language) if rule.name not in absent]
    for rule in every:
        try:
            places = rule.sites(kernel)
            for place in places if rule.name in openings() else ():
                rule.apply(kernel, place, np.random.default_rng(0))
            applied += [f"{rule.name} ({len(places)})"] if places else []
        except Unsupported as error:
            refused[rule.name] = error
    wanted = LowerChain.name if source.count(".dot(") > 1 else LowerProduct.name
    if ".dot(" in source and wanted in absent:
        yield f"  schedule   the kernel's own: {wanted} writes Hopper's wgmma, which {target.name} lacks"
    if ".dot(" in source and wanted in refused and not openings() & {a.partition(" ")[0] for a in applied}:
        yield f"  schedule   the kernel's own: {wanted} finds {refused[wanted]}"
    shown = ", ".join(applied) or "none"
    yield f"  rewrites   {len(applied)} of {len(every)} rules apply (number of places): {shown}"


def _shape(row: Any, dims: Mapping[str, int]) -> str:
    sizes = [f"{n}={dims[n]}" if isinstance(n, str) and n in dims else str(n) for n in row[2]]
    return f"{SHORT.get(row[1], row[1])}[{', '.join(sizes)}]"
