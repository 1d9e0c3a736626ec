"""Records one call of a wrapper: what it allocates, how it looks at its tensors, and which kernels it launches.

Tensors have shapes and no memory (torch's meta device) and say that they lie on a GPU; kernels are noted and not run.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.runtime import autotuner, interpreter

from tilewright.workers.intake import symbols

DEVICE = torch.device("cuda", 0)
PACKED_RANK = 4
"""Most dimensions of a view that is made contiguous."""


class Refusal(Exception):
    """Why a wrapper cannot be taken in. ``line`` of the user's file, 0 if unknown."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(what)
        self.what, self.line = what, line


@dataclass
class Var:
    """A tensor of the wrapper. ``text``: the expression that makes it, None for an input; ``base``: what it views."""

    name: str
    tensor: torch.Tensor
    kind: str  # input, fresh, zeros, view, foreign
    text: str | None = None
    base: Var | None = None
    line: int = 0
    foreign: str = ""
    packs: Var | None = None
    """What it is a contiguous copy of."""


@dataclass
class Launch:
    """One kernel launch: arguments by the kernel's parameter names, in their order."""

    kernel: Any
    grid: tuple[Any, ...]
    arguments: dict[str, Any]
    options: dict[str, Any]
    line: int
    tuned: tuple[Mapping[str, Any], ...] = ()


@dataclass
class Trace:
    """What one call did, in order. ``steps``: Var (made), Launch, or (Var, method) for a reset."""

    inputs: dict[str, Var]
    steps: list[Any] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    configs: dict[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    """Kernel to its autotuner's configurations."""

    vars: dict[int, Var] = field(default_factory=dict)
    atoms: dict[str, Any] = field(default_factory=dict)
    """Values of atoms that configurations and the device give."""

    _count: int = 0

    def fresh_name(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def find(self, tensor: torch.Tensor) -> Var | None:
        var = self.vars.get(id(tensor))
        if var is not None and var.tensor is tensor:
            return var
        for known in reversed(list(self.vars.values())):
            same = known.tensor
            if (
                same.untyped_storage()._cdata == tensor.untyped_storage()._cdata
                and same.shape == tensor.shape
                and same.stride() == tensor.stride()
                and same.storage_offset() == tensor.storage_offset()
                and same.dtype == tensor.dtype
            ):
                return known
        return None

    def add(self, var: Var) -> Var:
        self.vars[id(var.tensor)] = var
        if var.kind != "input":
            self.steps.append(var)
        return var


_current: list[Trace] = []
_user_files: list[str] = []


def user_line() -> int:
    """The innermost line of the user's files that is being run."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in _user_files:
            return frame.f_lineno
        frame = frame.f_back
    return 0


_VIEWS = {
    "view", "reshape", "transpose", "permute", "t", "unsqueeze", "squeeze", "flatten", "expand", "narrow",
    "swapaxes", "movedim", "view_as", "reshape_as", "unflatten",
}  # fmt: skip
_FREE = {"detach", "requires_grad_", "is_contiguous", "data_ptr", "dim", "ndimension", "element_size",
         "is_floating_point",
         "storage_offset", "get_device", "is_complex", "__repr__", "__format__", "__hash__", "__len__", "is_pinned",
         "untyped_storage", "storage", "is_set_to", "record_stream", "__deepcopy__", "register_hook", "is_signed",
         "is_inference", "is_same_size", "type", "__bool__", "__index__", "__int__", "__float__"}  # fmt: skip


class Recording(TorchFunctionMode):
    """While open, what torch is asked for is noted in ``trace``."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        owner = getattr(func, "__self__", None)
        if name == "__get__":
            return self._property(getattr(owner, "__name__", ""), func, args)
        if name in ("__set__", "__delete__"):
            return func(*args, **options)
        if name in _METADATA:
            return self._metadata(name, func, args, options)
        if name in ("empty", "zeros", "empty_like", "zeros_like", "new_empty", "new_zeros", "empty_strided", "full",
                    "full_like", "ones", "ones_like", "new_full", "new_ones", "new_empty_strided"):  # fmt: skip
            return self._made(name, func, args, options)
        if name in ("zero_", "fill_"):
            return self._reset(name, args)
        if name in ("contiguous", "to", "cuda", "float", "half", "bfloat16", "type_as", "clone"):
            return self._same(name, func, args, options)
        if name in _VIEWS or name in ("__getitem__", "chunk", "split", "unbind", "view_as_real"):
            return self._view(name, func, args, options)
        if name in (
            "item",
            "tolist",
            "__bool__",
            "__int__",
            "__float__",
            "__index__",
            "nonzero",
            "cpu",
            "numpy",
        ):
            raise Refusal(f"the wrapper reads a tensor's values ({name})", user_line())
        if name == "data_ptr":
            return 0
        result = func(*args, **_meta(options))
        if name not in _FREE:
            self._foreign(name, result)
        return result

    # -- what a wrapper asks ---------------------------------------------------------------------

    def _var(self, tensor: torch.Tensor) -> Var | None:
        return self._trace.find(tensor)

    def _property(self, name: str, func: Any, args: Sequence[Any]) -> Any:
        value = func(*args)
        if name == "device":
            return DEVICE
        if name in ("is_cuda", "is_cpu", "is_meta"):
            return name == "is_cuda"
        var = self._var(args[0])
        if name == "shape" and var is not None:
            return torch.Size(self._sizes(var, value))
        if isinstance(value, torch.Tensor) and name in ("T", "mT", "data"):
            if var is None or name == "data":
                return args[0] if name == "data" else value
            text = f"{var.name}.T" if name == "T" and value.dim() == 2 else f"{var.name}.transpose(-1, -2)"
            return self._note_view(value, var, text)
        return value

    def _sizes(self, var: Var, values: Sequence[int]) -> list[Any]:
        return [
            symbols.traced(int(v), f"{var.name}.shape[{n}]", frozenset(["shape"]))
            for n, v in enumerate(values)
        ]

    def _metadata(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        var, value = self._var(args[0]), func(*args, **options)
        if var is None:
            return value
        if name in ("numel", "nelement"):
            return symbols.traced(value, f"{var.name}.numel()", frozenset(["shape"]))
        where = args[1] if len(args) > 1 else options.get("dim")
        if where is not None:
            rank = args[0].dim()
            place = symbols.plain(where) % rank if rank else 0
            text = f"{var.name}.shape[{place}]" if name == "size" else f"{var.name}.stride({place})"
            return symbols.traced(int(value), text, frozenset(["shape"]))
        if name == "size":
            return torch.Size(self._sizes(var, value))
        return tuple(
            symbols.traced(int(v), f"{var.name}.stride({n})", frozenset(["shape"]))
            for n, v in enumerate(value)
        )

    def _made(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        line = user_line()
        asked = dict(options)
        value = func(*args, **_meta(options))
        if not value.is_contiguous():
            raise Refusal(f"torch.{name} makes a tensor that is not contiguous", line)
        like = name.endswith("_like")
        if like:
            base = self._var(args[0])
            sizes: Sequence[Any] = self._sizes(base, value.shape) if base else list(value.shape)
        else:
            given = args[1:] if name.startswith("new_") else args
            size = asked.get("size", given[0] if given else ())
            spread = not isinstance(size, tuple | list | torch.Size)
            sizes = [a for a in given if isinstance(a, int)] if spread else list(size)
        filled = "full" in name or "ones" in name
        if filled:
            fill = asked.get("fill_value", args[-1] if "full" in name else 1)
            if symbols.plain(fill) != 0:
                self._foreign(name, value)
                return value
        zeros = filled or "zeros" in name
        shape = ", ".join(map(symbols.code_of, sizes)) + ("," if len(sizes) == 1 else "")
        dtype = str(value.dtype)
        text = f"torch.{'zeros' if zeros else 'empty'}(({shape}), dtype={dtype})"
        var = Var(self._trace.fresh_name("t"), value, "zeros" if zeros else "fresh", text, line=line)
        self._trace.add(var)
        return value

    def _reset(self, name: str, args: Sequence[Any]) -> Any:
        var = self._var(args[0])
        if var is None or (name == "fill_" and symbols.plain(args[1]) != 0):
            raise Refusal(f"torch computes {name} on a tensor", user_line())
        self._trace.steps.append((var, "zero_"))
        return args[0]

    def _same(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        tensor = args[0]
        if name == "contiguous" and tensor.is_contiguous(**options):
            return tensor
        var = self._var(tensor)
        if name == "contiguous" and var is not None and tensor.dim() <= PACKED_RANK:
            return self._packed(var, tensor)
        if name in ("to", "cuda"):
            wanted = [a for a in (*args[1:], *options.values()) if isinstance(a, torch.dtype)]
            others = [a.dtype for a in args[1:] if isinstance(a, torch.Tensor)]
            if all(d == tensor.dtype for d in (*wanted, *others)):
                return tensor
            kept = [a for a in args[1:] if isinstance(a, torch.dtype)] + others
            result = tensor.to((kept or wanted)[0])
        else:
            result = func(*args, **options)
            if result is tensor:
                return tensor
        self._foreign(name, result)
        return result

    def _packed(self, var: Var, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy, which a kernel of ours will make."""
        value = tensor.contiguous()
        shape = "".join(f"{symbols.code_of(n)}, " for n in self._sizes(var, value.shape))
        text = f"torch.empty(({shape}), dtype={value.dtype})"
        self._trace.add(
            Var(self._trace.fresh_name("t"), value, "packed", text, None, user_line(), var.foreign, var)
        )
        return value

    def _view(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        var, value = self._var(args[0]), func(*args, **options)
        if var is None:
            return value
        if isinstance(value, tuple | list):
            for part in value:
                self._foreign(name, part)
            return value
        shared = value.untyped_storage()._cdata == args[0].untyped_storage()._cdata
        if not shared:
            self._foreign(name, value)
            return value
        if name == "__getitem__":
            return self._note_view(value, var, f"{var.name}[{_index(args[1])}]")
        rest = [*map(_argument, args[1:]), *(f"{k}={_argument(v)}" for k, v in options.items())]
        if name in ("flatten", "unflatten", "view_as", "reshape_as", "unsqueeze", "narrow", "movedim"):
            shape = ", ".join(str(n) for n in value.shape)
            if not value.is_contiguous():
                self._foreign(name, value)
                return value
            sizes = _reshaped(args[0], value, self._sizes(var, args[0].shape)) or shape
            return self._note_view(value, var, f"{var.name}.view(({sizes},))")
        if value is args[0]:
            return value
        if name == "t":
            return self._note_view(value, var, f"{var.name}.T" if value.dim() == 2 else var.name)
        return self._note_view(value, var, f"{var.name}.{name}({', '.join(rest)})")

    def _note_view(self, value: torch.Tensor, base: Var, text: str) -> torch.Tensor:
        known = self._trace.find(value)
        if known is not None and known is base:
            return value if id(value) in self._trace.vars else self._alias(value, base)
        self._trace.add(
            Var(self._trace.fresh_name("v"), value, "view", text, base, user_line(), base.foreign)
        )
        return value

    def _alias(self, value: torch.Tensor, base: Var) -> torch.Tensor:
        self._trace.vars[id(value)] = Var(base.name, value, "alias", None, base, base.line, base.foreign)
        return value

    def _foreign(self, name: str, result: Any) -> None:
        line = user_line()
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, torch.Tensor) and self._trace.vars.get(id(part)) is None:
                found = self._trace.find(part)
                if found is None or found.tensor is not part:
                    var = Var(self._trace.fresh_name("u"), part, "foreign", None, None, line, name)
                    self._trace.vars[id(part)] = var


_METADATA = ("size", "stride", "numel", "nelement")


def _meta(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in options.items() if k not in ("device", "pin_memory")}
    return {**kept, "device": "meta"} if "device" in options else kept


def _argument(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "(" + "".join(f"{_argument(v)}, " for v in value) + ")"
    if isinstance(value, int | float):
        return symbols.code_of(value)
    return str(value) if isinstance(value, torch.dtype) else repr(value)


def _index(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_index, value))
    if isinstance(value, slice):
        parts = [("" if p is None else symbols.code_of(p)) for p in (value.start, value.stop)]
        return ":".join(parts) + (f":{symbols.code_of(value.step)}" if value.step is not None else "")
    if value is Ellipsis:
        return "..."
    return "None" if value is None else symbols.code_of(value)


def _reshaped(old: torch.Tensor, new: torch.Tensor, sizes: Sequence[Any]) -> str | None:
    """The new sizes as products of the old ones, where runs of old dimensions make them."""
    found, place = [], 0
    for size in new.shape:
        if size == 1:
            found.append("1")
            continue
        while place < old.dim() and old.shape[place] == 1:
            place += 1
        made, parts = 1, []
        while made < size and place < old.dim():
            made *= old.shape[place]
            parts.append(symbols.code_of(sizes[place]))
            place += 1
        if made != size:
            return None
        found.append(" * ".join(parts))
    return ", ".join(found)


# -- the device and the launches -----------------------------------------------------------------


class _Properties(dict):
    """What a driver says of the target, each number an atom."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def device_numbers(part: Mapping[str, Any]) -> dict[str, int]:
    """What a wrapper may ask of a device, under the names that CUDA, Triton and torch have for it."""
    return {
        "multiprocessor_count": part["multiprocessors"],
        "max_num_regs": 65536,
        "regs_per_multiprocessor": 65536,
        "max_shared_mem": part["smem_bytes"],
        "shared_memory_per_block_optin": part["smem_bytes"],
        "shared_memory_per_multiprocessor": part["smem_bytes"] + 1024,
        "warpSize": 32,
        "warp_size": 32,
        "total_memory": 80 << 30,
        "max_threads_per_multi_processor": 2048,
    }


def device_properties(part: Mapping[str, Any]) -> _Properties:
    """The same, each number with its atom."""
    found = _Properties()
    for name, value in device_numbers(part).items():
        found[name] = symbols.traced(int(value), f"D{name}_", frozenset(["device", f"D{name}_"]))
    found["major"], found["minor"] = divmod(part["capability"], 10)
    found["name"] = part.get("product", "GPU")
    return found


class _Driver:
    """Stands in for Triton's driver."""

    def __init__(self, part: Mapping[str, int]) -> None:
        self._part = part
        self.utils = types.SimpleNamespace(get_device_properties=lambda *_: device_properties(part))

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._part["capability"], 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return DEVICE

    def get_device_interface(self) -> Any:
        return torch.cuda

    def is_active(self) -> bool:
        return True


class _Compiled:
    """What ``kernel.warmup`` gives: figures of code that nobody has compiled, and a way to launch."""

    def __init__(self, kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._kernel, self._arguments, self._options = kernel, dict(arguments), dict(options)
        unknown = frozenset(["device", "compiled"])
        self.n_regs = symbols.traced(32, "Dn_regs_", unknown)
        self.n_spills = 0
        shared = symbols.traced(1024, "Dshared_", unknown)
        self.metadata = types.SimpleNamespace(
            shared=shared, num_warps=options.get("num_warps", 4), name="kernel"
        )
        self.asm: dict[str, str] = {}
        self.function = self.module = None

    def _init_handles(self) -> None:
        return

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> None:
            known = self._arguments
            names = self._kernel.arg_names
            given = dict(zip(names, args, strict=False))
            note(self._kernel, grid, {**known, **given}, {**self._options, **kwargs})

        return launch


def note(kernel: Any, grid: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Add a launch to the recording."""
    if not _current:
        raise RuntimeError("a kernel is launched at import")
    trace = _current[-1]
    if callable(grid):
        grid = grid(dict(named))
    shape = tuple(grid) if isinstance(grid, tuple | list | torch.Size) else (grid,)
    kept = {
        k: v for k, v in options.items()
        if k in ("num_warps", "num_stages", "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack",
                 "enable_fp_fusion", "launch_pdl", "launch_cooperative_grid") and v is not None
    }  # fmt: skip
    ordered = {name: named[name] for name in kernel.arg_names if name in named}
    launch = Launch(kernel, shape, ordered, kept, user_line(), trace.configs.get(kernel.fn.__name__, ()))
    trace.steps.append(launch)
    return _Compiled(kernel, named, kept)


def _run(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> Any:
    names = list(self.arg_names)
    named = dict(zip(names, args, strict=False))
    named.update({k: v for k, v in kwargs.items() if k in names})
    options = {k: v for k, v in kwargs.items() if k not in names}
    for name, parameter in _signature(self.fn).items():
        if name not in named and parameter is not _EMPTY:
            named[name] = parameter
    if warmup:
        return _Compiled(self, named, options)
    return note(self, grid, named, options)


_EMPTY = object()


def _signature(fn: Any) -> dict[str, Any]:
    import inspect

    return {
        n: (_EMPTY if p.default is inspect.Parameter.empty else p.default)
        for n, p in inspect.signature(fn).parameters.items()
    }


def _tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
    """An autotuner takes its first configuration; its values are knobs."""
    trace = _current[-1] if _current else None
    configs = [config.all_kwargs() for config in self.configs]
    if trace is None or not configs:
        return self.fn.run(*args, **kwargs)
    kernel = self.fn
    while not hasattr(kernel, "rewriter"):
        kernel = kernel.fn
    name = kernel.fn.__name__
    trace.configs[name] = tuple(configs)
    chosen = dict(configs[len(configs) // 2 if len(configs) > 2 else 0])
    config = self.configs[len(configs) // 2 if len(configs) > 2 else 0]
    values = {}
    for key, value in chosen.items():
        if key == "ir_override":
            continue
        atom = f"C{name}__{key}_"
        trace.atoms[atom] = value
        traceable = isinstance(value, int) and not isinstance(value, bool)
        values[key] = symbols.traced(value, atom, frozenset([atom])) if traceable else value
    named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs, **values}
    for reset in self.reset_to_zero:
        named[reset].zero_()
    if config.pre_hook is not None:
        config.pre_hook(named)
    return self.fn.run(*args, **{**kwargs, **values})


@contextlib.contextmanager
def noted_device(part: Mapping[str, int]) -> Iterator[None]:
    """While open, torch and Triton speak of the target's device, and no kernel runs."""
    driver = _Driver(part)
    properties = lambda *a, **k: device_properties(part)  # noqa: E731
    null = lambda *a, **k: contextlib.nullcontext()  # noqa: E731
    stream = types.SimpleNamespace(cuda_stream=0, wait_stream=lambda *a: None)
    changes: list[tuple[Any, str, Any]] = [
        (interpreter.InterpretedFunction, "run", _run),
        (autotuner.Autotuner, "run", _tuned),
        (triton, "cdiv", symbols.call("triton.cdiv", lambda a, b: -(-a // b))),
        (triton, "next_power_of_2", symbols.call("triton.next_power_of_2", _next_power)),
        (torch.cuda, "get_device_properties", properties),
        (torch.cuda, "get_device_capability", lambda *a: divmod(part["capability"], 10)),
        (torch.cuda, "get_device_name", lambda *a: str(part.get("product", "GPU"))),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "device", null),
        (torch.cuda, "device_of", null),
        (torch.cuda, "set_device", lambda *a: None),
        (torch.cuda, "synchronize", lambda *a: None),
        (torch.cuda, "current_stream", lambda *a: stream),
        (torch.cuda, "stream", null),
        (torch.cuda, "_lazy_init", lambda: None),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    active = triton.runtime.driver.active if _has_driver() else None
    for owner, name, value in changes:
        setattr(owner, name, value)
    triton.runtime.driver.set_active(driver)
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)
        for owner, name, value in before:
            setattr(owner, name, value)
        if active is not None:
            triton.runtime.driver.set_active(active)


def _has_driver() -> bool:
    try:
        return triton.runtime.driver.active is not None
    except Exception:  # noqa: BLE001 - no device is no fault here
        return False


def _next_power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def record(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    inputs: Mapping[str, torch.Tensor],
    files: Sequence[str],
) -> Trace:
    """One call. Raises Refusal, or whatever the wrapper raises."""
    trace = Trace({})
    for name, tensor in inputs.items():
        trace.inputs[name] = trace.add(Var(name, tensor, "input"))
    _current.append(trace)
    _user_files[:] = files
    try:
        with torch.no_grad(), Recording(trace):
            result = function(*arguments, **options)
    finally:
        _current.pop()
    trace.results = list(_flat(result))
    return trace


def _flat(result: Any) -> Iterator[Any]:
    if isinstance(result, tuple | list):
        for part in result:
            yield from _flat(part)
    elif isinstance(result, dict):
        yield from _flat(tuple(result.values()))
    elif isinstance(result, torch.Tensor):
        yield result
