"""Edits of a kernel's syntax tree, collected first and applied at once, so that node identities stay valid."""

import ast
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, RewrittenKernel, Unsupported, Value, walk

_LOOSE = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.BooleanOperation, cst.IfExp, cst.Lambda)
_TIGHT = (cst.BinaryOperation, cst.UnaryOperation, cst.Attribute, cst.Comparison, cst.BooleanOperation)


COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def with_keyword(call: cst.Call, keyword: str, text: str) -> cst.Call:
    """``call`` with one more keyword argument, laid out like the others."""
    argument = cst.Arg(
        keyword=cst.Name(keyword),
        value=cst.parse_expression(text),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    arguments = list(call.args)
    if not arguments:
        return call.with_changes(args=[argument])
    last = arguments[-1]
    argument = argument.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    between = arguments[0].comma if len(arguments) > 1 else COMMA
    arguments[-1] = last.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*arguments, argument])


def parse_statements(text: str) -> list[cst.BaseStatement]:
    """Statements of ``text``, which starts at column 0. Raises Unsupported on a syntax error."""
    try:
        return list(cst.parse_module(text.strip("\n") + "\n").body)
    except cst.ParserSyntaxError as error:
        raise Unsupported(f"a rewrite built invalid code: {error}") from error


class Edit:
    """Replacements keyed by node identity, plus changes of the literals. ``finish`` yields the new kernel."""

    def __init__(self, kernel: KernelSource) -> None:
        self.kernel = kernel
        self.replacements: dict[cst.CSTNode, cst.CSTNode] = {}
        self.prepended: dict[cst.CSTNode, list[str]] = {}
        self.appended: dict[cst.CSTNode, list[str]] = {}
        self.removed: set[cst.CSTNode] = set()
        self.statement_text: dict[cst.CSTNode, str] = {}
        self.transforms: dict[cst.CSTNode, list[Callable[[Any], Any]]] = {}
        self.items: dict[str, list[tuple[str, str]]] = {"SPACE": [], "DEFAULTS": [], "CONSTRAINTS": []}
        self.imports: list[str] = []
        self.added: dict[str, Value] = {}

    # -- expressions and statements -----------------------------------------------------------------------

    def replace(self, node: cst.CSTNode, new: str | cst.CSTNode) -> None:
        """Put the expression ``new`` where ``node`` is, with parentheses if its place needs them."""
        if isinstance(new, str):
            expression = cst.parse_expression(new)
            if (
                isinstance(expression, _LOOSE)
                and not expression.lpar
                and isinstance(self.kernel.parents.get(node), _TIGHT)
            ):
                expression = cst.parse_expression(f"({new})")
            new = expression
        self.replacements[node] = new

    def transform(self, node: cst.CSTNode, change: Callable[[Any], Any]) -> None:
        """Apply ``change`` to the node after the edits below it; several add up in the order given."""
        self.transforms.setdefault(node, []).append(change)

    def replace_statement(self, node: cst.CSTNode, text: str) -> None:
        """Put the statements of ``text`` in place of ``node``."""
        self.statement_text[node] = text

    def insert_before(self, statement: cst.CSTNode, text: str) -> None:
        self.prepended.setdefault(statement, []).append(text)

    def insert_after(self, statement: cst.CSTNode, text: str) -> None:
        self.appended.setdefault(statement, []).append(text)

    def remove(self, statement: cst.CSTNode) -> None:
        self.removed.add(statement)

    def ensure_import(self, origin: str, alias: str) -> str:
        """The local spelling of module ``origin``, importing it as ``alias`` if it is not imported."""
        spelling = self.kernel.alias_of(origin)
        attribute = spelling is not None and "." in spelling
        if spelling and (not attribute or origin in ("jax.numpy", "jax.lax")):
            return spelling
        head, _, tail = origin.rpartition(".")
        line = f"from {head} import {tail} as {alias}" if head else f"import {origin}"
        if line not in self.imports:
            self.imports.append(line)
        return alias if head else origin

    # -- literals -------------------------------------------------------------------------------------------

    def add_parameter(self, wanted: str, values: Sequence[Value], default: Value) -> str:
        """A new parameter of the space; returns the name it got."""
        name = self.kernel.fresh(wanted)
        text = "(" + ", ".join(repr(v) for v in values) + ("," if len(values) == 1 else "") + ")"
        self.items["SPACE"].append((repr(name), text))
        self.items["DEFAULTS"].append((repr(name), repr(default)))
        self.added[name] = default
        return name

    def add_constraint(self, expression: str, reason: str) -> None:
        if expression not in self.kernel.constraints:
            self.items["CONSTRAINTS"].append((repr(expression), repr(reason)))

    # -- result ---------------------------------------------------------------------------------------------

    def finish(self) -> RewrittenKernel | None:
        """The rewritten kernel, or None if nothing changed. Unused parameters are dropped from the literals."""
        self._add_items()
        module = self.applied()
        if self.imports:
            module = _with_imports(module, self.imports)
        source = self.text(module)
        try:
            ast.parse(source)
        except SyntaxError as error:
            raise Unsupported(f"a rewrite built invalid code: {error}") from error
        source, dropped = _drop_unused(_drop_dead_reads(source))
        if source == self.kernel.source:
            return None
        added = {k: v for k, v in self.added.items() if k not in dropped}
        return RewrittenKernel(source, added, tuple(d for d in dropped if d not in self.added))

    def applied(self) -> cst.Module:
        """The module with the edits."""
        module = self.kernel.module.visit(_Apply(self))
        assert isinstance(module, cst.Module)
        return module

    def text(self, module: cst.Module) -> str:
        """The text of ``module``; that of statements which are as they were is known."""
        if not (module.body and module.has_trailing_newline):
            return module.code
        known, parts = self.kernel.texts, (*module.header, *module.body, *module.footer)
        return "".join(known[part] if part in known else module.code_for_node(part) for part in parts)

    def edited_ancestors(self) -> set[cst.CSTNode] | None:
        """What holds anything that is edited; None where that is not known of all of it."""
        parents, found = self.kernel.parents, set[cst.CSTNode]()
        edited = (self.replacements, self.prepended, self.appended, self.removed, self.statement_text)
        for node in itertools.chain(*edited, self.transforms):
            current = node
            while current is not self.kernel.module:
                if current not in parents:
                    return None
                current = parents[current]
                if current in found:
                    break
                found.add(current)
        return found

    def _add_items(self) -> None:
        for literal, pairs in self.items.items():
            node = self.kernel.literals[literal]
            if not pairs:
                continue
            if node is None:
                body = ", ".join(f"{k}: {v}" for k, v in pairs)
                anchor = self.kernel.statement(self.kernel.literals["SPACE"] or self.kernel.functions[0])
                self.insert_before(anchor, f"{literal} = {{{body}}}")
                continue
            self.transform(node, partial(_append_items, pairs=pairs))


class _Apply(cst.CSTTransformer):
    """Looks at what is edited and at what is around it; the rest stays as it is."""

    def __init__(self, edit: Edit) -> None:
        super().__init__()
        self.edit = edit
        self._ancestors = edit.edited_ancestors()

    def on_visit(self, node: cst.CSTNode) -> bool:
        return self._ancestors is None or node in self._ancestors

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        edit = self.edit
        if original_node in edit.replacements:
            updated_node = edit.replacements[original_node]
        for change in edit.transforms.get(original_node, ()):
            updated_node = change(updated_node)
        parts: list[cst.CSTNode] = [updated_node]
        touched = False
        if original_node in edit.statement_text:
            parts, touched = [*parse_statements(edit.statement_text[original_node])], True
        elif original_node in edit.removed:
            parts, touched = [], True
        if original_node in edit.prepended:
            texts = edit.prepended[original_node]
            parts, touched = [s for t in texts for s in parse_statements(t)] + parts, True
        if original_node in edit.appended:
            texts = edit.appended[original_node]
            parts, touched = parts + [s for t in texts for s in parse_statements(t)], True
        if not touched:
            return updated_node
        return cst.FlattenSentinel(parts) if parts else cst.RemoveFromParent()


def _append_items(node: cst.Dict, pairs: Sequence[tuple[str, str]]) -> cst.Dict:
    """``node`` with more items, laid out as its own."""
    elements = list(node.elements)
    for key, value in pairs:
        item = cst.DictElement(cst.parse_expression(key), cst.parse_expression(value))
        if elements:
            last = elements[-1]
            between = elements[0].comma if len(elements) > 1 else COMMA
            if isinstance(between, cst.MaybeSentinel):
                between = COMMA
            item = item.with_changes(comma=last.comma)
            elements[-1] = last.with_changes(comma=between)
        elements.append(item)
    return node.with_changes(elements=elements)


def _with_imports(module: cst.Module, lines: Sequence[str]) -> cst.Module:
    """``module`` with import lines after its last import."""
    first = [s.body[0] if isinstance(s, cst.SimpleStatementLine) else s for s in module.body]
    last = max((n for n, s in enumerate(first, 1) if isinstance(s, cst.Import | cst.ImportFrom)), default=0)
    new = [s for line in lines for s in parse_statements(line)]
    return module.with_changes(body=[*module.body[:last], *new, *module.body[last:]])


_HARMLESS = re.compile(r"[\w\[\]\"'(), +*/<>-]*")


def _drop_dead_reads(source: str) -> str:
    """Remove bindings of the entry function that only computed a parameter nobody reads any more."""
    for _ in range(4):
        if not _may_have_dead_bindings(ast.parse(source)):
            return source
        kernel = KernelSource(source)
        edit = Edit(kernel)
        for function in kernel.functions:
            if function.name.value in ("build", "launch"):
                _dead_bindings(kernel, edit, function)
        if not edit.replacements and not edit.removed:
            return source
        source = edit.text(edit.applied())
    return source


def _may_have_dead_bindings(tree: ast.Module) -> bool:
    """Whether an entry function binds a name that it mentions once; libcst's tree, made if so, tells the rest."""
    for function in ast.walk(tree):
        if not (isinstance(function, ast.FunctionDef) and function.name in ("build", "launch")):
            continue
        counts = Counter(node.id for node in ast.walk(function) if isinstance(node, ast.Name))
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                bound = target.elts if isinstance(target, ast.Tuple) else [target]
                if any(isinstance(name, ast.Name) and counts[name.id] == 1 for name in bound):
                    return True
    return False


def _dead_bindings(kernel: KernelSource, edit: Edit, function: cst.FunctionDef) -> None:
    """Edit out the names that ``function`` binds to plain arithmetic and never reads."""
    counts = Counter(node.value for node in walk(function) if isinstance(node, cst.Name))

    def dead(name: cst.BaseExpression, value: cst.BaseExpression) -> bool:
        return isinstance(name, cst.Name) and counts[name.value] == 1 and _is_removable(kernel, value)

    for node in walk(function):
        if not isinstance(node, cst.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0].target, node.value
        if dead(target, value):
            edit.remove(kernel.statement(node))
        elif isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            pairs = list(zip(target.elements, value.elements, strict=False))
            live = [(t, v) for t, v in pairs if not dead(t.value, v.value)]
            if live and len(live) < len(pairs) == len(target.elements):
                left = ", ".join(kernel.code(t.value) for t, _ in live)
                right = ", ".join(kernel.code(v.value) for _, v in live)
                line = parse_statements(f"{left} = {right}")[0]
                assert isinstance(line, cst.SimpleStatementLine)
                edit.replacements[node] = line.body[0]


def _is_removable(kernel: KernelSource, value: cst.BaseExpression) -> bool:
    """Whether an expression is plain arithmetic on names and parameters, which nothing misses."""
    called = {kernel.code(n.func) for n in walk(value) if isinstance(n, cst.Call)}
    return bool(_HARMLESS.fullmatch(kernel.code(value))) and called <= {"min", "max"}


def _drop_unused(source: str) -> tuple[str, tuple[str, ...]]:
    """Remove parameters that no function reads any more from the literals; returns (source, names)."""
    if _mentions_all(ast.parse(source)):
        return source, ()
    kernel = KernelSource(source)
    mentioned = {
        n.evaluated_value
        for f in kernel.module.body
        if isinstance(f, cst.FunctionDef)
        for n in walk(f)
        if isinstance(n, cst.SimpleString)
    }
    dead = tuple(name for name in kernel.space if name not in mentioned)
    if not dead:
        return source, ()
    edit = Edit(kernel)
    mention = re.compile(r"\b(" + "|".join(map(re.escape, dead)) + r")\b").search
    for literal, node in kernel.literals.items():
        if node is not None:
            gone = mention if literal == "CONSTRAINTS" else lambda key: key.strip("\"'") in dead
            keep = [e for e in node.elements if not (isinstance(e, cst.DictElement) and gone(kernel.code(e.key)))]
            edit.replacements[node] = node.with_changes(elements=keep)
    return edit.text(edit.applied()), dead


def _mentions_all(tree: ast.Module) -> bool:
    """Whether the module's functions name every parameter of the space; False where its literal does not read."""
    space: object = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(target, ast.Name) and target.id == "SPACE" for target in targets):
                try:
                    space = ast.literal_eval(statement.value)
                except ValueError:
                    return False
                break
    within = [n for function in tree.body if isinstance(function, ast.FunctionDef) for n in ast.walk(function)]
    pieces = {id(piece) for node in within if isinstance(node, ast.JoinedStr) for piece in node.values}
    named = {node.value for node in within if isinstance(node, ast.Constant) and id(node) not in pieces}
    return isinstance(space, dict) and space.keys() <= named
