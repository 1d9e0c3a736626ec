"""Writes the operator folder of a user's kernel: the user owns it from then on."""

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from tilewright.workers.intake.calls.call_text import GIVEN
from tilewright.workers.intake.calls.kept_values import FILE, write_renamed
from tilewright.workers.intake.calls.sizes import label_of, size_of
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.operator import LARGE, MOST_SENT, Operand, is_integer

RECIPE = "taken"
SEED = "seed"
CALLS, SMALL = "calls", "small"
CAMPAIGN = "campaign.yaml"
VALUES = -1
"""Place of ``Operand.values`` in an operand's row."""


def written_in(folder: Path, module: str) -> list[str]:
    """Names of the files there that ``tune`` writes; ``module`` is the winner's."""
    names = ("operator.py", f"kernels/{SEED}.py", f"kernels/{SELF}.py", CAMPAIGN, module)
    return [name for name in names if os.path.lexists(folder / name)]


def write_campaign(folder: Path, data: Mapping[str, Any]) -> None:
    """The campaign's file, for ``tilewright run``. Raises OSError."""
    head = "# Written by `tilewright tune`; after a change of the operator: tilewright run campaign.yaml\n"
    operator = {"operator": f"../{folder.resolve().name}/{RECIPE}"}
    put(folder / CAMPAIGN, head + yaml.safe_dump({**operator, **data}, sort_keys=False))


def write(folder: Path, title: str, reference: str, answer: Mapping[str, Any], values: str = "") -> None:
    """``operator.py`` and ``kernels/seed.py``; where the kernel is its own reference, what it was; the caller's own
    ``values``. Raises OSError."""
    kernels = folder / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    if any(row[VALUES] for row in answer["operands"]):
        labels = [label_of(dims) for dims in answer["dims"]]
        write_renamed(Path(values), folder / FILE, labels, [row[0] for row in answer["operands"]])
    put(kernels / f"{SEED}.py", str(answer["source"]))
    own = kernels.resolve() / f"{SELF}.py"
    if reference == SELF or answer.get("rest"):
        chip = f"CHIP = {answer['chip']!r}\n" if "chip" in answer else ""
        put(own, f"{answer['source']}{chip}")
    if reference == SELF:
        reference = f"{SELF}:{own}"
    elif answer.get("rest"):
        answer = {**answer, "rest": (f"{SELF}:{own}", *answer["rest"])}
    put(folder / "operator.py", operator_text(folder, title, reference, answer))


def put(path: Path, text: str) -> None:
    """Write a file as a whole. Raises OSError."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def operator_text(folder: Path, title: str, reference: str, answer: Mapping[str, Any]) -> str:
    """The text of ``operator.py``."""
    sampled = _can_be_sampled(answer) and any(_elements(answer, dims) > LARGE for dims in answer["dims"])
    kind = "SampledOperator" if sampled else "TakenOperator"
    operands = "".join(f"        {_operand(o)},\n" for o in answer["operands"])
    results = "".join(f"        {_result(r)},\n" for r in answer["results"])
    check = "".join(f"    {_workload(dims)},\n" for dims in answer["check"])
    small = [n for n, dims in enumerate(answer["check"]) if dims in answer.get("small", answer["check"])]
    few = "CHECK" if len(small) == len(answer["check"]) else f"tuple(CHECK[n] for n in {tuple(small)})"
    calls = "".join(f"    {_workload(dims)},\n" for dims in answer["dims"])
    beside = f"    beside=frozenset({sorted(answer['beside'])!r}),\n" if answer.get("beside") else ""
    beside += f"    moved={answer['moved']!r},\n" if answer.get("moved") else ""
    if answer.get("rest"):
        own, *others = answer["rest"]
        beside += f"    rest=({_place(folder, own)}, {', '.join(map(repr, others))}),\n"
    for key in ("left_out", "lost_tables"):
        beside += f"    {key}={tuple(answer[key])!r},\n" if answer.get(key) else ""
    each = "**{call.id: Suite(call.id, workloads=(call,), check=CHECK) for call in CALLS},\n    "
    points = ", points=POINTS" if answer.get("points") else ""
    kept = f'VALUES = str(HERE / "{FILE}")\n' if ", values=VALUES" in operands else ""
    judge = reference.rpartition("/")[2]
    return f'''"""{title}, compared with {judge}. Written by `tilewright tune`; edit it as you like.

The reference computes floats in {answer["precision"] or "their own dtype"}. Tolerances follow from the data types
and are widened by the original kernel's measured error.
"""

from pathlib import Path

from tilewright.seeds.operator import SeedKernel, Suite, Workload
from tilewright.workers.intake.operator import Operand, Result, {kind}

HERE = Path(__file__).resolve().parent
KERNELS = HERE / "kernels"
{kept}CHECK = (
{check})
CALLS = (
{calls})
{_points(answer)}
OPERATOR = {kind}(
    name="{folder.name}/{RECIPE}",
    reference={_place(folder, reference)},
    call={_text(answer["call"])},
    precision={_text(answer["precision"])},
    operands=(
{operands}    ),
    results=(
{results}    ),
    independent={tuple(answer["independent"])!r},
    kinds={tuple(answer["kinds"])!r},
    spread={answer["spread"]},
    work={ {k: v for k, v in answer["work"].items() if v}!r},
{beside}    suites={{
        "{CALLS}": Suite("{CALLS}", workloads=CALLS, check=CHECK),
        "{SMALL}": Suite("{SMALL}", workloads={few}, check=CHECK),
    {each if len(answer["dims"]) > 1 else ""}}},
    kernels={{"{SEED}": SeedKernel("{SEED}", (KERNELS / "{SEED}.py").read_text(){points})}},
)


def operators():
    return {{"{RECIPE}": OPERATOR}}
'''


def _place(folder: Path, reference: str) -> str:
    """The text of a reference; a file below the folder's own parent is named from ``HERE``: both may be copied."""
    kind, slash, place = reference.partition("/")
    file, colon, name = place.partition(":")
    root = folder.resolve().parent
    if not slash or not (path := Path(f"/{file}")).is_relative_to(root) or {"'", "\\", "{"} & {*file}:
        return _text(reference)
    return f'''f"{kind}{{(HERE / {os.path.relpath(path, folder.resolve())!r}).resolve()}}{colon}{name}"'''


def _points(answer: Mapping[str, Any]) -> str:
    """What a campaign tries first, as the text of a constant."""
    if not answer.get("points"):
        return ""
    rows = "".join(f"    {dict(point)!r},\n" for point in answer["points"]).replace("'", '"')
    return f"POINTS = (  # the configurations of the file's own tuner\n{rows})\n"


def _can_be_sampled(answer: Mapping[str, Any]) -> bool:
    """Whether operands may come from tables, value by value, or be sent: large ones with a form or a total may not."""
    operands = [Operand(row[0], row[1], tuple(row[2]), *row[3:]) for row in answer["operands"]]
    formed = [o for o in operands if o.form or o.total]
    largest = (math.prod(o.sizes(dims)) for o in formed for dims in answer["dims"])
    if any(o.form == GIVEN or not is_integer(o) for o in formed) or max(largest, default=0) > MOST_SENT:
        return False
    return bool(answer["independent"]) or "def launch(" in str(answer["source"])


def _elements(answer: Mapping[str, Any], dims: Mapping[str, int]) -> int:
    shapes = [o[2] for o in answer["operands"]] + [r[2] for r in answer["results"]]
    return sum(math.prod(size_of(n, dims) for n in shape) for shape in shapes)


def _operand(row: Any) -> str:
    operand = Operand(row[0], row[1], tuple(row[2]), *row[3:])
    given = {f.name: getattr(operand, f.name) for f in fields(Operand)[3:]}
    keywords = {f.name: repr(given[f.name]) for f in fields(Operand)[3:] if given[f.name] != f.default}
    keywords |= {"values": "VALUES"} if operand.values else {}
    bound = "".join(f", {name}={text}" for name, text in keywords.items())
    return f"Operand({_text(operand.name)}, {_text(operand.dtype)}, {operand.shape!r}{bound})".replace("'", '"')


def _result(row: Any) -> str:
    name, dtype, shape, min_db, worst, place, leans = row
    bounds = f", min_db={min_db}" + (f", worst={worst:.3g}" if worst is not None else "") if min_db else ""
    at = (f", place={place}" if place else "") + (f", leans={leans:.2g}" if leans else "")
    return f"Result({_text(name)}, {_text(dtype)}, {tuple(shape)!r}{bounds}{at})".replace("'", '"')


def _workload(dims: Mapping[str, int]) -> str:
    return f"Workload({_text(label_of(dims))}, {dict(dims)!r})".replace("'", '"')


def _text(value: str) -> str:
    return repr(value) if '"' in value else f'"{value}"'
