"""Records what the ``launch`` of a CUDA C++ kernel says, as a launch plan.

A module in CUDA C++ is a Python module with the device code in the constant ``CUDA`` and a function ``launch(inputs,
params)``, which runs nothing: it returns what is to be launched, as plain data.

    {"steps": (step, ...),                       # in order
     "scratch": {name: (dtype, shape)},          # buffers of a call beside its outputs
     "defines": {name: number},                  # macros beside the parameters, sizes for example
     "options": {option: value}}                 # see OPTIONS

    step: {"kernel": "gemm<4>", "grid": (x, y, z), "block": (x, y, z), "arguments": (...),
           "cluster": 2, "shared": bytes, "cooperative": True, "programmatic": True}
          or {"zero": name}                      # of an output or of scratch
    argument: "name" or ("name", bytes)          # an address in an input, an output or scratch
              {"i32": 4096}                      # a number: i8 to i64, u8 to u64, bf16, fp16, fp32, fp64
              {"map": name, "box": (rows, columns), "swizzle": 128}    # a tensor map (TMA)

Grids count CTAs. ``inputs`` have ``shape`` and ``dtype``. Every parameter is a macro of its name: true and false are 1
and 0. A tensor map may say ``shape`` (elements), ``strides`` (bytes, all but the innermost), ``dtype``, ``offset``
(bytes) and ``fill_nan`` where they are not the tensor's own.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import nvrtc
from .plans.cubin import CubinError, read_cubin
from .plans.format import (
    DTYPE_BYTES,
    KINDS,
    Fill,
    Launch,
    NotRecorded,
    Output,
    Plan,
    PlanError,
    Pointer,
    Scalar,
    Tensor,
    TensorMap,
    scalar,
)

DEVICE_CODE = "CUDA"

MAP_DTYPES: Mapping[str, int] = {
    "bool": 0,
    "int8": 0,
    "uint8": 0,
    "int16": 1,
    "uint16": 1,
    "uint32": 2,
    "int32": 3,
    "uint64": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
    "float8_e4m3fn": 0,
    "float8_e5m2": 0,
    "float8_e8m0fnu": 0,
    "float8_e4m3fnuz": 0,
    "float8_e5m2fnuz": 0,
}
"""``CUtensorMapDataType`` by dtype."""

SWIZZLES: Mapping[int, int] = {0: 0, 32: 1, 64: 2, 128: 3}
"""``CUtensorMapSwizzle`` by bytes."""

OPTIONS = ("std", "fast_math", "maxrregcount", "default_device", "headers", "register_usage_level", "ptxas_level")
"""``std``: 17 or 20. ``default_device``: functions without annotation are the device's. ``headers``: ``cuda``,
``cutlass``. ``register_usage_level``: 0 to 10, ``ptxas_level``: 0 to 3, of the assembler."""

COMPILATION = "compilation"
"""Beside a plan's toolchain: the key of what its code was compiled from, which plans of other shapes share."""

Earlier = Callable[[str], Plan | None]
"""A plan whose code has a key, where somebody has one: what was compiled before needs no compiler."""

_MACRO = re.compile(r"[A-Za-z0-9_.]{1,64}", re.ASCII)
_KERNEL = re.compile(r"[A-Za-z_][\w:<>, ()*&-]{0,255}", re.ASCII)
_NOTED = re.compile(r"^.*\b(?:C75\d\d|warning)\b.*$", re.M)
MOST_NOTES, MOST_NOTE = 8, 200
REGISTERS = 65536
"""Of a multiprocessor."""


def toolchain() -> dict[str, str]:
    """What decides the code of a plan made here."""
    return {"nvrtc": nvrtc.version()}


def record(
    module: Mapping[str, Any],
    params: Mapping[str, Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    architecture: int,
    earlier: Earlier | None = None,
) -> Plan:
    """What the module's ``launch`` says for inputs of these shapes. ``architecture``: 90 for compute capability 9.0.

    Raises NotRecorded, PlanError, CompileError, NoCompiler, and what ``launch`` raises.
    """
    return recorded(module, params, inputs, outputs, architecture, earlier)[0]


def recorded(
    module: Mapping[str, Any],
    params: Mapping[str, Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    architecture: int,
    earlier: Earlier | None = None,
) -> tuple[Plan, tuple[str, ...]]:
    """``record`` with the compiler's warnings."""
    answer = module["launch"]({t.name: t for t in inputs}, dict(params))
    _require(isinstance(answer, Mapping), "launch returns no dict of steps")
    _known(answer, ("steps", "scratch", "defines", "options"), "launch")
    return _Recording(inputs, outputs, _table(answer, "scratch")).plan(
        module[DEVICE_CODE],
        architecture,
        _parts(answer.get("steps"), "steps"),
        (*_options(_table(answer, "options")), *_macros({**dict(params), **_table(answer, "defines")})),
        earlier,
    )


def _options(chosen: Mapping[str, Any]) -> list[str]:
    """As NVRTC takes them."""
    _known(chosen, OPTIONS, "options")
    standard = chosen.get("std", 17)
    _require(standard in (17, 20), "options: std is 17 or 20")
    found = [f"-std=c++{standard}"]
    if chosen.get("fast_math"):
        found.append("--use_fast_math")
    if chosen.get("default_device"):
        found.append("-default-device")
    for name, text, most in (
        ("maxrregcount", "--maxrregcount={}", 255),
        ("register_usage_level", "--ptxas-options=--register-usage-level={}", 10),
        ("ptxas_level", "--ptxas-options=-O{}", 3),
    ):
        if name in chosen:
            value = chosen[name]
            _require(type(value) is int and 0 <= value <= most, f"options: {name} is 0 to {most}")
            found.append(text.format(value))
    wanted = _parts(chosen.get("headers", ()), "options: headers")
    _require(all(name in ("cuda", "cutlass") for name in wanted), "options: headers are cuda and cutlass")
    return found + [f"--include-path={folder}" for folder in nvrtc.header_folders(wanted)]


def _macros(values: Mapping[str, Any]) -> list[str]:
    found = []
    for name, value in sorted(values.items()):
        _require(isinstance(name, str) and name.isidentifier() and name.isascii(), f"{name!r} is no macro")
        text = str(int(value)) if isinstance(value, bool) else str(value)
        allowed = isinstance(value, int) or _MACRO.fullmatch(text) is not None
        _require(allowed, f"the macro {name} is neither number nor name")
        found.append(f"-D{name}={text}")
    return found


class _Recording:
    """One call: its slots by name, and steps as they are written down."""

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], scratch: Mapping[str, Any]) -> None:
        made = [_scratch(name, value) for name, value in scratch.items()]
        tensors = (*inputs, *outputs, *made)
        _require(len({t.name for t in tensors}) == len(tensors), "two tensors of a launch have one name")
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._tensors = {t.name: (slot, t) for slot, t in enumerate(tensors)}
        self._buffers = tuple(t.bytes for t in (*outputs, *made))

    def plan(
        self, source: str, architecture: int, steps: Sequence[Any], options: tuple[str, ...], earlier: Earlier | None
    ) -> tuple[Plan, tuple[str, ...]]:
        for step in steps:
            _require(isinstance(step, Mapping), "a step is no dict")
        names = tuple(dict.fromkeys(_kernel(step) for step in steps if "zero" not in step))
        key = hashlib.sha256(repr((source, names, architecture, options)).encode()).hexdigest()
        old = earlier(key) if earlier is not None else None
        if old is None:
            made, made_with = nvrtc.compiled(source, names, architecture, options), toolchain()
        else:
            given = tuple(dict.fromkeys(launch.symbol for launch in old.launches))
            made, made_with = nvrtc.Compiled(old.codes[0], "", given), dict(old.toolchain)
        try:
            code = read_cubin(made.code)
        except CubinError as error:
            raise NotRecorded(f"{error}: {_remedy(str(error))}") from error
        symbols = dict(zip(names, made.symbols, strict=True))
        written = [
            self._zero(step) if "zero" in step else self._launch(step, symbols[step["kernel"]]) for step in steps
        ]
        for launch in written:
            if isinstance(launch, Launch):
                used = code.registers.get(launch.symbol, 0) * 32 * launch.warps
                if used > REGISTERS:
                    raise MemoryError(
                        f"out of resource: a block of {launch.symbol} needs {used} registers of {REGISTERS}"
                    )
        first = len(self._inputs)
        plan = Plan(
            architecture=architecture,
            inputs=self._inputs,
            outputs=tuple(Output(o.name, o.dtype, o.shape, self._tensors[o.name][0] - first) for o in self._outputs),
            buffers=self._buffers,
            steps=tuple(written),
            codes=(made.code,),
            toolchain={**made_with, COMPILATION: key},
        )
        notes = [line.strip()[:MOST_NOTE] for line in _NOTED.findall(made.log)]
        return plan, tuple(notes[:MOST_NOTES])

    def _zero(self, step: Mapping[str, Any]) -> Fill:
        _known(step, ("zero",), "a step that zeroes")
        slot, tensor = self._tensor(step["zero"], "a step that zeroes")
        _require(slot >= len(self._inputs), f"launch changes its inputs: it zeroes {tensor.name}")
        return Fill(slot, 0, tensor.bytes, 0, 1)

    def _launch(self, step: Mapping[str, Any], symbol: str) -> Launch:
        known = ("kernel", "grid", "block", "arguments", "cluster", "shared", "cooperative", "programmatic")
        _known(step, known, "a step")
        grid, block = _sizes(step.get("grid"), "grid"), _sizes(step.get("block"), "block")
        cluster = step.get("cluster", 1)
        _require(type(cluster) is int and cluster > 0, "a cluster's size is none")
        _require(grid[0] % cluster == 0, f"the grid {grid} is no multiple of clusters of {cluster}")
        threads = math.prod(block)
        plain = block == (threads, 1, 1) and threads % 32 == 0
        return Launch(
            code=0,
            symbol=symbol,
            grid=(grid[0] // cluster, grid[1], grid[2]),
            warps=-(-threads // 32),
            shared=step.get("shared", 0),
            arguments=tuple(self._argument(a) for a in _parts(step.get("arguments"), "arguments")),
            cluster=cluster,
            cooperative=step.get("cooperative", False),
            programmatic=step.get("programmatic", False),
            block=() if plain else block,
        )

    def _argument(self, argument: Any) -> Pointer | TensorMap | Scalar:
        if isinstance(argument, str):
            return Pointer(self._tensor(argument, "an argument")[0], 0)
        if isinstance(argument, tuple | list) and len(argument) == 2:
            return Pointer(self._tensor(argument[0], "an argument")[0], argument[1])
        if isinstance(argument, Mapping) and "map" in argument:
            return self._map(argument)
        if isinstance(argument, Mapping) and len(argument) == 1:
            ((kind, value),) = argument.items()
            if kind in KINDS:
                return scalar(kind, value)
        raise NotRecorded(
            "an argument is no name of a tensor, no (name, bytes), no tensor map and no number such as {'i32': 4}"
        )

    def _map(self, fields: Mapping[str, Any]) -> TensorMap:
        _known(fields, ("map", "box", "swizzle", "shape", "strides", "dtype", "offset", "fill_nan"), "a tensor map")
        slot, tensor = self._tensor(fields["map"], "a tensor map")
        dtype = fields.get("dtype", tensor.dtype)
        _require(dtype in MAP_DTYPES, "a tensor map's dtype is none")
        _require(fields.get("swizzle", 0) in SWIZZLES, "a tensor map's swizzle is 0, 32, 64 or 128")
        shape = _parts(fields.get("shape", tensor.shape), "a tensor map's shape")
        inner = [DTYPE_BYTES[dtype] * n for n in itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b)]
        return TensorMap(
            slot=slot,
            offset=fields.get("offset", 0),
            dtype=MAP_DTYPES[dtype],
            shape=shape,
            strides=_parts(fields.get("strides", tuple(reversed(inner))), "a tensor map's strides"),
            box=_parts(fields.get("box"), "a tensor map's box"),
            swizzle=SWIZZLES[fields.get("swizzle", 0)],
            fill_nan=fields.get("fill_nan", False),
        )

    def _tensor(self, name: Any, what: str) -> tuple[int, Tensor]:
        if not isinstance(name, str) or name not in self._tensors:
            raise NotRecorded(f"{what} names no tensor: {name!r} (there are {', '.join(self._tensors)})")
        return self._tensors[name]


def _scratch(name: Any, value: Any) -> Tensor:
    dtype, shape = value if isinstance(value, tuple | list) and len(value) == 2 else (None, ())
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise NotRecorded(f"scratch {name!r} is no (dtype, shape)")
    sizes = _parts(shape, f"the shape of scratch {name!r}")
    _require(all(type(n) is int and n >= 0 for n in sizes), f"the shape of scratch {name!r} is none")
    return Tensor(str(name), dtype, sizes)


def _kernel(step: Mapping[str, Any]) -> str:
    name = step.get("kernel")
    _require(isinstance(name, str) and _KERNEL.fullmatch(name) is not None, f"a step's kernel is none: {name!r}")
    return str(name)


def _sizes(value: Any, what: str) -> tuple[int, int, int]:
    sizes = (value,) if type(value) is int else _parts(value, what)
    _require(1 <= len(sizes) <= 3 and all(type(n) is int and n > 0 for n in sizes), f"a {what} of {value!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _parts(value: Any, what: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise NotRecorded(f"{what}: {value!r:.60} is no tuple")
    return tuple(value)


def _table(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name, {})
    if not isinstance(value, Mapping):
        raise NotRecorded(f"{name} is no dict")
    return value


def _known(fields: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    for name in fields:
        _require(name in names, f"{what}: {name!r} is unknown (known: {', '.join(names)})")


def _require(met: bool, otherwise: str) -> None:
    if not met:
        raise NotRecorded(otherwise)


def _remedy(fault: str) -> str:
    if "global memory" in fault:
        return "make it scratch of the launch, or a macro or enum where it is a constant"
    if "constant memory" in fault:
        return "pass the table as an argument, or by value in a struct"
    return "device code may call what it defines and nothing else (no printf, malloc or launches)"


__all__ = ["DEVICE_CODE", "NotRecorded", "PlanError", "record", "recorded", "toolchain"]
