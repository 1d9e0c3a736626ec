"""Names read and written by pieces of kernel code, and where the parameters of a kernel are in scope."""

import ast
import builtins
from collections.abc import Iterator

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported

BUILTINS = frozenset(dir(builtins))


class _Reads(ast.NodeVisitor):
    """Free names an expression or statement reads; comprehension and lambda variables are not free."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.bound: list[set[str]] = []

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and not any(node.id in b for b in self.bound):
            self.names.add(node.id)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.names.add(node.target.id)
        self.generic_visit(node)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp) -> None:
        targets = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self.bound.append(targets)
        self.generic_visit(node)
        self.bound.pop()

    visit_ListComp = visit_GeneratorExp = visit_SetComp = visit_DictComp = _comprehension

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in node.args.defaults:
            self.visit(default)
        self.bound.append({a.arg for a in node.args.args})
        self.visit(node.body)
        self.bound.pop()


def reads_of(text: str) -> set[str]:
    """Free names that Python code reads (function bodies included, their own locals excluded only by name)."""
    visitor = _Reads()
    visitor.visit(ast.parse(text))
    return visitor.names


def reads(kernel: KernelSource, node: cst.CSTNode) -> set[str]:
    """Free names that ``node`` (an expression or a statement) reads."""
    return reads_of(dedented(kernel, node))


def dedented(kernel: KernelSource, node: cst.CSTNode) -> str:
    """Text of a statement as if it stood at module level, without its leading comments."""
    if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        node = node.with_changes(leading_lines=[])
    return cst.Module(body=[]).code_for_node(node).strip("\n")


def target_names(node: cst.CSTNode) -> list[str]:
    """Names bound by an assignment or loop target (none for subscripts and attributes)."""
    if isinstance(node, cst.Name):
        return [node.value]
    if isinstance(node, cst.Tuple | cst.List):
        return [n for e in node.elements for n in target_names(e.value)]
    if isinstance(node, cst.StarredElement):
        return target_names(node.value)
    return []


def small(statement: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The one small statement of a line, None for compound statements and ``a; b``."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement.body[0]
    return None


def assigned_value(statement: cst.CSTNode) -> tuple[list[str], cst.BaseExpression] | None:
    """(names, value) of ``names = value`` when every target is a name; None otherwise."""
    line = small(statement)
    if isinstance(line, cst.Assign) and len(line.targets) == 1:
        names = target_names(line.targets[0].target)
        return (names, line.value) if names else None
    if isinstance(line, cst.AnnAssign) and line.value is not None:
        names = target_names(line.target)
        return (names, line.value) if names else None
    return None


def statements(body: cst.BaseSuite) -> Iterator[cst.CSTNode]:
    """Every statement in ``body``, nested blocks and functions included, in order."""
    if isinstance(body, cst.IndentedBlock):
        for statement in body.body:
            yield statement
            if isinstance(statement, cst.BaseCompoundStatement):
                yield from statements(statement.body)
                orelse = getattr(statement, "orelse", None)
                while orelse is not None:
                    if isinstance(orelse, cst.If):
                        yield orelse
                    yield from statements(orelse.body)
                    orelse = getattr(orelse, "orelse", None)


def loop_bounds(kernel: KernelSource, loop: cst.For, name: str = "range") -> tuple[str, str, str] | None:
    """(start, stop, step) texts of a loop over ``range``, or what is called ``name`` here, with one target name."""
    call = loop.iter
    if not isinstance(call, cst.Call) or not isinstance(loop.target, cst.Name) or kernel.code(call.func) != name:
        return None
    texts = [kernel.code(a.value) for a in call.args if a.keyword is None]
    if any(a.star for a in call.args) or not texts:
        return None
    if len(texts) == 1:
        return "0", texts[0], "1"
    return texts[0], texts[1], (texts[2] if len(texts) > 2 else "1")


def turn_text(index: str, bounds: tuple[str, str, str]) -> str:
    """The number of a loop's turn, from 0, as a text; ``bounds`` as ``loop_bounds`` gives them."""
    start, _, step = bounds
    turn = index if start == "0" else f"({index} - ({start}))"
    return turn if step == "1" else f"({turn} // ({step}))"


def substituted(text: str, name: str, value: str) -> str:
    """An expression as text with a name replaced by another expression."""

    class Substitute(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(value, mode="eval").body if node.id == name else node

    return ast.unparse(Substitute().visit(ast.parse(text, mode="eval")))


def definitions(function: cst.FunctionDef) -> dict[str, list[cst.CSTNode]]:
    """Name to the statements (assignments, loops, nested functions) that bind it inside ``function``."""
    found: dict[str, list[cst.CSTNode]] = {}
    for statement in statements(function.body):
        names: list[str] = []
        line = small(statement)
        if isinstance(line, cst.Assign):
            names = [n for t in line.targets for n in target_names(t.target)]
        elif isinstance(line, cst.AugAssign | cst.AnnAssign):
            names = target_names(line.target)
        elif isinstance(statement, cst.For):
            names = target_names(statement.target)
        elif isinstance(statement, cst.FunctionDef):
            names = [statement.name.value]
        for name in names:
            found.setdefault(name, []).append(statement)
    return found


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """Positional parameters in order. Raises Unsupported for ``*args``."""
    if isinstance(function.params.star_arg, cst.Param):
        raise Unsupported(f"{function.name.value} takes *{function.params.star_arg.name.value}")
    return [*function.params.posonly_params, *function.params.params]


def resolve(kernel: KernelSource, expression: cst.BaseExpression) -> cst.BaseExpression:
    """Follow a name to the one expression assigned to it in an enclosing function or at module level."""
    seen: set[str] = set()
    while isinstance(expression, cst.Name) and expression.value not in seen:
        seen.add(expression.value)
        found = _assigned_in_scope(kernel, expression)
        if found is None:
            return expression
        expression = found
    return expression


def _assigned_in_scope(kernel: KernelSource, name: cst.Name) -> cst.BaseExpression | None:
    scope: cst.CSTNode | None = name
    while scope is not None:
        scope = kernel.enclosing(scope, cst.FunctionDef)
        body = scope.body if isinstance(scope, cst.FunctionDef) else kernel.module
        block = body.body if isinstance(body, cst.IndentedBlock | cst.Module) else []
        values: list[cst.BaseExpression] = []
        for statement in block:
            for found in _bindings(statement, name.value):
                values.append(found)
        if len(values) == 1:
            return values[0]
        if values:
            return None
    return None


def _bindings(statement: cst.CSTNode, name: str) -> Iterator[cst.BaseExpression]:
    line = small(statement)
    if not isinstance(line, cst.Assign):
        return
    for target in line.targets:
        if isinstance(target.target, cst.Name) and target.target.value == name:
            yield line.value
        elif isinstance(target.target, cst.Tuple) and isinstance(line.value, cst.Tuple):
            for left, right in zip(target.target.elements, line.value.elements, strict=False):
                if isinstance(left.value, cst.Name) and left.value.value == name:
                    yield right.value


def parameter_access(kernel: KernelSource, at: cst.CSTNode, name: str) -> str:
    """Text that reads parameter ``name`` at node ``at``. Raises Unsupported where it is out of scope."""
    function: cst.CSTNode | None = at
    while function is not None:
        function = kernel.enclosing(function, cst.FunctionDef)
        if isinstance(function, cst.FunctionDef) and function.name.value in ("build", "launch"):
            return f'{parameters(function)[-1].name.value}["{name}"]'
    raise Unsupported("the launch parameters are not in scope where the kernel is called")
