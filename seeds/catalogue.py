"""Finding operators: the families in this package, and a user's own folder of the same form."""

import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from tilewright.seeds.operator import Operator

HERE = Path(__file__).parent


class UnknownOperator(LookupError):
    """No such family or recipe. The message is one sentence that lists what there is."""


def families() -> list[str]:
    """Names of the kernel families that ship with the package."""
    return sorted(folder.parent.name for folder in HERE.glob("*/operator.py"))


def load_operator(reference: str) -> Operator:
    """The operator called ``family/recipe``.

    ``family`` is one of ``families()`` or the path of a folder that holds an ``operator.py``
    (a path has a separator before its last part: ``./mine/recipe``).
    Raises UnknownOperator.
    """
    family, _, recipe = reference.rpartition("/")
    if not family:
        family, recipe = reference, ""
    recipes = _recipes(family)
    if recipe not in recipes:
        known = ", ".join(f"{family}/{name}" for name in recipes)
        raise UnknownOperator(f"operator: {reference!r} is unknown; {family} offers {known}")
    return recipes[recipe]


def all_operators() -> Mapping[str, Operator]:
    """Every operator of every shipped family by full name."""
    return {f"{family}/{name}": op for family in families() for name, op in _recipes(family).items()}


def _recipes(family: str) -> Mapping[str, Operator]:
    if family in families():
        return _shipped_operators(family)
    folder = Path(family)
    if not _is_file(folder / "operator.py"):
        known = ", ".join(families())
        raise UnknownOperator(
            f"operator: {family[:200]!r} is neither a known family ({known}) nor a folder with an operator.py"
        )
    return _declared_operators(folder)


@functools.cache
def _shipped_operators(family: str) -> Mapping[str, Operator]:
    """A shipped family's operators, whose kernels' texts take tenths of a second to compose."""
    return _declared_operators(HERE / family)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # longer than a path may be, or with a null character
        return False


def _declared_operators(folder: Path) -> Mapping[str, Operator]:
    """What a family's ``operators()`` returns. Raises UnknownOperator for a module of a user's that has none."""
    path = folder / "operator.py"
    try:
        found = _module(folder).operators()
        named = isinstance(found, Mapping) and all(isinstance(name, str) for name in found)
        # to ask what is an operator may have kernels composed
        shipped = folder.parent == HERE
        right = shipped or (named and found and all(isinstance(made, Operator) for made in found.values()))
    except UnknownOperator:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not _raised_in(error, path.resolve()):
            raise
        raise UnknownOperator(f"operator: {path} raises {error_line(error)}") from error
    if not right:
        raise UnknownOperator(f"operator: operators() of {path} returns no operators by name")
    return found


def error_line(error: BaseException) -> str:
    """An error in one line of at most 200 letters; its type alone where its text cannot be had."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - what a user's own error raises when it is asked
        text = type(error).__name__
    return " ".join(text.split())[:200]


def _raised_in(error: BaseException, path: Path) -> bool:
    """Whether a file itself raises an error, and no handler of a signal."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_filename == str(path)


def forget(folder: Path) -> None:
    """An operator's folder that was written again is read again."""
    sys.modules.pop(_users(folder), None)


def _users(folder: Path) -> str:
    """What the module of a user's operator is called."""
    return f"tilewright_user_{folder.name}"


def _module(folder: Path) -> ModuleType:
    if folder.parent == HERE:
        return importlib.import_module(f"tilewright.seeds.{folder.name}.operator")
    name = _users(folder)
    path = folder.resolve() / "operator.py"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownOperator(f"operator: {path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
