"""Every Triton launch of a program: function, file, arguments, configuration, grid and one real set of values."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from tilewright.library import launch_replacement as served
from tilewright.library.launch_replacement import Signature, constants_of, names_of, signature

MOST_LAUNCH_BYTES, MOST_BYTES = 2 << 30, 16 << 30
"""Bytes of values that are kept of one launch, and of all."""

MOST_SIGNATURES = 32
"""Distinct launches of one kernel whose values are kept."""

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


@dataclass
class Values:
    """The storages behind a launch's tensors as they were before it, by position or name of the argument.

    ``storages``: bytes, one for each distinct storage. ``views``: argument to storage, dtype, size, stride, offset.
    """

    storages: list[torch.Tensor]
    views: dict[int | str, tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], int]]

    @classmethod
    def of(cls, tensors: Mapping[int | str, torch.Tensor]) -> "Values":
        """Copies of the storages that tensors lie in."""
        found = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors.values()}
        order = {address: n for n, address in enumerate(found)}
        copies = [torch.empty(0, dtype=torch.uint8, device=s.device).set_(s).clone() for s in found.values()]
        return cls(
            copies,
            {
                at: (
                    order[t.untyped_storage().data_ptr()],
                    t.dtype,
                    tuple(t.shape),
                    tuple(t.stride()),
                    t.storage_offset(),
                )
                for at, t in tensors.items()
            },
        )

    def tensors(self, storages: Sequence[torch.Tensor]) -> dict[int | str, torch.Tensor]:
        """The arguments as views of such copies."""
        bases = {at: storages[n].view(dtype) for at, (n, dtype, *_) in self.views.items()}
        return {
            at: bases[at].as_strided(size, stride, bases[at].storage_offset() + offset)
            for at, (_, _, size, stride, offset) in self.views.items()
        }


def stored_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Of the distinct storages that tensors lie in."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(s.nbytes() for s in storages.values())


@dataclass
class Launch:
    """A distinct launch of a kernel. ``outer`` is what the program launches, ``module`` and ``name`` where it is found,
    ``chosen`` what tuners and heuristics added, ``bytes`` those of the distinct memory that the tensors see."""

    kernel: str
    outer: Any
    module: str
    name: str
    place: str
    key: Signature
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grid: Any
    sizes: tuple[int, ...]
    chosen: dict[str, Any]
    bytes: int
    source: str
    text: str
    """The tensors with dtype and shape, and the integers."""
    number: int = 0
    values: Values | None = None
    left: str = ""
    """Why the kernel cannot be replaced."""


@dataclass(frozen=True)
class Event:
    """A launch in the order of the program. ``number``: its distinct launch; ``None`` for one of Inductor's kernels."""

    kernel: str
    number: int | None
    captured: bool


@dataclass(frozen=True)
class Generated:
    """A kernel that Inductor generated, as it was launched first: its file, tensors, configuration, and their bytes."""

    place: str
    text: str
    chosen: str
    bytes: int


@contextlib.contextmanager
def patched(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """While open, ``around(before, this, ...)`` stands for a method."""
    before = getattr(owner, name)
    stand_in = served.untraced(lambda this, /, *args, **kwargs: around(before, this, *args, **kwargs))
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, before)


class LaunchRecorder:
    """While entered, once or again, notes the launches. ``keep_values``: also clones the tensors of the first of each
    kind."""

    def __init__(self, keep_values: bool = False) -> None:
        self.keep_values = keep_values
        self.launches: list[Launch] = []
        self.events: list[Event] = []
        self.generated: dict[str, Generated] = {}
        self.codes: dict[Any, str] = {}
        """Code of the functions that stood above a launch, with the package of its kernel."""
        self._known: dict[tuple[int, Signature], Launch] = {}
        self._kept = 0
        self._under = threading.local()
        """What a thread is in: the outermost launch, and whether a tuner times it."""
        self._patches = contextlib.ExitStack()
        self._places: dict[int, tuple[str, str]] = {}

    def __enter__(self) -> Self:
        from triton.runtime import autotuner, interpreter, jit

        kinds = (jit.JITFunction, interpreter.InterpretedFunction, autotuner.Autotuner, autotuner.Heuristics)
        places: list[tuple[Any, str, Callable[..., Any]]] = [(kind, "run", self._run) for kind in kinds]
        places.append((autotuner.Autotuner, "_bench", self._bench))
        with contextlib.suppress(ImportError):  # a torch without Inductor
            from torch._inductor.runtime.triton_heuristics import CachingAutotuner

            places.append((CachingAutotuner, "run", self._run_generated))
        for owner, name, around in places:
            self._patches.enter_context(patched(owner, name, around))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _bench(self, before: Any, this: Any, /, *args: Any, **kwargs: Any) -> Any:
        outer, self._under.timing = getattr(self._under, "timing", False), True
        try:
            return before(this, *args, **kwargs)
        finally:
            self._under.timing = outer

    def _run(self, before: Any, this: Any, /, *args: Any, **kwargs: Any) -> Any:
        if getattr(self._under, "timing", False) or kwargs.get("warmup"):
            return before(this, *args, **kwargs)
        outermost = getattr(self._under, "outer", None) is None
        if outermost:
            self._under.outer = (this, args, dict(kwargs), self._values_of(this, args, kwargs))
        try:
            if not hasattr(this, "fn") or not hasattr(this.fn, "run"):
                self._note(this, args, kwargs)
            return before(this, *args, **kwargs)
        finally:
            if outermost:
                self._under.outer = None

    def _run_generated(self, before: Any, this: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("benchmark_run"):
            return before(this, *args, **kwargs)
        result = self._bench(before, this, *args, **kwargs)
        name = this.fn.__name__
        if name not in self.generated:
            tensors = [a for a in args if torch.is_tensor(a)]
            config = this.launchers[0].config if this.launchers else ""
            text = " ".join(short(t) for t in tensors)
            self.generated[name] = Generated(str(this.filename), text, str(config), _bytes(tensors))
        self.events.append(Event(name, None, _capturing()))
        return result

    def _values_of(self, this: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values | None:
        """Copies of a launch that is seen first, taken before the tuner's trials, which may write."""
        if not self.keep_values or _capturing():
            return None
        key = signature(args, _arguments(kwargs), constants_of(this))
        known = sum(owner == id(this) for owner, _ in self._known)
        if key is None or (id(this), key) in self._known or known >= MOST_SIGNATURES:
            return None
        given: dict[int | str, Any] = dict(enumerate(args)) | dict(kwargs)
        tensors = {at: v for at, v in given.items() if torch.is_tensor(v)}
        wide = [t.view(torch.int64) for t in tensors.values() if t.dtype in (torch.int64, torch.uint64)]
        if any(bool((t.abs() >= served.LEAST_ADDRESS).any()) for t in wide):  # addresses
            return None  # what lies there would be the program's own when the launch is run again
        size = stored_bytes(tensors.values())
        if size > MOST_LAUNCH_BYTES or self._kept + size > MOST_BYTES:
            return None
        self._kept += size
        return Values.of(tensors)

    def _note(self, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        outer, given, named, values = self._under.outer
        plain = _arguments(named)
        key = signature(given, plain, constants_of(outer))
        kernel = inner.fn.__name__
        if key is None:
            self.events.append(Event(kernel, None, _capturing()))
            return
        found = self._known.get((id(outer), key))
        if found is None:
            found = self._known[(id(outer), key)] = self._launch(outer, inner, key, given, plain, args, kwargs)
            found.number = len(self.launches)
            self.launches.append(found)
            self._note_callers(str(inner.fn.__module__).partition(".")[0])
        if found.values is None:
            found.values = values
        self.events.append(Event(kernel, found.number, _capturing()))

    def _note_callers(self, package: str) -> None:
        frame = sys._getframe(2)
        while frame is not None:
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] == package:
                self.codes.setdefault(frame.f_code, package)
            frame = frame.f_back  # type: ignore[assignment]

    def _launch(
        self,
        outer: Any,
        inner: Any,
        key: Signature,
        given: tuple[Any, ...],
        plain: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Launch:
        grid = kwargs.get("grid")
        bound = {**dict(zip(inner.arg_names, args, strict=False)), **kwargs}
        try:
            sizes = grid(bound) if callable(grid) else grid
            sizes = tuple(int(n) for n in (sizes if isinstance(sizes, tuple | list) else (sizes,)))
        except Exception:  # noqa: BLE001 - a grid that cannot be asked is the program's own, and it will be
            sizes = ()
        chosen = {
            k: v for k, v in _arguments(kwargs).items() if k not in plain and isinstance(v, int | float | bool | str)
        }
        module, name = self._places.setdefault(id(outer), _place(outer, inner))
        code = inner.fn.__code__
        tensors = [v for v in (*given, *plain.values()) if torch.is_tensor(v)]
        left = "" if name else "no module has a name for it"
        if any(config.pre_hook is not None for config in getattr(tuner_of(outer), "configs", ())):
            left = "a function of its configuration runs before each launch"
        elif _is_called(outer):
            left = "another kernel calls it"
        return Launch(
            inner.fn.__name__,
            outer,
            module,
            name,
            f"{code.co_filename}:{code.co_firstlineno}",
            key,
            tuple(None if torch.is_tensor(v) else v for v in given),
            {k: None if torch.is_tensor(v) else v for k, v in plain.items()},
            grid,
            sizes,
            chosen,
            _bytes(tensors),
            str(getattr(inner, "src", "")),
            _text(inner.arg_names, given, plain),
            0,
            None,
            left,
        )


def tuner_of(kernel: Any) -> Any:
    """The ``triton.autotune`` of a kernel, which ``triton.heuristics`` may surround; None where it has none."""
    while kernel is not None and not hasattr(kernel, "configs"):
        kernel = getattr(kernel, "fn", None)
    return kernel


def is_wrapped(kernel: Any) -> bool:
    """Whether a tuner or heuristics look at each launch, which costs the host more than a replacement does."""
    return served.innermost(kernel) is not kernel


def _is_called(kernel: Any) -> bool:
    """Whether the code of another kernel names it: what stands in for a kernel is none, and does not compile there."""
    from triton.runtime import jit

    others = getattr(jit, "_triton_jit_function_registry", {}).values()
    functions = [other.fn for other in others if other.fn is not None]
    return any(f.__globals__.get(name) is kernel for f in functions for name in f.__code__.co_names)


def _arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k not in ("grid", "warmup", "debug", "instrumentation_mode")}


def _place(outer: Any, inner: Any) -> tuple[str, str]:
    """The module-level name of a kernel, of its own module if it has one there, or that in a class of it; empty for
    none."""
    found = [(module.__name__, name) for module, name in names_of(outer)]
    own = [place for place in found if place[0] == inner.fn.__module__]
    classes = [v for v in vars(sys.modules.get(inner.fn.__module__, sys)).values() if isinstance(v, type)]
    within = (
        (of.__module__, f"{of.__qualname__}.{name}")
        for of in classes
        for name, value in vars(of).items()
        if getattr(value, "__func__", value) is outer and "<" not in of.__qualname__
    )
    return (own or found or [*within] or [("", "")])[0]


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of distinct elements: of tensors that share memory, the largest counts."""
    largest: dict[int, int] = {}
    for t in tensors:
        reach = sum((size - 1) * abs(step) for size, step in zip(t.shape, t.stride(), strict=True)) + 1
        size = min(t.numel(), reach) * t.element_size() if t.numel() else 0
        pointer = t.data_ptr()
        largest[pointer] = max(largest.get(pointer, 0), size)
    return sum(largest.values())


def _text(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    return " ".join(f"{k}={short(v)}" for k, v in named.items() if v is not None and not callable(v))


def short(value: Any) -> str:
    if torch.is_tensor(value):
        return f"{str(value.dtype).rpartition('.')[2]}{list(value.shape)}"
    return repr(value)
