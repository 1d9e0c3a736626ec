"""The plan of a launch: its parts, their limits, and the bytes they travel and are kept as.

A ``Plan`` that exists is sound: it is checked in full when it is made, whoever made it. What is sound may still compute
nonsense, which is for gates to find, but what the *host* does with it stays within bounds: sizes, grids, every address
it forms, every byte of a parameter block.

Bytes: magic ``TWPLAN01``, length of the header (u32, little endian), header (canonical JSON), the codes one after the
other, SHA-256 of all of it. The digest finds damage; against malice there are the checks, and whoever must know that a
plan is the one that was verified compares ``Plan.digest`` with a digest kept elsewhere.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .cubin import CubinError, Parameter, read_cubin

MAGIC = b"TWPLAN01"
VERSION = 1

DTYPE_BYTES: Mapping[str, int] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
}
"""Dtypes of operands and results, by torch's and numpy's names."""

MAP_DTYPE_BITS: Mapping[int, int] = {
    0: 8,
    1: 16,
    2: 32,
    3: 32,
    4: 64,
    5: 64,
    6: 16,
    7: 32,
    8: 64,
    9: 16,
    10: 32,
    11: 32,
    12: 32,
    13: 4,
    14: 4,
    15: 6,
}
"""Bits of an element in memory, by ``CUtensorMapDataType``."""

MOST_PLAN_BYTES = 64 << 20
MOST_HEADER_BYTES = 4 << 20
MOST_ALLOCATED = 1 << 40
"""Bytes of all buffers together; a device runs out of memory earlier."""

MOST_TENSORS, MOST_STEPS, MOST_CODES, MOST_DIMS = 256, 1024, 256, 16
MOST_GRID = (2**31 - 1, 65535, 65535)
MOST_THREADS = 1024
MOST_SHARED = 256 << 10
CLUSTERS = (1, 2, 3, 4, 6, 8, 16)
MAP_BYTES = 128
ALIGNMENT = 16
"""Of the first byte of every tensor: kernels are compiled for addresses that are multiples of it."""

_NUMBERS = {
    "i1": "b",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u1": "B",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "fp16": "e",
    "fp32": "f",
    "f32": "f",
    "fp64": "d",
}
"""Kinds of numbers in a kernel's signature to the ``struct`` format of their bytes."""

KINDS = (*_NUMBERS, "bf16")

_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_SYMBOL = re.compile(r"[A-Za-z_$][\w$]{0,1023}", re.ASCII)
_DIGEST_BYTES = 32


class PlanError(ValueError):
    """A plan that is not sound, or bytes that are none. The message is one line."""


class NotRecorded(RuntimeError):
    """A launch that is no plan: the message says what it does that a plan cannot hold, and what to do instead."""


@dataclass(frozen=True)
class Tensor:
    """A contiguous operand: shape in elements, dtype by name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Output(Tensor):
    """A contiguous result, which lies ``offset`` bytes into a buffer."""

    buffer: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Pointer:
    """The address ``offset`` bytes into a slot. Slots are the inputs in order, then the buffers in order."""

    slot: int
    offset: int


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor: ``dtype`` and ``swizzle`` as the driver numbers them, dimensions outermost first.

    ``strides`` in bytes, without the innermost dimension's; ``shape`` and ``box`` in elements. What lies outside of the
    shape reads as NaN with ``fill_nan``, else as zero.
    """

    slot: int
    offset: int
    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    fill_nan: bool


@dataclass(frozen=True)
class Scalar:
    """A number by its bits: the ``size`` bytes of the unsigned integer ``bits``, little endian."""

    size: int
    bits: int


def scalar(kind: str, value: Any) -> Scalar:
    """A number as the kernel's signature wants it. Raises NotRecorded."""
    try:
        packed = struct.pack("<f", value)[2:] if kind == "bf16" else struct.pack("<" + _NUMBERS[kind], value)
    except (KeyError, struct.error, OverflowError, TypeError) as error:
        raise NotRecorded(f"an argument of type {kind} cannot hold what launch passes: {error}") from error
    return Scalar(len(packed), int.from_bytes(packed, "little"))


Argument = Pointer | TensorMap | Scalar


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``grid`` counts clusters along x and CTAs along y and z; a cluster has ``cluster`` CTAs.

    ``code`` is the number of the binary. ``programmatic``: it may begin before the plan's launch before it has ended;
    the first one before what was queued before, where its kernel waits for that and who replays the plan allows it.
    ``block``: threads along x, y and z, where they are no row of ``32 * warps``; empty otherwise, and then no part of
    a plan's bytes.
    """

    code: int
    symbol: str
    grid: tuple[int, int, int]
    warps: int
    shared: int
    arguments: tuple[Argument, ...]
    cluster: int = 1
    cooperative: bool = False
    programmatic: bool = False
    block: tuple[int, ...] = ()

    @property
    def threads(self) -> tuple[int, int, int]:
        """Of a block, along x, y and z."""
        x, y, z = self.block or (32 * self.warps, 1, 1)
        return x, y, z


@dataclass(frozen=True)
class Fill:
    """``bytes`` bytes from ``offset`` in a slot become copies of ``pattern``, a number of ``width`` bytes."""

    slot: int
    offset: int
    bytes: int
    pattern: int
    width: int


Step = Launch | Fill


@dataclass(frozen=True)
class Plan:
    """Steps of one call on a device, in order: ``steps`` over inputs that are brought and buffers of these sizes.

    ``toolchain`` tells versions, for people. Raises PlanError.
    """

    architecture: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Output, ...]
    buffers: tuple[int, ...]
    steps: tuple[Step, ...]
    codes: tuple[bytes, ...]
    toolchain: Mapping[str, str] = field(default_factory=dict)
    backend: str = "cuda"

    def __post_init__(self) -> None:
        _Check(self).everything()

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernels' launches, in order."""
        return tuple(step for step in self.steps if isinstance(step, Launch))

    def slot_bytes(self, slot: int) -> int:
        """Size of an input or a buffer."""
        count = len(self.inputs)
        return self.inputs[slot].bytes if slot < count else self.buffers[slot - count]

    def role(self, slot: int) -> str:
        """What a slot is: ``input x``, ``output y`` or ``scratch 2``."""
        if slot < len(self.inputs):
            return f"input {self.inputs[slot].name}"
        buffer = slot - len(self.inputs)
        names = [o.name for o in self.outputs if o.buffer == buffer]
        return f"output {', '.join(names)}" if names else f"scratch {buffer}"

    def with_rows(self, slot: int, rows: int) -> Plan:
        """The same plan for an input that holds only the first ``rows`` rows; the others read as zeros.

        Only the copy engine may read the input: its tensor maps then end at ``rows``, and the hardware fills in what
        lies beyond. Raises PlanError where a kernel takes the input's address, or a map is not over its rows.
        """
        tensor = self.inputs[slot]
        whole = tensor.shape[0]

        def shorter(argument: Argument) -> Argument:
            if isinstance(argument, Scalar) or argument.slot != slot:
                return argument
            if isinstance(argument, Pointer) or argument.fill_nan or argument.shape[0] != whole or argument.offset:
                raise PlanError(f"input {tensor.name} is read otherwise than by rows through the copy engine")
            return dataclasses.replace(argument, shape=(rows, *argument.shape[1:]))

        _require(_whole(rows, 1, whole), f"input {tensor.name} has {whole} rows, not {rows}")
        steps = tuple(
            dataclasses.replace(step, arguments=tuple(shorter(a) for a in step.arguments))
            if isinstance(step, Launch)
            else step
            for step in self.steps
        )
        held = dataclasses.replace(tensor, shape=(rows, *tensor.shape[1:]))
        return dataclasses.replace(self, inputs=(*self.inputs[:slot], held, *self.inputs[slot + 1 :]), steps=steps)

    @cached_property
    def digest(self) -> str:
        """Identity of what is launched, 64 hex digits; the toolchain's versions are no part of it."""
        return hashlib.sha256(self._packed({})).hexdigest()

    def to_bytes(self) -> bytes:
        """The same plan always gives the same bytes."""
        body = self._packed(self.toolchain)
        return body + hashlib.sha256(body).digest()

    def _packed(self, toolchain: Mapping[str, str]) -> bytes:
        header = {
            "version": VERSION,
            "backend": self.backend,
            "architecture": self.architecture,
            "toolchain": dict(toolchain),
            "inputs": [dataclasses.asdict(tensor) for tensor in self.inputs],
            "outputs": [dataclasses.asdict(tensor) for tensor in self.outputs],
            "buffers": list(self.buffers),
            "steps": [_step_data(step) for step in self.steps],
            "codes": [len(code) for code in self.codes],
        }
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        return b"".join((MAGIC, struct.pack("<I", len(text)), text, *self.codes))

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Read and check. Raises PlanError."""
        start = len(MAGIC) + 4
        if len(data) > MOST_PLAN_BYTES:
            raise PlanError(f"a plan of {len(data)} bytes is over the limit of {MOST_PLAN_BYTES}")
        if len(data) < start + _DIGEST_BYTES or not data.startswith(MAGIC):
            raise PlanError("these bytes are no launch plan")
        body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            raise PlanError("the plan is damaged: its checksum is another")
        (size,) = struct.unpack_from("<I", data, len(MAGIC))
        if size > MOST_HEADER_BYTES or start + size > len(body):
            raise PlanError("the plan's header is longer than the plan")
        try:
            header = json.loads(body[start : start + size])
            return _plan(header, body[start + size :])
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"the plan's header is malformed: {type(error).__name__}") from None


_KINDS = {"pointer": Pointer, "map": TensorMap, "scalar": Scalar, "launch": Launch, "fill": Fill}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def _step_data(step: Step) -> dict[str, Any]:
    data = {"kind": _NAMES[type(step)], **dataclasses.asdict(step)}
    if isinstance(step, Launch):
        data["arguments"] = [{"kind": _NAMES[type(a)], **dataclasses.asdict(a)} for a in step.arguments]
        if not step.block:  # plans of an earlier version of this format are the same bytes
            del data["block"]
    return data


def _plan(header: dict[str, Any], codes: bytes) -> Plan:
    if header.pop("version") != VERSION:
        raise PlanError(f"the plan is of another version of the format than {VERSION}")
    sizes, start, cut = header.pop("codes"), 0, []
    for size in sizes:
        if type(size) is not int or not 0 < size <= len(codes) - start:
            raise PlanError("the plan's codes are shorter than its header says")
        cut.append(codes[start : start + size])
        start += size
    if start != len(codes):
        raise PlanError("the plan's codes are longer than its header says")
    steps = []
    for data in header.pop("steps"):
        kind = data.pop("kind")
        if kind == "launch":
            data["arguments"] = tuple(_made(_KINDS[a.pop("kind")], a) for a in data["arguments"])
        steps.append(_made(_KINDS[kind], data))
    return Plan(
        inputs=tuple(_made(Tensor, data) for data in header.pop("inputs")),
        outputs=tuple(_made(Output, data) for data in header.pop("outputs")),
        buffers=tuple(header.pop("buffers")),
        steps=tuple(steps),
        codes=tuple(cut),
        **header,
    )


def _made(kind: Any, data: dict[str, Any]) -> Any:
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})


class _Check:
    """Every demand on a plan. Raises PlanError at the first that is not met."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kernels: list[dict[str, tuple[Parameter, ...]]] = []
        self._blocks: list[dict[str, int]] = []

    def everything(self) -> None:
        plan = self._plan
        _require(plan.backend == "cuda", "the plan is for another backend than cuda")
        _require(_whole(plan.architecture, 50, 200), "the plan is for no known architecture")
        _require(isinstance(plan.toolchain, Mapping), "the plan's toolchain is no table")
        for name, version in plan.toolchain.items():
            _require(_short(name) and _short(version), "the plan's toolchain is no table of short texts")
        for group, most in (
            (plan.inputs, MOST_TENSORS),
            (plan.outputs, MOST_TENSORS),
            (plan.buffers, MOST_TENSORS),
            (plan.steps, MOST_STEPS),
            (plan.codes, MOST_CODES),
        ):
            _require(isinstance(group, tuple) and len(group) <= most, f"the plan has more than {most} parts of a kind")
        self._tensors()
        self._read_codes()
        for step in plan.steps:
            if isinstance(step, Launch):
                self._launch(step)
            elif isinstance(step, Fill):
                self._fill(step)
            else:
                raise PlanError("the plan has a step that is neither launch nor fill")

    def _tensors(self) -> None:
        plan = self._plan
        for size in plan.buffers:
            _require(_whole(size, 0, MOST_ALLOCATED), "a buffer's size is no size")
        _require(sum(plan.buffers) <= MOST_ALLOCATED, "the plan's buffers are too large")
        for tensor in (*plan.inputs, *plan.outputs):
            _require(isinstance(tensor, Tensor), "the plan has a tensor that is none")
            _require(_text_of(tensor.name, _NAME), "a tensor's name is none")
            _require(isinstance(tensor.dtype, str) and tensor.dtype in DTYPE_BYTES, f"{tensor.name}: unknown dtype")
            fits = isinstance(tensor.shape, tuple) and len(tensor.shape) <= MOST_DIMS
            _require(fits and all(_whole(n, 0, MOST_ALLOCATED) for n in tensor.shape), f"{tensor.name}: no shape")
            _require(tensor.bytes <= MOST_ALLOCATED, f"{tensor.name} is too large")
        for kind in (plan.inputs, plan.outputs):
            _require(len({t.name for t in kind}) == len(kind), "two of the plan's tensors have one name")
        ends: dict[int, list[tuple[int, int]]] = {}
        for output in plan.outputs:
            _require(isinstance(output, Output), "an output says nothing of its buffer")
            _require(_whole(output.buffer, 0, len(plan.buffers) - 1), f"output {output.name} lies in no buffer")
            self._inside(len(plan.inputs) + output.buffer, output.offset, output.bytes, f"output {output.name}")
            aligned = output.offset % DTYPE_BYTES[output.dtype] == 0
            _require(aligned, f"output {output.name} is not aligned to its elements")
            ends.setdefault(output.buffer, []).append((output.offset, output.offset + output.bytes))
        for places in ends.values():
            ordered = sorted(places)
            apart = all(one[1] <= other[0] for one, other in itertools.pairwise(ordered))
            _require(apart, "two outputs lie in the same memory")

    def _read_codes(self) -> None:
        for code in self._plan.codes:
            _require(isinstance(code, bytes), "a code is no bytes")
            try:
                found = read_cubin(code)
            except CubinError as error:
                raise PlanError(str(error)) from None
            right = found.architecture == self._plan.architecture
            _require(right, f"the code is for architecture {found.architecture}, the plan for another")
            self._kernels.append(found.kernels)
            self._blocks.append(found.blocks)

    def _launch(self, launch: Launch) -> None:
        _require(_whole(launch.code, 0, len(self._kernels) - 1), "a launch names no code of the plan")
        _require(_text_of(launch.symbol, _SYMBOL), "a launch's symbol is none")
        parameters = self._kernels[launch.code].get(launch.symbol)
        if parameters is None:
            raise PlanError(f"the code has no kernel {launch.symbol[:60]!r}")
        cluster = launch.cluster
        _require(_whole(cluster, 1, 16) and cluster in CLUSTERS, "a cluster's size is none")
        _require(isinstance(launch.grid, tuple) and len(launch.grid) == 3, "a grid has three sizes")
        for size, most in zip(launch.grid, MOST_GRID, strict=True):
            _require(_whole(size, 1, most), f"the grid {launch.grid} is out of bounds")
        _require(launch.grid[0] * cluster <= MOST_GRID[0], f"the grid {launch.grid} is out of bounds")
        _require(_whole(launch.warps, 1, MOST_THREADS // 32), "a block's size is out of bounds")
        block = launch.block
        shaped = isinstance(block, tuple) and len(block) in (0, 3)
        _require(shaped and all(_whole(n, 1, MOST_THREADS) for n in block), "a block's size is out of bounds")
        asked = math.prod(launch.threads)
        _require(-(-asked // 32) == launch.warps, "a block's size is none of its warps")
        threads = self._blocks[launch.code].get(launch.symbol, asked)
        _require(threads == asked, f"{launch.symbol} is compiled for blocks of {threads} threads")
        _require(_whole(launch.shared, 0, MOST_SHARED), "a launch's shared memory is out of bounds")
        flags = (launch.cooperative, launch.programmatic)
        _require(all(isinstance(flag, bool) for flag in flags), "a launch's flags are no truth values")
        self._arguments(launch, parameters)

    def _arguments(self, launch: Launch, parameters: Sequence[Parameter]) -> None:
        count = len(launch.arguments) if isinstance(launch.arguments, tuple) else -1
        wanted = len(parameters)
        _require(count == wanted, f"{launch.symbol} takes {wanted} arguments, the plan has {count}")
        for argument, parameter in zip(launch.arguments, parameters, strict=True):
            if isinstance(argument, Pointer):
                self._inside(argument.slot, argument.offset, 0, "a pointer")
                size = 8
            elif isinstance(argument, TensorMap):
                self._map(argument)
                size = MAP_BYTES
            elif isinstance(argument, Scalar):
                _require(_whole(argument.size, 1, 8) and argument.size in (1, 2, 4, 8), "a number's size is none")
                _require(_whole(argument.bits, 0, (1 << 8 * argument.size) - 1), "a number is larger than its size")
                size = argument.size
            else:
                raise PlanError("the plan has an argument of no known kind")
            if size != parameter.size:
                raise PlanError(f"{launch.symbol} takes {parameter.size} bytes where the plan has {size}")

    def _map(self, tensor_map: TensorMap) -> None:
        shape, strides, box = tensor_map.shape, tensor_map.strides, tensor_map.box
        _require(all(isinstance(t, tuple) for t in (shape, strides, box)), "a tensor map's sizes are none")
        rank = len(shape)
        _require(1 <= rank <= 5 and len(box) == rank and len(strides) == rank - 1, "a tensor map's rank is none")
        _require(all(_whole(n, 1, 1 << 32) for n in shape), "a tensor map's shape is out of bounds")
        _require(all(_whole(n, 1, 256) for n in box), "a tensor map's box is out of bounds")
        aligned = all(_whole(n, 0, (1 << 40) - 1) and n % 16 == 0 for n in strides)
        _require(aligned, "a tensor map's strides are out of bounds or no multiples of 16 bytes")
        known = _whole(tensor_map.dtype, 0, 15) and _whole(tensor_map.swizzle, 0, 6)
        _require(known and isinstance(tensor_map.fill_nan, bool), "a tensor map's dtype or swizzle is unknown")
        last = -(-shape[-1] * MAP_DTYPE_BITS[tensor_map.dtype] // 8)
        size = last + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=False))
        self._inside(tensor_map.slot, tensor_map.offset, size, "a tensor map")
        _require(tensor_map.offset % ALIGNMENT == 0, "a tensor map's address is no multiple of 16")

    def _fill(self, fill: Fill) -> None:
        _require(_whole(fill.width, 1, 4) and fill.width in (1, 2, 4), "a fill's width is none")
        _require(_whole(fill.pattern, 0, (1 << 8 * fill.width) - 1), "a fill's pattern is larger than its width")
        self._inside(fill.slot, fill.offset, fill.bytes, "a fill")
        aligned = fill.bytes % fill.width == 0 and fill.offset % fill.width == 0
        _require(aligned, "a fill is not aligned to its width")
        _require(fill.slot >= len(self._plan.inputs), "a fill overwrites an input")

    def _inside(self, slot: object, offset: object, size: object, what: str) -> None:
        slots = len(self._plan.inputs) + len(self._plan.buffers)
        _require(_whole(slot, 0, slots - 1), f"{what} is in no input and no buffer")
        assert isinstance(slot, int)
        room = self._plan.slot_bytes(slot)
        _require(_whole(offset, 0, room), f"{what} begins outside of {self._plan.role(slot)}")
        assert isinstance(offset, int)
        _require(_whole(size, 0, room - offset), f"{what} reaches outside of {self._plan.role(slot)}")


def _require(met: bool, otherwise: str) -> None:
    if not met:
        raise PlanError(otherwise)


def _whole(value: object, least: int, most: int) -> bool:
    """Whether it is an int, and no bool, within bounds."""
    return type(value) is int and least <= value <= most


def _text_of(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _short(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 100
