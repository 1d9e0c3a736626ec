"""One kernel module out of several: a step that chains kernels is evolved as one candidate.

A *part* is one use of a module. Kernels are copied once per module; what depends on parameters (``launch`` and the
functions that take ``params``) is copied once per part, its parameters named ``part_parameter``, so that two uses of
one kernel have genes of their own. The parts' constraints are carried over in the dimensions of the whole.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

DECLARATIONS = ("SPACE", "DEFAULTS", "CONSTRAINTS")


@dataclass(frozen=True)
class Part:
    """One use of ``source`` (a dialect module named ``module``) under the name ``name``.

    ``dims`` says what the module's dimensions and constants are in the whole: a name or a number.
    ``overrides`` replace the module's DEFAULTS.
    """

    name: str
    module: str
    source: str
    dims: Mapping[str, str | int] = field(default_factory=dict)
    overrides: Mapping[str, object] = field(default_factory=dict)


def compose(doc: str, parts: Sequence[Part], launch: str) -> str:
    """The source of a module with every part's kernels, each part's ``part_launch`` and the given ``launch``.

    Comments and layout of the parts' functions are kept. Raises ValueError for a part without the three
    declarations, or one that overrides no parameter of its module.
    """
    imports: dict[str, None] = {}
    functions: dict[str, str] = {}
    declared: dict[str, dict] = {name: {} for name in DECLARATIONS}
    for part in parts:
        for name, entries in _declarations(part).items():
            declared[name].update(entries)
        tree = cst.parse_module(part.source)
        imports.update((tree.code_for_node(line).strip(), None) for line in tree.body if _imports(line))
        functions.update(_functions(tree, part))
    head = [f'"""{doc}"""', "", *sorted(imports, key=_import_order), ""]
    head += [_literal(name, declared[name]) for name in DECLARATIONS]
    return "\n".join(head) + "\n\n\n" + "\n\n\n".join([*functions.values(), launch.strip()]) + "\n"


def _imports(line: cst.CSTNode) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.Import | cst.ImportFrom)


def _import_order(text: str) -> tuple[str, bool]:
    """As import sorters have it: by module, ``import`` before ``from``."""
    return text.split()[1], text.startswith("from")


def _declarations(part: Part) -> dict[str, dict]:
    found = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(part.source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if node.targets[0].id in DECLARATIONS
    }
    missing = [name for name in DECLARATIONS if name not in found]
    if missing:
        raise ValueError(f"part {part.name}: module {part.module} declares no {missing[0]}")
    unknown = [name for name in part.overrides if name not in found["SPACE"]]
    if unknown:
        raise ValueError(f"part {part.name}: module {part.module} has no parameter {unknown[0]}")
    defaults = {**found["DEFAULTS"], **part.overrides}
    renamed = {name: f"{part.name}_{name}" for name in found["SPACE"]}
    return {
        "SPACE": {renamed[name]: values for name, values in found["SPACE"].items()},
        "DEFAULTS": {renamed[name]: value for name, value in defaults.items()},
        "CONSTRAINTS": {
            _rename_expression(text, {**part.dims, **renamed}): f"{part.name}: {reason}"
            for text, reason in found["CONSTRAINTS"].items()
        },
    }


def _rename_expression(text: str, names: Mapping[str, str | int]) -> str:
    tree = cst.parse_expression(text).visit(_Rename(names))
    assert isinstance(tree, cst.BaseExpression)
    return cst.Module([]).code_for_node(tree)


def _functions(tree: cst.Module, part: Part) -> dict[str, str]:
    """Functions by their new names."""
    own = [node for node in tree.body if isinstance(node, cst.FunctionDef)]
    of_part = {n.name.value for n in own if any(a.name.value == "params" for a in n.params.params)}
    names = {
        name: f"{part.name if name in of_part else part.module}_{name}"
        for name in (n.name.value for n in own)
    }
    found = {}
    for node in own:
        prefix = f"{part.name}_" if node.name.value in of_part else ""
        renamed = cst.ensure_type(node.visit(_Rename(names, prefix)), cst.FunctionDef)
        found[renamed.name.value] = tree.code_for_node(renamed).strip()
    return found


class _Rename(cst.CSTTransformer):
    """Other names for names, numbers for some, and a prefix for the keys that ``params`` is read with."""

    def __init__(self, names: Mapping[str, str | int], prefix: str = "") -> None:
        super().__init__()
        self._names, self._prefix = names, prefix

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        new = self._names.get(original_node.value)
        if new is None:
            return updated_node
        return cst.Integer(str(new)) if isinstance(new, int) else updated_node.with_changes(value=new)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.Subscript:
        key = m.SubscriptElement(m.Index(m.SimpleString()))
        if self._prefix and m.matches(original_node, m.Subscript(m.Name("params"), [key])):
            element = cst.ensure_type(original_node.slice[0].slice, cst.Index)
            text = cst.ensure_type(element.value, cst.SimpleString)
            quoted = cst.SimpleString(f'"{self._prefix}{text.raw_value}"')
            return updated_node.with_deep_changes(updated_node.slice[0], slice=cst.Index(quoted))
        return updated_node


def _literal(name: str, entries: Mapping[str, object]) -> str:
    body = "".join(f"    {_quoted(key)}: {_quoted(value)},\n" for key, value in entries.items())
    return f"{name} = {{\n{body}}}"


def _quoted(value: object) -> str:
    """A literal with double quotes around text that holds none, as formatters write it."""
    if isinstance(value, tuple):
        inside = ", ".join(map(_quoted, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return f'"{value}"' if isinstance(value, str) and not set(value) & set('"\\') else repr(value)
