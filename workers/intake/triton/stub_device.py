"""The device a wrapper is recorded on: its figures, a driver, and launches that are noted and not run."""

import contextlib
import inspect
import subprocess
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import autotuner, interpreter, jit

from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.triton.eager_torch import undecorated
from tilewright.workers.intake.triton.trace import Launch, current, user_line

DEVICE = torch.device("cuda", 0)


class _Properties(dict):
    """What a driver says of the target, each number an atom."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


_OPTIONS = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "waves_per_eu",
    "matrix_instr_nonkdim",
    "kpack",
    "enable_fp_fusion",
    "launch_pdl",
    "launch_cooperative_grid",
)
"""Options of a launch that a compiler reads."""


def device_numbers(part: Mapping[str, Any]) -> dict[str, int]:
    """What a wrapper may ask of a device, under the names that CUDA, Triton and torch have for it."""
    return {
        **dict.fromkeys(("multiprocessor_count", "multi_processor_count"), part["multiprocessors"]),
        **dict.fromkeys(("max_num_regs", "regs_per_multiprocessor"), 65536),
        **dict.fromkeys(("max_shared_mem", "shared_memory_per_block_optin"), part["smem_bytes"]),
        **dict.fromkeys(("warpSize", "warp_size"), 32),
        "shared_memory_per_multiprocessor": part["smem_bytes"] + 1024,
        "total_memory": 80 << 30,
        "max_threads_per_multi_processor": 2048,
    }


def device_properties(part: Mapping[str, Any]) -> _Properties:
    """The same, each number with its atom."""
    found = _Properties()
    for name, value in device_numbers(part).items():
        found[name] = traced_numbers.traced(int(value), f"D{name}_", frozenset(["device", f"D{name}_"]))
    found["major"], found["minor"] = divmod(part["capability"], 10)
    found["name"] = part.get("product", "GPU")
    return found


def _driver(part: Mapping[str, Any]) -> Any:
    """Stands in for Triton's driver."""
    return types.SimpleNamespace(
        utils=types.SimpleNamespace(get_device_properties=lambda *_: device_properties(part)),
        get_current_target=lambda: GPUTarget("cuda", part["capability"], 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device=0: 0,
        get_active_torch_device=lambda: DEVICE,
        get_device_interface=lambda: torch.cuda,
        is_active=lambda: True,
    )


class _Compiled:
    """What ``kernel.warmup`` gives: figures of a small kernel, for nobody has compiled it, and a way to launch."""

    def __init__(self, kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._kernel, self._arguments, self._options = kernel, dict(arguments), dict(options)
        self.n_regs, self.n_spills, self.asm = 32, 0, dict[str, str]()
        self.metadata = types.SimpleNamespace(shared=1024, num_warps=options.get("num_warps", 4), name="kernel")

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
    trace = current()
    if trace is None:
        raise RuntimeError("a kernel is launched at import")
    if callable(grid):
        grid = grid(dict(named))
    shape = tuple(grid) if isinstance(grid, tuple | list | torch.Size) else (grid,)
    kept = {k: v for k, v in options.items() if k in _OPTIONS and v is not None}
    ordered = {name: _tensor_of(named[name]) for name in kernel.arg_names if name in named}
    launch = Launch(kernel, shape, ordered, kept, user_line(), trace.configs.get(kernel.fn.__name__, ()))
    trace.steps.append(launch)
    return _Compiled(kernel, named, kept)


def _tensor_of(value: Any) -> Any:
    """The tensor below an object of a package that stands for one whole (it has a ``data_ptr`` and one tensor)."""
    if isinstance(value, torch.Tensor) or not callable(getattr(value, "data_ptr", None)):
        return value
    below = [part for part in vars(value).values() if isinstance(part, torch.Tensor)]
    same = len(below) == 1 and value.data_ptr() == 0 and getattr(value, "dtype", None) == below[0].dtype
    return below[0] if same else value


def _run(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> Any:
    names = list(self.arg_names)
    named = dict(zip(names, args, strict=False))
    named.update({k: v for k, v in kwargs.items() if k in names})
    options = {k: v for k, v in kwargs.items() if k not in names}
    for name, parameter in inspect.signature(self.fn).parameters.items():
        if name not in named and parameter.default is not inspect.Parameter.empty:
            named[name] = getattr(parameter.default, "value", parameter.default)
    if warmup:
        return _Compiled(self, named, options)
    return note(self, grid, named, options)


def _tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
    """An autotuner takes its first configuration; its values are knobs."""
    trace = current()
    configs = [config.all_kwargs() for config in self.configs]
    if trace is None or not configs:
        return self.fn.run(*args, **kwargs)
    kernel = self.fn
    while not isinstance(kernel, interpreter.InterpretedFunction | jit.JITFunction):
        kernel = kernel.fn
    name = kernel.fn.__name__
    trace.configs[name] = tuple(configs)
    middle = len(configs) // 2 if len(configs) > 2 else 0
    config, values = self.configs[middle], {}
    for key, value in configs[middle].items():
        if key == "ir_override":
            continue
        atom = f"C{name}__{key}_"
        trace.atoms[atom] = value
        traceable = isinstance(value, int) and not isinstance(value, bool)
        values[key] = traced_numbers.traced(value, atom, frozenset([atom])) if traceable else value
    named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs, **values}
    for reset in self.reset_to_zero:
        named[reset].zero_()
    if config.pre_hook is not None:
        config.pre_hook(named)
    return self.fn.run(*args, **{**kwargs, **values})


@contextlib.contextmanager
def stub_device(part: Mapping[str, int]) -> Iterator[None]:
    """While open, torch and Triton speak of the target's device, and no kernel runs."""
    properties = lambda *a, **k: device_properties(part)  # noqa: E731
    changes: list[tuple[Any, str, Any]] = [
        (interpreter.InterpretedFunction, "run", _run),
        (jit.JITFunction, "run", _run),
        # packages ask what a real kernel has: its source, its key
        (triton.knobs.runtime, "interpret", False),
        (autotuner.Autotuner, "run", _tuned),
        (triton, "cdiv", traced_numbers.call("triton.cdiv", lambda a, b: -(-a // b))),
        (
            triton,
            "next_power_of_2",
            traced_numbers.call("triton.next_power_of_2", lambda n: 1 << max(n - 1, 0).bit_length()),
        ),
        (torch.cuda, "get_device_properties", properties),
        (torch.cuda, "get_device_capability", lambda *a: divmod(part["capability"], 10)),
        (torch.cuda, "get_device_name", lambda *a: str(part.get("product", "GPU"))),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "device_count", lambda: 1),
        *[(torch.cuda, name, _Context) for name in ("device", "device_of", "stream")],
        *[(torch.cuda, name, lambda *a: None) for name in ("set_device", "synchronize", "_lazy_init")],
        *[(torch.cuda, name, _Stream) for name in ("current_stream", "Stream", "Event")],
        (torch, "compile", undecorated),
        (torch, "_check", _checked),
        (subprocess, "run", _asked(str(part.get("product", "GPU")))),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    active = None
    with contextlib.suppress(Exception):  # no device is no fault here
        active = triton.runtime.driver.active
    for owner, name, value in changes:
        setattr(owner, name, value)
    triton.runtime.driver.set_active(_driver(part))
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)
        for owner, name, value in before:
            setattr(owner, name, value)
        if active is not None:
            triton.runtime.driver.set_active(active)


class _Context:
    """A context that does nothing; a class, since packages annotate with ``torch.cuda.device | None``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


class _Stream(_Context):
    """A stream or an event, which nothing waits for."""

    cuda_stream = 0

    def synchronize(self, *other: Any) -> None:
        pass

    wait_stream = wait_event = record_event = record = synchronize


def _checked(condition: Any, message: Callable[[], str] | None = None) -> None:
    """``torch._check`` of a condition on sizes."""
    if not condition:
        raise RuntimeError(message() if message is not None else "Expected cond to be True, but got False")


def _asked(product: str) -> Callable[..., Any]:
    """``subprocess.run`` for packages that ask the driver's own tool which device there is."""
    run = subprocess.run

    def asked(command: Any, *args: Any, **kwargs: Any) -> Any:
        words = command.split() if isinstance(command, str) else list(command)
        if words[:1] != ["nvidia-smi"]:
            return run(command, *args, **kwargs)
        return run(["echo", product], *args, **kwargs)

    return asked
