"""Finding operators: the families in this package, and a user's own folder of the same form."""

from __future__ import annotations

import importlib.util
import sys
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
    folder = HERE / family if family in families() else Path(family)
    if not (folder / "operator.py").is_file():
        known = ", ".join(families())
        raise UnknownOperator(
            f"operator: {family!r} is neither a known family ({known}) nor a folder with an operator.py"
        )
    return _module(folder).operators()


def _module(folder: Path) -> ModuleType:
    if folder.parent == HERE:
        return importlib.import_module(f"tilewright.seeds.{folder.name}.operator")
    name = f"tilewright_user_{folder.name}"
    path = folder.resolve() / "operator.py"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownOperator(f"operator: {path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
