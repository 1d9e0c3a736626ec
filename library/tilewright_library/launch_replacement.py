"""Triton kernels and tuned functions of a program, replaced at their modules' names. Standard library and Triton only.

A replacement serves exactly the launches that it lists: dtype, shape, strides and alignment of every tensor, every
integer and option. All other launches go to the kernel that stood at the name before. It takes and fills the tensors
that the program's own code hands it, so that ``torch.autograd.Function`` and CUDA graphs see no difference.
"""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

ALIGNMENT = 16
"""Bytes: Triton compiles a pointer that is a multiple of it in another way."""

LEAST_ADDRESS = 1 << 40
"""An integer from here on may be an address, and what lies there is not compared."""

Signature = tuple[Any, ...]
Configuration = Mapping[str, Any]
"""Constants and options of a launch by name: tile sizes, ``num_warps``, ``num_stages``."""


def signature(
    args: Sequence[Any], kwargs: Mapping[str, Any], constants: Collection[int | str] = ()
) -> Signature | None:
    """What a launch is recognised by; None for a launch with an argument of a kind that is not compared.

    ``constants``: places and names of arguments that are compiled in (``constants_of``). Tensors also say which of them
    overlap, and how: a kernel that may write over what it reads does not serve where it was not tried.
    """
    parts: list[Any] = []
    spans: list[tuple[int, int]] = []
    for place, value in (*enumerate(args), *kwargs.items()):
        part = _described(value, place in constants, spans)
        if part is NotImplemented:
            return None
        parts.append(part if type(place) is int else (place, part))
    return tuple(parts)


def _described(value: Any, constant: bool, spans: list[tuple[int, int]]) -> Any:
    kind = type(value)
    if kind is bool or value is None or kind is str or (kind is int and abs(value) < LEAST_ADDRESS):
        return (kind.__name__, value)
    if kind is float:  # of a number that a kernel is only given, no code depends
        return ("float", repr(value)) if constant else ("float",)
    if hasattr(value, "untyped_storage"):
        shape, stride, address = tuple(value.shape), tuple(value.stride()), value.data_ptr()
        same = _overlap(address, shape, stride, value.element_size(), spans)
        return ("tensor", str(value.dtype), shape, stride, address % ALIGNMENT == 0, same)
    if (kind.__module__ == "torch" and kind.__name__ == "dtype") or kind.__module__.startswith("triton.language"):
        return (kind.__name__, str(value))
    return NotImplemented


def _overlap(
    begin: int, shape: Sequence[int], stride: Sequence[int], size: int, spans: list[tuple[int, int]]
) -> int | tuple[int, int]:
    """The number of the first tensor that begins there; or of one that reaches into its memory, with the bytes between.
    ``spans``: from where to where the tensors before lie, to which this one is added."""
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    end = begin if 0 in shape else begin + (last + 1) * size
    spans.append((begin, end))
    pairs = enumerate(spans)  # this one begins where it begins
    number, first = next((n, a) for n, (a, b) in pairs if begin == a or (begin < b and a < end))
    return number if begin == first else (number, begin - first)


def constants_of(kernel: Any) -> frozenset[int | str]:
    """Places and names of the arguments that a kernel is compiled with."""
    found = innermost(kernel)
    marked = getattr(found.fn, "__annotations__", {})
    names = [name for name in found.arg_names if "constexpr" in str(marked.get(name))]
    return frozenset((*names, *map(found.arg_names.index, names)))


@dataclass(eq=False)
class Counted:
    """What replaces ``module.name``. ``calls`` counts those that it serves, ``others`` those that the original does."""

    module: str
    name: str
    calls: int = field(default=0, init=False, repr=False)
    others: int = field(default=0, init=False, repr=False)
    installed: bool = field(default=False, init=False, repr=False)
    stand_ins: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def label(self) -> str:
        return f"{self.module}.{self.name}"

    def stand_in(self, original: Any) -> Any:
        """What stands where the original stood. Raises NotInstalled."""
        raise NotImplementedError


@dataclass
class Replacement(Counted):
    """Launches of a kernel that run otherwise: by signature, the configuration of each.

    ``winner``: the kernel that runs instead, with the same parameters; None for the program's own kernel, compiled
    with another configuration. ``pinned``: the configuration is what the kernel's own tuner had chosen, so that the
    tuner need not run.
    """

    launches: Mapping[Signature, Configuration]
    winner: Any = None
    pinned: bool = False
    loaded: set[Signature] = field(default_factory=set, init=False, repr=False)
    """Launches whose compiled kernels this process has loaded."""

    def stand_in(self, original: Any) -> Any:
        if not hasattr(original, "run"):
            raise NotInstalled(f"{self.label} is no Triton kernel here")
        return Launcher(original, self)


def call_signature(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature | None:
    """What a call of a function is recognised by; None for one with a tensor that lies in no memory.

    Of tensors the layout, which begin at one address and which are differentiated; of plain arguments, also within
    lists and such, the values; of others the types; and the modes of autograd and autocast.
    """
    torch = importlib.import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    grad, cast = torch.is_grad_enabled(), torch.is_autocast_enabled(device)
    addresses: list[int] = []

    def described(value: Any) -> Any:
        if torch.is_tensor(value):
            addresses.append(value.data_ptr())
            layout = str(value.dtype), tuple(value.shape), value.stride(), value.device.type
            wanted, same = grad and value.requires_grad, addresses.index(addresses[-1])
            plain = type(value) in (torch.Tensor, torch.nn.Parameter)
            return ("" if plain else type(value).__name__, *layout, wanted, same)
        if isinstance(value, list | tuple):
            return (type(value).__name__, *map(described, value))
        if isinstance(value, dict):
            return ("dict", *((repr(name), described(part)) for name, part in value.items()))
        known = isinstance(value, bool | int | float | str) or value is None
        return repr(value) if known else type(value).__qualname__

    try:
        named = tuple((name, described(value)) for name, value in sorted(kwargs.items()))
        modes = grad, str(torch.get_autocast_dtype(device)) if cast else ""
        return (modes, tuple(map(described, args)), named)
    except RuntimeError:
        return None


@dataclass
class Option(Counted):
    """A keyword of a function that the program leaves at its default, with another value.

    ``known``: the calls that get it, by ``call_signature``.
    """

    option: str
    value: int
    known: Collection[Signature] = ()
    pinned: bool = field(default=False, init=False, repr=False)

    @property
    def label(self) -> str:
        return f"{self.module}.{self.name}({self.option}={self.value})"

    def stand_in(self, original: Any) -> Any:
        if not callable(original):
            raise NotInstalled(f"{self.module}.{self.name} is no function here")
        torch = importlib.import_module("torch")

        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self.installed:  # compiled again for each other count
                return original(*args, **kwargs)
            if self.option in kwargs or call_signature(args, kwargs) not in self.known:
                self.others += 1
                return original(*args, **kwargs)
            self.calls += 1
            return original(*args, **{**kwargs, self.option: self.value})

        vars(called).update(_original=original, _replacement=self)
        return called


@dataclass
class Winner(Counted):
    """A function that runs as ``tilewright tune`` made it: its winner serves the calls that were tuned.

    ``name``: of the function in ``module``, or ``Class.apply`` of an autograd Function. ``file``: the winner's module,
    beside the file that installs it.
    """

    file: str
    pinned: bool = field(default=False, init=False, repr=False)

    def stand_in(self, original: Any) -> Any:
        winner, served = winner_in(Path(__file__).parent / self.file)

        def other(*args: Any, **kwargs: Any) -> Any:
            self.calls, self.others = self.calls - 1, self.others + 1
            return original(*args, **kwargs)

        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return (winner if self.installed else other)(*args, **kwargs)

        served["function"] = other  # and not what the module holds now, which is the winner
        found = functools.wraps(original)(untraced(called))
        vars(found).update(_original=original, _replacement=self)
        return found


def winner_in(path: Path) -> tuple[Any, dict[str, Any]]:
    """The winner of a module that ``tilewright tune`` wrote, and what it says of it. Raises NotInstalled."""
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, module.SERVED["winner"]), module.SERVED
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise NotInstalled(f"{path} is no winner's module, or of an earlier tilewright: {what}") from error


def innermost(kernel: Any) -> Any:
    """The function below ``triton.autotune`` and ``triton.heuristics``."""
    while hasattr(kernel, "fn") and hasattr(kernel.fn, "run"):
        kernel = kernel.fn
    return kernel


class Launcher:
    """Stands where a Triton kernel stood; where it is still known after it was uninstalled, for that kernel.

    A launch like an earlier one goes to the compiled kernel at once: neither Triton nor a tuner looks at its arguments.
    """

    def __init__(self, original: Any, replacement: Replacement) -> None:
        self._original, self._replacement = original, replacement
        self._kernel = innermost(original if replacement.winner is None else replacement.winner)
        self._known = dict(replacement.launches)
        self._places = {name: n for n, name in enumerate(self._kernel.arg_names)}
        parameters = inspect.signature(self._kernel.fn).parameters.values()
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._constants = constants_of(original)
        self._ready: dict[tuple[Any, ...] | None, tuple[Any, Any]] = {}
        """Compiled kernels by what is compared of a launch, as it is handed over."""
        torch = importlib.import_module("torch")
        self._tensors = (torch.Tensor, torch.nn.Parameter)
        self._device = torch.cuda.current_device if torch.cuda.is_available() else int
        self.run = untraced(self._run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(self.run, grid=grid, warmup=False)

    def _run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """The launch, by the winner where it is listed."""
        of = self._replacement
        if warmup or not of.installed:
            of.others += 1
            return self._original.run(*args, grid=grid, warmup=warmup, **kwargs)
        same = self._same(args, kwargs)
        if (ready := self._ready.get(same)) and self._reads_what_it_read():
            of.calls += 1
            compiled, found = ready
            bound = self._bound(found, args, kwargs)
            sizes = grid(bound) if callable(grid) else grid
            compiled[(*sizes, 1, 1)[:3]](*map(bound.__getitem__, self._places))
            return compiled
        key = signature(args, kwargs, self._constants)
        found = None if key is None else self._known.get(key)
        if found is None or not (key in of.loaded or self._loads(key)):
            of.others += 1
            return self._original.run(*args, grid=grid, warmup=warmup, **kwargs)
        of.calls += 1
        compiled = launch(self._kernel, self._places, found, grid, args, kwargs)
        if same and len(self._ready) < MOST_READY and hasattr(compiled, "packed_metadata"):
            self._ready[same] = (compiled, found)
        return compiled

    def _bound(self, found: Configuration, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**self._defaults, **dict(zip(self._places, args, strict=False)), **kwargs, **found}

    def _reads_what_it_read(self) -> bool:
        """Whether the values that the kernel's text reads of its module are those it was compiled with."""
        used = self._kernel.used_global_vals.items()
        return all(where.get(name, self) == value for (name, _), (value, where) in used)

    def _same(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """Of two launches for which it is equal, the signatures are; None where that takes a closer look."""
        if getattr(self._kernel, "pre_run_hooks", True):
            return None
        parts: list[Any] = [self._device(), len(args), *kwargs]
        addresses: list[int] = []
        storages: list[int] = []
        for n, value in enumerate((*args, *kwargs.values())):
            kind = type(value)
            if kind in _PLAIN:
                parts += (kind, value)
            elif kind in self._tensors:
                address = value.data_ptr()
                parts += (value.dtype, value.shape, value.stride(), address % ALIGNMENT)
                addresses.append(address)
                storages.append(address - value.storage_offset() * value.itemsize)
            elif kind.__name__ == "dtype":
                parts += (kind, str(value))
            elif kind is float:
                place = n if n < len(args) else parts[2 + n - len(args)]
                parts += (kind, repr(value) if place in self._constants else "")
            else:
                return None
        if len(set(storages)) < len(storages):  # where they may overlap
            first = [storages.index(storage) for storage in storages]
            parts += first
            parts += [address - addresses[n] for n, address in zip(first, addresses, strict=True)]
        return tuple(parts)

    def _loads(self, key: Any) -> bool:
        """Whether a kernel may be loaded: a stream that is captured allows none, and its graph would not be made."""
        cuda = importlib.import_module("torch").cuda
        if cuda.is_available() and cuda.is_current_stream_capturing():
            return False
        self._replacement.loaded.add(key)
        return True


MOST_READY = 4096
"""Launches that are known at once: places within a buffer may be other ones in each step."""

_PLAIN = frozenset((bool, int, str, type(None)))


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that torch.compile calls and does not look into: signatures ask for addresses. Without a device, only
    if torch.compile is there already: to import it takes a second."""
    torch = importlib.import_module("torch")
    needed = "torch._dynamo" in sys.modules or torch.cuda.is_available()
    found: Callable[..., Any] = torch.compiler.disable(function) if needed else function
    return found


def launch(
    kernel: Any,
    places: Mapping[str, int],
    configuration: Configuration,
    grid: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    warmup: bool = False,
) -> Any:
    """A launch with a configuration in place of what the caller says. ``places``: parameters by position."""
    given = list(args)
    named = dict(kwargs)
    for name, value in configuration.items():
        place = places.get(name, len(given))
        if place < len(given):
            given[place] = value
        else:
            named[name] = value
    return kernel.run(*given, grid=grid, warmup=warmup, **named)


def names_of(value: Any, but: Collection[str] = ()) -> Iterator[tuple[ModuleType, str]]:
    """Every module-level name of a value, in all modules ``but`` these."""
    bound = type(value) is MethodType  # made anew by each look at its class
    for module in [module for name, module in list(sys.modules.items()) if name not in but]:
        for name, known in list(getattr(module, "__dict__", {}).items()):
            if known is value or (bound and type(known) is MethodType and known == value):
                yield module, name


def _module(name: str) -> ModuleType:
    """A module; the program itself where that is the file which runs. Raises ImportError."""
    main = sys.modules.get("__main__")
    file = Path(getattr(main, "__file__", None) or "")
    if main is not None and name not in sys.modules and file.stem == name:
        return main
    return importlib.import_module(name)


def standing(found: Any) -> Any:
    """What stands there once what is installed no longer is looked through."""
    while not getattr(getattr(found, "_replacement", None), "installed", True):
        found = found._original
    return found


def _put_back_attribute(owner: type, name: str, stand_in: Any, before: Any) -> None:
    """Undo what stands in a class. ``before``: None where the class had inherited it."""
    if getattr(owner, name, None) is stand_in:
        delattr(owner, name) if before is None else setattr(owner, name, before)


def _put_back(
    replacement: Counted, stand_in: Any, original: Any, places: list[tuple[ModuleType, str]], modules: Collection[str]
) -> None:
    """Undo a replacement, also in modules that were imported since. Another installation's stand-in stays where it is,
    and is not given back to one that is installed no longer."""
    replacement.installed = False
    original = standing(original)
    for owner, name in (*places, *names_of(stand_in, modules)):
        if getattr(owner, name, None) is stand_in:
            setattr(owner, name, original)


class NotInstalled(RuntimeError):
    """The replacements were made for another device or another version of a module."""


@dataclass
class Installation:
    """Replacements that are put in place together. ``device``: the product they were proved on, "" for any.

    ``layers``: replaces linear layers while installed; made by ``tilewright_library``.
    """

    replacements: Sequence[Counted]
    device: str = ""
    layers: Any = None
    _undo: list[Callable[[], None]] = field(default_factory=list)
    _places: dict[tuple[str, int], list[tuple[ModuleType, str]]] = field(default_factory=dict)

    def install(self) -> None:
        """Put the winners in place. Raises NotInstalled, with nothing changed."""
        if self._undo:
            return
        self._check_device()
        try:
            for replacement in self.replacements:
                self._put(replacement)
            if self.layers is not None:
                self._undo.append(self.layers.uninstall)
                self.layers.install()
        except BaseException:
            self.uninstall()
            raise

    def _check_device(self) -> None:
        if not self.device:
            return
        cuda = importlib.import_module("torch").cuda
        found = {cuda.get_device_name(n) for n in range(cuda.device_count())}
        if found != {self.device}:
            raise NotInstalled(f"proved on {self.device}, and this machine has {', '.join(sorted(found)) or 'none'}")

    def _put(self, replacement: Counted) -> None:
        *within, last = replacement.name.split(".")
        try:
            owner = functools.reduce(getattr, within, _module(replacement.module))
            original = getattr(owner, last)
        except (ImportError, AttributeError) as error:
            raise NotInstalled(f"{replacement.label} does not exist here") from error
        key: Any = id(original)
        if type(original) is MethodType:
            key = (id(original.__self__), id(original.__func__))
        stand_in = replacement.stand_ins.get(key) or replacement.stand_in(original)
        replacement.stand_ins[key] = stand_in  # one object: torch.compile compiles again for each other
        known = (replacement.label, len(sys.modules))  # to look for names takes longer than a step
        if known not in self._places:
            self._places[known] = list(names_of(original))
        for module, name in self._places[known]:
            setattr(module, name, stand_in)
        if isinstance(owner, type):
            before = vars(owner).get(last)
            setattr(owner, last, staticmethod(stand_in))
            self._undo.append(lambda: _put_back_attribute(owner, last, stand_in, before))
        replacement.installed = True
        modules = frozenset(sys.modules)
        self._undo.append(lambda: _put_back(replacement, stand_in, original, self._places[known], modules))

    def uninstall(self) -> None:
        """Put the original kernels back."""
        while self._undo:
            self._undo.pop()()

    def counts(self) -> dict[str, int]:
        """How often each winner ran since it was installed first."""
        found = {replacement.label: replacement.calls for replacement in self.replacements}
        return found if self.layers is None else {**found, self.layers.label: self.layers.calls}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """The winners are in place while it is open."""
        self.install()
        try:
            yield
        finally:
            self.uninstall()
