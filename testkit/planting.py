"""Changes of a kernel module of Triton, each of its syntax tree at one place or at all of them."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Change = Callable[[ast.AST], ast.AST | None]


@dataclass(frozen=True)
class Kind:
    """A change; at how many places a module is changed, one at a time, or (0) at all of them at once; in the kernels,
    or in ``launch``."""

    change: Change
    places: int = 1
    launch: bool = False


def called(node: ast.AST, *names: str) -> ast.Call | None:
    return node if isinstance(node, ast.Call) and ast.unparse(node.func) in names else None


def expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((k for k in call.keywords if k.arg == name), None)


def planted(source: str, kinds: Mapping[str, Kind]) -> Iterator[tuple[str, str]]:
    """Name and source of each changed module, one for each of the first places of a kind; none that says the same."""
    seen = {ast.unparse(ast.parse(source))}
    for name, kind in kinds.items():
        for number in range(max(kind.places, 1)):
            tree = ast.parse(source)
            walker = _Planted(kind.change, number if kind.places else None)
            for function in tree.body:
                if isinstance(function, ast.FunctionDef) and _meant(function, kind.launch):
                    walker.visit(function)
            if not walker.done:
                break
            text = ast.unparse(ast.fix_missing_locations(tree))
            if text not in seen:
                seen.add(text)
                yield (f"{name} ({number + 1})" if kind.places > 1 else name), text


def _meant(function: ast.FunctionDef, launch: bool) -> bool:
    if launch or function.name == "launch":
        return launch and function.name == "launch"
    return not function.name.startswith(("torch_", "copy_argument"))


class _Planted(ast.NodeTransformer):
    """Changes the place of a number, or every one."""

    def __init__(self, change: Change, place: int | None) -> None:
        self._change, self._place, self._met, self.done = change, place, 0, False

    def visit(self, node: ast.AST) -> ast.AST:
        if self._place is not None and self.done:
            return node
        made = self._change(copy.deepcopy(node))
        if made is not None:
            self._met += 1
            if self._place is None or self._met - 1 == self._place:
                self.done = True
                return ast.copy_location(made, node)
        found: ast.AST = self.generic_visit(node)
        return found
