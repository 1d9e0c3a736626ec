"""Values that a wrapper reads from its tensors (``.item()``): handed to kernels where they lie instead.

A candidate's ``launch`` may not read a tensor's values: it is recorded on tensors without memory. A number that came
from a tensor and only goes on to kernels is loaded by them; where it decides a size or a branch, the call is refused.
"""

import ast
import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.workers.intake.source import traced_numbers

READ = "read"
"""Among the atoms of every number that came from a tensor's values."""

_SPELLINGS = {"min": "tl.minimum", "max": "tl.maximum", "abs": "tl.abs", "float": ""}
"""What may be reckoned with such a number, beside arithmetic with numbers that are known."""


def is_read(value: object) -> bool:
    """Whether a number came from a tensor's values."""
    return isinstance(value, traced_numbers.Traced) and READ in value.atoms


@dataclass(frozen=True)
class Head:
    """What stands at a kernel's head in place of a parameter: ``statement`` makes its value of the tensors that are
    given for it, ``given``: new parameter to the tensor's atom."""

    statement: str
    given: Mapping[str, str]


def head(parameter: str, code: str, known: Mapping[str, object]) -> Head | None:
    """A parameter whose value ``code`` is made of atoms of ``known``; None where a kernel cannot say it."""
    names = dict.fromkeys(re.findall(r"\b[A-Za-z_]\w*", code))
    atoms = [name for name in names if name in known]
    if names.keys() - set(atoms) - set(_SPELLINGS):
        return None
    given = {atom: f"{parameter}_ptr{n}" for n, atom in enumerate(atoms)}
    spellings = {**_SPELLINGS, **{atom: f"tl.load({pointer})" for atom, pointer in given.items()}}
    text = re.sub(r"\b[A-Za-z_]\w*", lambda name: spellings[name[0]], code)
    return Head(f"{parameter} = {text}", {pointer: atom for atom, pointer in given.items()})


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
