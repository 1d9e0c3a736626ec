"""The operator of a user's function: candidates are compared with a reference written for clarity, not for speed.

``operator.py`` in the folder that ``tilewright tune`` writes makes one. The reference runs in float64, or in float32 if
it cannot. Of a large shape only a sample of the answer is compared: the reference gets a part of the axes that it
treats element by element. If that is still much work, a process of its own runs it on the device
(``workers.device.oracle``).
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import math
import pickle
import textwrap
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.seeds import sampled
from tilewright.seeds.operator import (
    AgreementGate,
    Arrays,
    BitExactGate,
    Gate,
    SeedKernel,
    SnrGate,
    Suite,
    TensorSpec,
    Workload,
)
from tilewright.seeds.sampled import TABLE, TABLE_KINDS, WINDOW, Elements, Sample, normal_table, spread_picks
from tilewright.workers.intake.calls.call_text import OFFSETS, PARTS
from tilewright.workers.intake.calls.dtypes import is_float, is_narrow, numpy_dtype
from tilewright.workers.intake.calls.kept_values import kept_value
from tilewright.workers.intake.calls.sizes import label_of, size_of
from tilewright.workers.intake.judge.inputs import (
    EXTREME,
    LARGEST_CODES,
    ROWS,
    SPECIAL,
    bound_of,
    draws,
    least_of,
    within,
)
from tilewright.workers.intake.judge.reference import function_of, run_reference

BESIDE = ("in float32, above", "in float32, below")
"""Names of the reference's codes in float32 on inputs that are changed by less than ``NEAR``, and by as much the other
way: of a value beside a tie they are both neighbours, between which a division by reciprocals may decide otherwise."""

NEAR, EXACT = 2.0**-20, np.frexp(LARGEST_CODES)[0]
"""Rows whose largest value is a power of two times one of ``EXACT`` have exact scales, and their ties are ties."""

KINDS = ("randn", "spread", "repeated")
_BORNE: Mapping[str, frozenset[str]] = {
    "signed": frozenset(["sided", "shifted", "usual", *ROWS["signed"]]),
    "repeated": frozenset(["repeated", "sided", "shifted", "usual"]),
    "outliers": frozenset(["far", "spread", "apart"]),
    "zeros": frozenset(["far", "spread"]),
    **{name: frozenset(f"{name}-{power}" for power in powers) for name, powers in EXTREME.items()},
}
"""By kind of tables, the kinds of small inputs: a kernel that passes one of them is given such tables. A kind that is
not listed needs the small inputs of its own name."""

SAMPLED = 48
"""Indices along each independent axis at which a large answer is compared."""

LOOKED = 1 << 18
"""Elements of one large result that are compared, about; axes that the reference needs whole are thinned to that."""

HEAVY_ELEMENTS, HEAVY_WORK = 1 << 22, 1 << 31
"""Elements of operands, and FLOP of products, above which the device computes a sample's answer."""

PRODUCT_OPERATIONS = 16
"""FLOP of products for each byte moved, below which memory bounds the operator."""

LEAST_CODES = 0.995
"""Share of codes (fp8, or a quantiser's integers) that must equal the reference's: another order of sums changes
roundings."""

LEAN = 2.0**-3
"""Mean error in one direction that 16-bit floats may have, in last places; truncation makes one half."""

MOST_KNOWN, MOST_SENT = 1 << 12, 1 << 18
"""Most elements of an integer operand that a modelled time may depend on, and that is sent to a device."""

LARGE = 1 << 20
"""Elements of operands above which the device makes them and the answer is sampled."""


@dataclass(frozen=True)
class Operand:
    """An argument of the user's function: a tensor, and how inputs for it are drawn (``judge.inputs.draws``)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    """Sizes, or texts over the call's dimensions."""
    below: int | str = 0
    """Exclusive bound of integers, a number or a dimension; 0: the call names none."""
    total: int | str = 0
    """Sum of the integers, likewise, as of group sizes."""
    size: float = 1.0
    """Standard deviation of floats."""
    form: str = ""
    """"offsets": where parts begin, from 0 to ``total``, at most ``longest`` apart. "distinct": no two are equal.
    "softmax": rows add up to 1. "given": the caller's own values alone."""
    longest: int = 0
    edge: str = ""
    """An extraordinary value: ``-inf``; the label that is ignored; ``rows`` of bools that are all equal; ``none`` for
    parts of a total of very different sizes, some of them empty."""
    least: float | None = None
    most: float | None = None
    """Bounds of the values; floats with a ``least`` alone lie on its side."""
    values: str = ""
    """File of the caller's own values (``calls.kept_values``)."""

    def sizes(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(size_of(n, dims) for n in self.shape)


def operand_row(operand: Operand) -> list[Any]:
    """An operand as JSON: its fields in their order."""
    row = [getattr(operand, field.name) for field in dataclasses.fields(operand)]
    return [list(value) if isinstance(value, tuple) else value for value in row]


SMALLER = 1 / 8
"""Standard deviation of floats without a bound in the call, if the kernel's answers to normal values are not finite: a
recurrence over hundreds of steps, or an inverse, outgrows its type."""


def with_smaller(operands: Sequence[Operand]) -> tuple[list[Operand], str]:
    """The operands with such floats at ``SMALLER``, and a note for the user; the note is empty if there are none."""
    usual = [o.name for o in operands if is_float(o.dtype) and o.size == 1.0 and o.least is None and not o.form]
    made = [dataclasses.replace(o, size=SMALLER) if o.name in usual else o for o in operands]
    if not usual:
        return made, ""
    return (made, f"drawn times {SMALLER}, as the kernel's answers to larger ones are no numbers: {', '.join(usual)}")


@dataclass(frozen=True)
class Result:
    """An output and its bounds: ``min_db`` and ``worst`` as in ``SnrGate`` for floats; integers are exact."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    min_db: float = 0.0
    worst: float | None = None
    place: int = 0
    """Its index among the reference's results."""
    leans: float = 0.0
    """Of codes: the share that may differ in one direction, as the kernel's own division makes them; 0: none. Of 16-bit
    floats: the allowed mean error in one direction, in last places, if more than ``LEAN``."""

    def sizes(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(size_of(n, dims) for n in self.shape)


def known_values(operands: Sequence[Operand], dims: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Values of small int32 operands, drawn as for a call: a modelled time may depend on them."""
    return drawn_integers([o for o in operands if o.dtype == "int32"], dims, MOST_KNOWN)


def drawn_integers(
    operands: Sequence[Operand], dims: Mapping[str, int], most: int, order: int | None = None
) -> dict[str, np.ndarray]:
    """The operands of integers with at most so many elements, drawn as for a call.

    Each ``order`` has the same values at other places, parts of a total cut in another order, and operands of one size
    alike: so all are the same work. The caller's own values stay where they are."""
    whole = [o for o in operands if is_integer(o) and math.prod(o.sizes(dims)) <= most]
    found = draws(whole, dims, "randn", 0, np.random.default_rng(len(whole)))
    if order is None:
        return found
    for operand in whole:
        values = found[operand.name]
        if (
            operand.values
            and kept_value(operand.values, label_of(dims), operand.name, operand.dtype, values.shape) is not None
        ):
            continue
        flat = np.diff(values, prepend=values.dtype.type(0)) if operand.form in PARTS else values.reshape(-1)
        first = int(operand.form == OFFSETS)
        flat[first:] = np.random.default_rng([order, flat.size - first]).permutation(flat[first:])
        found[operand.name] = (
            np.cumsum(flat, dtype=values.dtype) if operand.form in PARTS else flat.reshape(values.shape)
        )
    return found


def is_integer(operand: Operand) -> bool:
    """Whether its elements are counts, indices or codes."""
    return operand.dtype != "bool" and not is_float(operand.dtype)


@dataclass(frozen=True)
class TakenOperator:
    """The operator of a user's function; see ``seeds.operator.Operator`` for the fields that are not told here.

    ``reference``: the place of the reference, such as ``FILE:name``. ``call``: its arguments as Python text over the
    operands' names. ``precision``: the dtype it computes in. ``independent``: dimensions along which it treats elements
    one by one. ``kinds``: kinds of inputs, with sizes apart by 2^±``spread`` (``judge.inputs.draws``).
    """

    name: str
    reference: str
    call: str
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    precision: str = "float64"
    independent: tuple[str, ...] = ()
    work: Mapping[str, int] = field(default_factory=dict)
    """FLOP of matrix products by workload id, as torch counts them in the reference."""

    moved: Mapping[str, int] = field(default_factory=dict)
    """Compulsory bytes by workload id, if integers decide which part of an operand is read."""

    kinds: tuple[str, ...] = KINDS
    spread: int = 4
    constants: Mapping[str, int] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()
    """See ``seeds.operator.BesideKernels``."""

    rest: tuple[str, ...] = ()
    """(reference, call, precision) for results that ``reference`` does not compute: those of the original kernel."""

    left_out: tuple[str, ...] = ()
    """Sentences on what the original does and a candidate cannot, such as assertions on values."""

    lost_tables: tuple[str, ...] = ()
    """Kinds of tables that are not drawn, since the original's own sums lose too much on them."""

    @property
    def input_kinds(self) -> tuple[str, ...]:
        return self.kinds

    @property
    def answered_apart(self) -> bool:
        """Whether other processes compute the answers: those of a kernel that is its own reference."""
        return self.reference.startswith("itself:")

    @property
    def contract(self) -> str:
        """See ``seeds.operator.HasContract``."""
        return contract_of(self)

    @property
    def memory_bound(self) -> bool:
        """Whether GB/s rank it: unless products do many FLOP for each byte, which a short convolution does not."""
        shapes = [w for suite in self.suites.values() for w in (*suite.workloads, *suite.check)]
        return not any(self.work.get(w.id, 0) > PRODUCT_OPERATIONS * self.bytes(w) for w in shapes)

    @property
    def gates(self) -> tuple[Gate, ...]:
        found: list[Gate] = []
        for result in self.results:
            if is_narrow(result.dtype) or is_code(result.dtype, self.operands):
                least, leans = max(LEAST_CODES, 1 - (result.leans or 1)), bool(result.leans)
                either = BESIDE if self.precision == "float64" else ()
                gate = AgreementGate(result.name, result.name, (result.name,), least, leans=leans, either=either)
                found.append(gate)
            elif is_float(result.dtype):
                bounds = (result.min_db, result.worst)
                lean = max(LEAN, result.leans) if result.dtype in ("bfloat16", "float16") else None
                # a recipe that rounds within gives zeros where few distinct values nearly cancel
                found.append(SnrGate(result.name, result.name, *bounds, zero=result.worst, lean=lean))
            else:
                found.append(BitExactGate(result.name, result.name, (result.name,)))
        return tuple(found)

    def inputs(self, workload: Workload, variant: str | None = None) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(o.name, o.sizes(workload.dims), o.dtype) for o in self.operands)

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(r.name, r.sizes(workload.dims), r.dtype) for r in self.results)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        key = zlib.crc32(f"{workload.id}/{kind}".encode())
        rng = np.random.default_rng([seed, key])
        return draws(self.operands, workload.dims, kind, self.spread, rng, seed + workload.turn)

    def known(self, workload: Workload) -> Arrays:
        """See ``seeds.operator.KnownOperands``: lengths, group sizes and tables as one call has them."""
        return known_values(self.operands, workload.dims)

    def oracle(self, workload: Workload, inputs: Mapping[str, Any]) -> dict[str, Arrays]:
        """Of a device's tensors the reference's answers are computed there."""
        return self._references(inputs)

    def _references(
        self, inputs: Mapping[str, Any], at: Mapping[str, Sequence[np.ndarray]] | None = None
    ) -> dict[str, Arrays]:
        """References by name: one for each result, and codes beside ties as ``BESIDE``."""
        found = {name: {name: answer} for name, answer in self.answers(inputs, at).items()}
        if codes := [g.reference for g in self.gates if isinstance(g, AgreementGate) and g.either]:
            narrow = dataclasses.replace(self, precision="float32")
            for way, name in zip((NEAR, -NEAR), BESIDE, strict=True):
                near = narrow.answers({n: _changed(a, way) for n, a in inputs.items()}, at)
                found[name] = {name: near[name] for name in codes}
        return found

    def answers(self, inputs: Mapping[str, Any], at: Mapping[str, Sequence[np.ndarray]] | None = None) -> Arrays:
        """The reference's results by name, float64 or in the result's own bits; ``at``: at these indices alone."""
        places = {r.place: at[r.name] for r in self.results} if at else None
        values = run_reference(function_of(self.reference), self.call, inputs, self.precision, places)
        if self.rest:
            own, call, precision = self.rest
            values += run_reference(function_of(own), call, inputs, precision, places)[len(values) :]
        return {r.name: as_result(values[r.place], r.dtype) for r in self.results}

    def elsewhere(self, workload: Workload) -> Mapping[str, Any] | None:
        """See ``seeds.sampled.Heavy``: this operator and its shape."""
        dims, sampled = workload.dims, self.independent if isinstance(self, SampledOperator) else ()
        kept = {n: min(size, SAMPLED) if n in sampled else size for n, size in dims.items()}
        elements = sum(math.prod(o.sizes(kept)) for o in self.operands)
        share = math.prod(kept[n] / dims[n] for n in dims)
        light = elements <= HEAVY_ELEMENTS and self.work.get(workload.id, 0) * share <= HEAVY_WORK
        if self.rest or (light and not self.answered_apart):  # what is interpreted is never soon done
            return None
        plain = pickle.dumps(dataclasses.replace(self, kernels={}))
        where = {"workload": workload.id, "dims": dict(workload.dims), "turn": workload.turn}
        return {"operator": base64.b64encode(plain).decode(), **where}

    def flops(self, workload: Workload) -> int:
        """``work``, or one operation for each element written if that is more."""
        return max(self.work.get(workload.id, 0), sum(math.prod(r.sizes(workload.dims)) for r in self.results))

    def products(self, workload: Workload) -> int:
        """FLOP for matrix units: 0 if the reference multiplies no matrices."""
        return self.work.get(workload.id, self.flops(workload)) if any(self.work.values()) else 0

    def bytes(self, workload: Workload) -> int:
        specs = (*self.inputs(workload), *self.outputs(workload))
        every = sum(math.prod(s.shape) * np.dtype(numpy_dtype(s.dtype)).itemsize for s in specs)
        return self.moved.get(workload.id, every)


@dataclass(frozen=True)
class SampledOperator(TakenOperator):
    """The same with large shapes: the device makes the operands, and a sample of the answer is compared."""

    def tables(self) -> Mapping[str, np.ndarray]:
        made = {}
        for operand in self.operands:
            if operand.dtype == "bool":
                made[operand.name] = np.arange(TABLE) % 2 > 0
            elif is_float(operand.dtype):
                plain = dataclasses.replace(operand, size=1.0)
                values = within(plain, normal_table(operand.size))
                made[operand.name] = values.astype(numpy_dtype(operand.dtype))
        return made

    def sent(self, workload: Workload, seed: int) -> Arrays:
        """See ``seeds.sampled.SentOperands``: the integers, as the sizes of the shape bound them."""
        order = zlib.crc32(f"{seed}/{workload.id}".encode())
        made = drawn_integers(self.operands, workload.dims, MOST_SENT, order)
        for operand in (o for o in self.operands if is_integer(o) and o.name not in made):
            low, high = least_of(operand), bound_of(operand, workload.dims)
            spread = low + np.arange(TABLE) * (high - low) // TABLE
            made[operand.name] = spread.astype(numpy_dtype(operand.dtype))
        return made

    @property
    def table_kinds(self) -> tuple[str, ...]:
        """See ``seeds.sampled.TableKinds``."""
        kept = (k for k in TABLE_KINDS if k not in self.lost_tables and self._keeps_ends(k))
        return tuple(k for k in kept if _BORNE.get(k, frozenset([k])) & set(self.kinds))

    def _keeps_ends(self, kind: str) -> bool:
        """Whether floats that lie between two ends do so in tables of a kind."""
        bounded = [o.name for o in self.operands if o.least is not None and is_float(o.dtype)]
        plain = self.tables() if bounded else {}
        made = sampled.kind_tables(plain, kind)
        ends = [[(t[n].min(), t[n].max()) for t in (plain, made)] for n in bounded]
        return all(least <= low and high <= most for (least, most), (low, high) in ends)

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``elements`` may be those of a device: then the reference runs there."""
        dims = workload.dims
        # along the axes that the reference treats by themselves, the first place and the last among them
        sizes = {name: workload.dims[name] for name in self.independent}
        picks = {n: np.unique([0, *spread_picks(s, SAMPLED, rng), s - 1]) for n, s in sizes.items()}

        def axes(shape: Sequence[int | str]) -> list[np.ndarray]:
            return [picks[n] if n in picks else np.arange(size_of(n, dims)) for n in shape]

        where, at = {}, {}
        for result in self.results:
            given = axes(result.shape)
            at[result.name] = thinned_places([len(a) for a in given], [n in picks for n in result.shape], rng)
            where[result.name] = [axis[kept] for axis, kept in zip(given, at[result.name], strict=True)]
        inputs = {o.name: elements.at(o.name, *axes(o.shape)) for o in self.operands}
        return Sample(where, self._references(inputs, at))


def thinned_places(
    sizes: Sequence[int], picked: Sequence[bool], rng: np.random.Generator, most: int = LOOKED
) -> list[np.ndarray]:
    """Indices along axes of these sizes that cross in about ``most`` elements, or all indices if there are no more.

    Axes that are ``picked`` already stay whole; each of the others keeps its last indices and runs of neighbours.
    """
    free = [n for n, done in enumerate(picked) if not done and sizes[n] > 1]
    over = math.prod(sizes) / most
    near = min(WINDOW, max(4, int(most ** (1.0 / max(1, len(free))) / 4)))
    kept = [np.arange(size) for size in sizes]
    for place, axis in enumerate(sorted(free, key=lambda n: sizes[n])):
        if over <= 1.0:
            break
        factor = over ** (1.0 / (len(free) - place))
        count, run = max(near, math.ceil(sizes[axis] / factor)), near
        if count + run >= sizes[axis]:
            continue
        starts = spread_picks(sizes[axis] - run, max(1, count // run - 1), rng)
        kept[axis] = np.unique(np.concatenate([np.arange(s, s + run) for s in (*starts, sizes[axis] - run)]))
        over /= sizes[axis] / len(kept[axis])
    return kept


def _changed(values: Any, most: float) -> Any:
    """Floats (an array, or a tensor of a device) with each changed by a share of its own below ``most``, but where
    scales are exact."""
    import torch

    wide = values if isinstance(values, torch.Tensor) else None
    if wide is None and is_float(values.dtype.name):
        wide = torch.from_numpy(values.astype(np.float32))
    if wide is None or not (wide.is_floating_point() and wide.ndim and wide.numel()):
        return values
    wide = wide.float()
    share = torch.arange(wide.numel(), device=wide.device).mul(40503).remainder(1 << 16).reshape(wide.shape)
    exact = sum(torch.frexp(wide.abs().amax(-1, keepdim=True)).mantissa == float(e) for e in EXACT)
    near = torch.where(exact > 0, wide, wide * (1 + most * (share / (1 << 15) - 1)))
    return near if isinstance(values, torch.Tensor) else near.numpy()


def as_result(value: np.ndarray, dtype: str) -> np.ndarray:
    """A reference's result as its gate compares it: float64, codes, or integers of ``dtype``."""
    if is_narrow(dtype):
        return value.astype(numpy_dtype(dtype)) if value.dtype.kind == "f" else value
    return value.astype(np.float64) if is_float(dtype) else value.astype(numpy_dtype(dtype))


def is_code(dtype: str, operands: Sequence[Operand]) -> bool:
    """Whether an integer result is rounded from floats, such as a quantiser's codes, which may differ at ties."""
    return dtype in ("int8", "uint8") and any(is_float(o.dtype) for o in operands)


# -- the contract: text for the author of a kernel -------------------------------------------------------


def contract_of(operator: TakenOperator) -> str:
    """Text for the author of a kernel: operands, results, and the reference's source if a file holds it."""
    lines = [
        "``launch(inputs, params)`` is given these tensors by name: " + _tensors(operator.operands) + ".",
        "It returns a tuple of " + _tensors(operator.results) + ".",
    ]
    unspecified = [kind for kind in SPECIAL if not set(ROWS[kind]) & set(operator.kinds)]
    unspecified += ["infinite in whole rows"] if "infinite" in operator.kinds else []
    if unspecified:
        lines.append(f"What it returns for inputs that are {' or '.join(unspecified)} is unspecified.")
    path, colon, name = operator.reference.rpartition(":")
    if not colon or path == "itself" or operator.reference.startswith("itself:"):
        what = "the seed kernel" if operator.reference.startswith("itself:") else operator.reference
        return "\n".join([*lines, f"It must compute what {what} does, called with ({operator.call})."])
    lines.append(f"It must compute what this reference does, called as {name}({operator.call}):")
    return "\n".join([*lines, "", textwrap.indent(_source_of(Path(path), name.partition(".")[0]), "    ")])


def _tensors(tensors: Iterable[Operand | Result]) -> str:
    return ", ".join(f"{t.name} {t.dtype}[{', '.join(map(str, t.shape))}]" for t in tensors)


def _source_of(path: Path, name: str) -> str:
    """The text of a function or class in a file; its name if the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        nodes = ast.parse(text).body
    except (OSError, ValueError, SyntaxError):
        return name
    named = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name]
    return (named and ast.get_source_segment(text, named[-1])) or name
