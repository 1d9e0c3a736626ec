"""Values that a wrapper reads from its tensors (``.item()``): handed to kernels where they lie instead.

A candidate's ``launch`` may not read a tensor's values: it is recorded on tensors without memory. A number that came
from a tensor and only goes on to kernels is loaded by them; where it decides a size or a branch, the call is refused.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.workers.intake.source import traced_numbers

READ = "read"
"""Among the atoms of every number that came from a tensor's values."""

_SAID = {"float": "({}).to(tl.float32)", "int": "({}).to(tl.int64)", "abs": "tl.abs({})"}
_OF_TWO = {"min": "tl.minimum({}, {})", "max": "tl.maximum({}, {})"}


def is_read(value: object) -> bool:
    """Whether a number came from a tensor's values."""
    return isinstance(value, traced_numbers.Traced) and READ in value.atoms


@dataclass(frozen=True)
class Head:
    """What stands at a kernel's head in place of a parameter: ``statement`` makes its value of the tensors and numbers
    that are given for it, ``given``: new parameter to the text of its argument, tensors by their atom."""

    statement: str
    given: Mapping[str, str]


def head(parameter: str, code: str, known: Mapping[str, object]) -> Head | None:
    """A parameter whose value ``code`` is made of atoms of ``known``; None where a kernel cannot say it."""
    given: dict[str, str] = {}

    def name(text: str, pointer: bool) -> str:
        for known_name, other in given.items():
            if other == text:
                return known_name
        made = f"{parameter}_{'ptr' if pointer else 'n'}{len(given)}"
        given[made] = text
        return made

    def said(node: ast.expr) -> str | None:
        atoms = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & set(known)
        if not atoms:
            return (
                ast.unparse(node)
                if isinstance(node, ast.Constant)
                else name(ast.unparse(node), pointer=False)
            )
        if isinstance(node, ast.Name):
            return f"tl.load({name(node.id, pointer=True)})"
        if isinstance(node, ast.BinOp):
            left, right = said(node.left), said(node.right)
            symbol = ast.unparse(ast.BinOp(ast.Name("a"), node.op, ast.Name("b")))[1:-1]
            return None if left is None or right is None else f"({left}{symbol}{right})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = said(node.operand)
            return None if inner is None else f"(-{inner})"
        if isinstance(node, ast.Call):
            parts = [said(argument) for argument in node.args]
            form = (_SAID if len(parts) == 1 else _OF_TWO).get(ast.unparse(node.func))
            if form is not None and len(parts) in (1, 2) and all(part is not None for part in parts):
                return form.format(*parts)
        return None

    text = said(ast.parse(code, mode="eval").body)
    return None if text is None else Head(f"{parameter} = {text}", given)


def with_heads(text: str, name: str, heads: Mapping[str, Head]) -> str:
    """A kernel under another name whose parameters of ``heads`` are made at its head of what is given for them."""
    tree = ast.parse(text)
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef))
    node.name = name
    arguments: list[ast.arg] = []
    for argument in node.args.args:
        if argument.arg in heads:
            arguments += [ast.arg(new) for new in heads[argument.arg].given]
        else:
            arguments.append(argument)
    node.args.args = arguments
    node.args.defaults = []  # a launch of ours gives every argument
    node.body[:0] = [ast.parse(one.statement).body[0] for one in heads.values()]
    return ast.unparse(ast.fix_missing_locations(tree))


def guarded(file: str, line: int) -> bool | None:
    """What a truth read from a tensor must be for a call to go on: where it stands in an assertion, or decides whether
    an exception is raised. None where it decides anything else."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or node.lineno):
            return not isinstance(node.test, ast.UnaryOp)
        if not (isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Raise)):
            continue
        if node.lineno <= line <= (node.test.end_lineno or node.lineno):
            return isinstance(node.test, ast.UnaryOp)
    return None
