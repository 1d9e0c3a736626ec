"""Imports a user's file without running what stands around its functions, its numbers traceable.

Statements of the module run one by one. What fails (a package that is not here, a device that is not there) leaves a
placeholder that says why once it is used; what merely does something (a benchmark, a print, a test) is left out. Other
files of the same package are imported in the same way.
"""

import __future__

import ast
import functools
import importlib
import importlib.util
import linecache
import re
import sys
import types
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from tilewright.workers.intake.calls.objects import MODULES
from tilewright.workers.intake.source.decorators import is_kernel, undecorated_kernel
from tilewright.workers.intake.source.hooked_calls import HOOKS, CallHooks

_KEPT_CALLS = ("sys.", "os.", "warnings.", "logging.")
_HARMLESS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.If,
    ast.Try,
)


class MissingName:
    """Stands for a name whose statement failed. Whatever is done with it says why; a logger takes all, silently."""

    def __init__(self, name: str, why: str) -> None:
        self.why = f"{name} is not there: {why}"
        self._quiet = name.strip("_").lower() in ("logger", "log", "logging")

    def __getattr__(self, name: str) -> Any:
        if self._quiet and name not in ("fn", "rewriter") and not name.startswith("__"):
            return self  # no kernel, and nothing that holds one
        raise AttributeError(self.why)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._quiet:
            return None
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | type):
            return args[0]  # a decorator that is not here decorates nothing
        raise ModuleNotFoundError(self.why)

    def __getitem__(self, item: Any) -> "MissingName":
        return self  # of an annotation

    def __or__(self, other: Any) -> "MissingName":
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


class _Package(types.ModuleType):
    """A package that is not covered by a part of it: after ``from .scale import scale``, ``scale`` is the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) and name in self.__dict__.get("_tilewright_origins", ()):
            return
        super().__setattr__(name, value)


class PackageLoader(MetaPathFinder, Loader):
    """Finds and runs the modules below ``root`` (the folder that holds the user's top package). ``whole``: packages'
    own ``__init__`` runs at once."""

    def __init__(self, root: Path, package: str, traced: bool = True, whole: bool = False) -> None:
        self._root = root
        self._package = package
        self._traced = traced
        self._whole = whole
        self.user = ""
        """The name of the user's own module."""

    def home(self, path: Path) -> Path:
        """The folder of the user's code: of the package that a file lies in, else of the file."""
        return self._root / self._package if self._package else path.parent

    def files(self, user: Path) -> dict[str, str]:
        """The texts of the user's file and of those that were loaded for it, by their places below the root."""
        loaded = [m for m in list(sys.modules.values()) if getattr(m, "__loader__", None) is self]
        places = {user, *(Path(m.__file__) for m in loaded if m.__file__)}
        return {p.relative_to(self._root).as_posix(): p.read_text(encoding="utf-8-sig") for p in sorted(places)}

    def place(self, path: Path) -> str:
        """A file's place below the root."""
        return path.relative_to(self._root).as_posix()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top != self._package if self._package else top in sys.stdlib_module_names:
            return None
        place = self._root.joinpath(*fullname.split("."))
        if (place / "__init__.py").is_file():
            spec = importlib.util.spec_from_file_location(
                fullname, place / "__init__.py", loader=self, submodule_search_locations=[str(place)]
            )
        elif place.with_suffix(".py").is_file():
            spec = importlib.util.spec_from_file_location(fullname, place.with_suffix(".py"), loader=self)
        elif place.is_dir() and self._package:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
        else:
            return None
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Run its statements one by one, except for those of a package's own ``__init__``: its parts are loaded."""
        path = str(module.__file__)
        if Path(path).name == "__init__.py":
            module.__dict__["__getattr__"] = self._lazily(module, path)
        if self._whole or Path(path).name != "__init__.py":
            self.run(module, path)

    def _lazily(self, module: types.ModuleType, path: str) -> Any:
        """What a package's ``__init__`` imports, once asked for; for what it defines itself all of it runs."""
        origins: dict[str, tuple[str, str]] = {}
        module.__class__ = _Package
        module.__dict__["_tilewright_origins"] = origins
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8-sig"))):
            if isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                for item in node.names:
                    origins[item.asname or item.name] = (base, item.name)

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if name in origins:
                base, item = origins[name]
                source = importlib.import_module(base, module.__name__)
                if source is module:
                    return importlib.import_module(f"{module.__name__}.{item}")
                if hasattr(source, item):
                    return getattr(source, item)
                return importlib.import_module(f"{source.__name__}.{item}")
            if importlib.util.find_spec(f"{module.__name__}.{name}") is not None:
                return importlib.import_module(f"{module.__name__}.{name}")
            if not HOOKS.keys() <= module.__dict__.keys():
                self.run(module, path)
                if name in module.__dict__:
                    return module.__dict__[name]
            raise AttributeError(f"{module.__name__} has no {name}")

        return find

    def run(self, module: types.ModuleType, path: str, wanted: str | None = None) -> None:
        """``wanted``: assignments are run only where that function may need them."""
        text = Path(path).read_text(encoding="utf-8-sig")
        linecache.getlines(path)
        module.__dict__.update(HOOKS)
        tree = ast.parse(text, path)
        needed = _reachable_names(tree, wanted) if wanted else None
        future = [
            n.name for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__" for n in s.names
        ]
        flags = __future__.annotations.compiler_flag if "annotations" in future else 0
        # what the user's file does below its functions is a benchmark; what a package's file does sets it up
        helper = wanted is None and bool(self._package) and module.__name__ != self.user
        for statement in self._quick(tree.body) if helper else tree.body:
            if not _keeps_statement(statement, needed, helper):
                continue
            hooked = ast.fix_missing_locations(CallHooks().visit(statement)) if self._traced else statement
            if isinstance(hooked, ast.FunctionDef | ast.ClassDef):
                kernel = is_kernel(statement)
                hooked.decorator_list = [d for d in hooked.decorator_list if not _absent(d, module, kernel)]
            why = _run_statement(hooked, path, flags, module)
            if why and isinstance(hooked, ast.FunctionDef):  # it may only annotate with what is not here
                why = _run_statement(hooked, path, flags | __future__.annotations.compiler_flag, module)
            if isinstance(hooked, ast.FunctionDef) and is_kernel(statement):
                why = undecorated_kernel(hooked, why, module, partial(_run_statement, hooked, path, flags, module))
            if why and isinstance(hooked, ast.ImportFrom):
                _usual(hooked, module)
            for name in _bound(statement) if why else ():
                module.__dict__.setdefault(name, MissingName(name, why))

    def _quick(self, body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """Statements; of a ``try`` that imports a package of others that nothing has loaded those of its way out, if
        these leave no name out that is used: what a helper can do without may take ten seconds."""
        for statement in body:
            if isinstance(statement, ast.Try) and statement.handlers and _loads(statement) and not self._own(statement):
                way = statement.handlers[0].body
                lost = {n for s in statement.body for n in _bound(s)} - {n for s in way for n in _bound(s)}
                others = (n for s in body if s is not statement for n in ast.walk(s))
                if lost.isdisjoint(n.id for n in others if isinstance(n, ast.Name)):
                    yield from way
                    continue
            yield statement

    def _own(self, statement: ast.stmt) -> bool:
        """Whether a statement imports of this package, or of one that is loaded."""
        made = [n for n in ast.walk(statement) if isinstance(n, ast.Import | ast.ImportFrom)]
        names = {(getattr(n, "module", None) or n.names[0].name).partition(".")[0] for n in made}
        near = any(getattr(n, "level", 0) for n in made)
        return near or not names.isdisjoint({self._package, *sys.modules})


def forget(function: Any) -> None:
    """Empty the caches of what was loaded for a function: a tensor of an earlier recording is none of a later one."""
    loaded = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
    for names in (getattr(function, "__globals__", {}), *(n for n in loaded if HOOKS.keys() <= n.keys())):
        for value in list(names.values()):
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def _run_statement(statement: ast.AST, path: str, flags: int, module: types.ModuleType) -> str:
    """Run a statement of a module; what it raises, empty where it does not."""
    try:
        code = compile(ast.Module([statement], []), path, "exec", flags, dont_inherit=True)  # type: ignore[list-item]
        exec(code, module.__dict__)
    except Exception as error:  # noqa: BLE001 - whatever the user's statement raises
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


_USUAL = {
    **MODULES,
    "F": "torch.nn.functional",
    "nn": "torch.nn",
    "lax": "jax.lax",
    "pl": "jax.experimental.pallas",
    "pltpu": "jax.experimental.pallas.tpu",
}


def _usual(node: ast.ImportFrom, module: types.ModuleType) -> None:
    """What everybody calls so, where a package that is not here would have handed it on (``from x import tl``)."""
    for item in node.names:
        name = item.asname or item.name
        if name in _USUAL and importlib.util.find_spec(_USUAL[name].partition(".")[0]):
            module.__dict__.setdefault(name, importlib.import_module(_USUAL[name]))


def _absent(decorator: ast.expr, module: types.ModuleType, kernel: bool) -> bool:
    """Whether a decorator, or of another function than a ``kernel`` what it is given, is of a package that is not here:
    it decorates nothing."""
    node = decorator
    while kernel and isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    names = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
    return any(isinstance(module.__dict__.get(name), MissingName) for name in names)


_REGISTRATION = re.compile(r"(\w+\.)*(def(vjp|jvp|jvps)|define|impl|\w*register\w*)\(")


def _registers(statement: ast.Expr) -> bool:
    """Whether it makes a rule or an operation known, of a function that stands elsewhere."""
    return _REGISTRATION.match(ast.unparse(statement)) is not None


def _keeps_statement(statement: ast.stmt, needed: set[str] | None, helper: bool) -> bool:
    if isinstance(statement, ast.Expr):
        if helper and isinstance(statement.value, ast.Call):
            return True
        return isinstance(statement.value, ast.Call) and (
            _registers(statement) or ast.unparse(statement).startswith(_KEPT_CALLS)
        )
    if not isinstance(statement, _HARMLESS):
        return False
    if isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test):
        return False
    if needed is not None and (isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) or _loads(statement)):
        return any(name in needed or name == "*" for name in _bound(statement))
    return True


def _loads(statement: ast.stmt) -> bool:
    """Whether it does nothing but import, also with a way out, and of what is not loaded: seconds, at times."""
    if isinstance(statement, ast.Try):
        parts: list[ast.stmt] = [*statement.body, *(s for h in statement.handlers for s in h.body)]
        if not all(isinstance(part, ast.Import | ast.ImportFrom | ast.Assign | ast.Pass) for part in parts):
            return False
    elif not isinstance(statement, ast.Import | ast.ImportFrom):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module not in sys.modules:
            return True
        if isinstance(node, ast.Import) and any(item.name not in sys.modules for item in node.names):
            return True
    return False


def _bound(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for item in node.names:
                yield item.asname or item.name.split(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def _reachable_names(tree: ast.Module, wanted: str) -> set[str]:
    """Names that a function may reach, through whatever the module defines."""
    makers: dict[str, list[ast.stmt]] = {}
    left, seen = [wanted.split(".")[0]], set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # what a function calls its own variables is nobody else's
            makers.setdefault(statement.name, []).append(statement)
        elif not isinstance(statement, ast.Expr):
            for name in _bound(statement):
                makers.setdefault(name, []).append(statement)
        elif _registers(statement):
            left += [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            nodes = (node for made in makers.get(name, ()) for node in ast.walk(made))
            left += {node.id for node in nodes if isinstance(node, ast.Name)} - seen
    return seen


def import_place(path: Path) -> tuple[Path, list[str]]:
    """The folder from which a file's package is imported, and the file's place below it.

    A package's folders have an ``__init__.py``, or the file imports from so many folders above it, or one of them has
    the name by which the file imports its package.
    """
    imported, above = set(), 0
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8-sig"))):
        if isinstance(node, ast.Import):
            imported |= {item.name.partition(".")[0] for item in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = max(above, node.level)
            imported |= {node.module.partition(".")[0]} if node.level == 0 and node.module else set()
    parts, root = [path.stem], path.parent
    while (root / "__init__.py").is_file() or len(parts) <= above:
        parts.insert(0, root.name)
        root = root.parent
    for folder in (root, *root.parents) if parts[0] not in imported else ():
        if folder.name in imported and not _is_importable(folder.name, elsewhere=folder):
            return folder.parent, [*path.parent.relative_to(folder.parent).parts, path.stem]
    return root, parts


def _launch(kernel: Any, grid: Any, *args: Any, **options: Any) -> Any:
    """What Helion's output launches its kernels by."""
    return kernel[grid](*args, **{k: v for k, v in options.items() if k not in ("ptx_options", "launcher")})


def _stand_ins() -> None:
    """Give a launcher to files that Helion wrote, where it is not installed."""
    if "helion" not in sys.modules and importlib.util.find_spec("helion") is None:
        runtime = types.ModuleType("helion.runtime")
        runtime.__dict__["default_launcher"] = _launch
        package = types.ModuleType("helion")
        package.__dict__.update(runtime=runtime, __path__=[])
        sys.modules.update({"helion": package, "helion.runtime": runtime})


def _is_importable(name: str, elsewhere: Path | None = None) -> bool:
    """Whether a package can be imported, also from another folder than ``elsewhere``, which PYTHONPATH may name; a
    folder of that name without a module, such as its clone's, is none."""
    found = importlib.util.find_spec(name)
    places = [Path(place) for place in (found and found.submodule_search_locations) or ()]
    return found is not None and found.origin is not None and elsewhere not in places


def package_of(path: Path) -> PackageLoader | None:
    """What finds the modules of the package that a file lies in; None where the package is installed."""
    root, parts = import_place(path.resolve())
    if len(parts) > 1 and _is_importable(parts[0]):
        return None
    return PackageLoader(root, parts[0] if len(parts) > 1 else "", False)


def load(
    path: Path, function: str | None, *, traced: bool = True, root: Path | None = None, whole: bool = False
) -> tuple[types.ModuleType, PackageLoader]:
    """The module of a file, as part of the package it lies in. ``root``: the folder that holds that package, where it
    is known. ``whole``: anew, with all that its packages do as they are imported, such as to fill a registry. Raises
    OSError, SyntaxError."""
    path = path.resolve()
    if root is None:
        root, parts = import_place(path)
    else:
        root = root.resolve()
        parts = [*path.with_suffix("").relative_to(root).parts]
    for name, old in list(sys.modules.items()) if whole else ():
        if isinstance(getattr(old, "__loader__", None), PackageLoader):
            del sys.modules[name]
    if whole:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, PackageLoader)]
    loader = PackageLoader(root, parts[0] if len(parts) > 1 else "", traced, whole)
    if traced:
        from tilewright.workers.intake.source.torch_library import register_nothing

        register_nothing()
        _stand_ins()
    name = ".".join(parts) if len(parts) > 1 else f"tilewright_taken_{path.stem}".replace("-", "_")
    sys.meta_path.insert(0, loader)
    if str(root) not in sys.path:
        sys.path.append(str(root))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    for depth in range(1, len(parts)):
        importlib.import_module(".".join(parts[:depth]))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.user = name
    loader.run(module, str(path), function)
    return module, loader
