"""A kernel's function in plain words: helpers that hold its loops where they are called, tiles behind pointers."""

import ast
import copy
import itertools
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.gluon.statements import Statement, calls, device_call, names_in
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel

_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.BitAnd: operator.and_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def written_out(body: Sequence[ast.stmt], kernel: TritonKernel) -> list[ast.stmt]:
    """The statements of a function. Raises Unsupported for a helper that cannot be written out."""
    known: dict[str, ast.expr] = {}
    for name in kernel.constexprs:
        given = kernel.given(name)
        text = "" if given is None else kernel.source.code(given)
        known |= {name: ast.Constant(int(text))} if text.isdigit() else {}
    functions = [f for f in ast.parse(kernel.source.source).body if isinstance(f, ast.FunctionDef)]
    helpers = {f.name: f for f in functions if calls(f, kernel.tl, "dot", "program_id")}
    plain = _Values({f.name: f for f in functions if isinstance(f.body[-1], ast.Return) and len(f.body) == 1})
    made: list[ast.stmt] = []
    for statement in map(plain.visit, _settled(body, known)):
        call = getattr(statement, "value", None)
        here = [statement]
        if isinstance(call, ast.Call) and (helper := helpers.get(ast.unparse(call.func))):
            here = _inlined(helper, statement, call, len(made), kernel)
        made += _settled(here, known)
    tiles = _Tiles(kernel)
    made = [one for statement in made for one in tiles.statement(statement)]
    return [ast.fix_missing_locations(statement) for statement in made]


def bound_once(body: Sequence[ast.stmt], parameters: Collection[str]) -> list[ast.stmt]:
    """The statements with a name for each value of what is bound anew before the first loop; the last keeps its own,
    but of a parameter, which is bound again nowhere else."""
    plain = list(itertools.takewhile(lambda s: isinstance(s, ast.Assign | ast.AugAssign | ast.Expr), body))
    behind = {n for s in body[len(plain) :] for n in Statement(s).writes}
    targets = [_names(s.targets[0] if isinstance(s, ast.Assign) else getattr(s, "target", None)) for s in plain]
    left = [names[0] if len(names) == 1 else "" for names in targets]
    several = {n for n in left if n and left.count(n) + (n in parameters) > 1 and not (n in parameters and n in behind)}
    several -= {n for names in targets if len(names) > 1 for n in names}
    made, current = list[ast.stmt](), dict[str, str]()
    for place, (statement, name) in enumerate(zip(plain, left, strict=True)):
        node = copy.deepcopy(statement)
        if name in several and isinstance(node, ast.AugAssign):
            node = ast.Assign([node.target], ast.BinOp(ast.Name(name, ast.Load()), node.op, node.value), lineno=0)
        if name in several and isinstance(node, ast.Assign):
            node.value = _Renamed({}, current).visit(node.value)
            own = name not in parameters and name not in left[place + 1 :]
            current[name] = name if own else f"{name}_bound_{place}"
            node.targets = [ast.Name(current[name], ast.Store())]
        else:
            node = _Renamed({}, current).visit(node)
        made.append(node)
    return made + [_Renamed({}, current).visit(copy.deepcopy(s)) for s in body[len(plain) :]]


class _Renamed(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr], names: Mapping[str, str]) -> None:
        self.values, self.names = values, names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.values:
            return copy.deepcopy(self.values[node.id])
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


class _Values(ast.NodeTransformer):
    """Puts what ``functions`` that only return something return in place of their calls."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef]) -> None:
        self.functions = functions

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = self.functions.get(ast.unparse(node.func))
        result = called.body[-1] if called is not None else None
        if called is None or not isinstance(result, ast.Return) or result.value is None or node.keywords:
            return node
        values = dict(zip((a.arg for a in called.args.args), node.args, strict=False))
        return self.visit(_Renamed(values, {}).visit(copy.deepcopy(result.value)))


def _inlined(
    helper: ast.FunctionDef, statement: ast.stmt, call: ast.Call, number: int, kernel: TritonKernel
) -> list[ast.stmt]:
    """What a call does. Results keep the names that the caller binds; other local names get a ``number``."""
    refused = Unsupported(f"a helper, {helper.name}, that is not called plainly for a tuple of names")
    named = [a.arg for a in helper.args.args]
    values = dict(zip(reversed(named), reversed(helper.args.defaults), strict=False))
    values |= {**dict(zip(named, call.args, strict=False)), **{str(k.arg): k.value for k in call.keywords}}
    *inner, last = _settled(helper.body, {n: v for n, v in values.items() if isinstance(v, ast.Constant)})
    if isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple):
        for place, part in enumerate(last.value.elts):
            if not isinstance(part, ast.Name):
                last.value.elts[place] = ast.Name(f"{helper.name}_{place}", ast.Load())
                inner.append(ast.Assign([ast.Name(f"{helper.name}_{place}", ast.Store())], part, lineno=0))
    if not isinstance(last, ast.Return) or not isinstance(statement, ast.Assign) or set(values) != set(named):
        raise refused
    bound = {n for s in inner for n in Statement(s).writes}
    targets, results = _names(statement.targets[0]), _names(last.value)
    names = {n: f"{n}_{number}" for n in bound}
    if set(names.values()) & kernel.source.identifiers or not results or len(results) != len(targets):
        raise refused
    names |= dict(zip(results, targets, strict=True))
    moved = {names[p]: values[p] for p in named if p in bound and ast.unparse(values[p]) != names[p]}
    given = [values[p] for p in named if p not in bound] + list(moved.values())
    if {n for value in given for n in names_in(ast.unparse(value))} & set(names.values()) or set(results) - bound:
        raise Unsupported(f"a helper, {helper.name}, whose arguments are bound anew")
    put = _Renamed({p: values[p] for p in named if p not in bound}, names)
    begun = [ast.Assign([ast.Name(name, ast.Store())], value, lineno=0) for name, value in moved.items()]
    return [*begun, *(put.visit(copy.deepcopy(s)) for s in inner)]


def _names(node: ast.expr | None) -> list[str]:
    """Of a tuple of different names, or of one; none of anything else."""
    elements = node.elts if isinstance(node, ast.Tuple) else [node]
    found = [e.id for e in elements if isinstance(e, ast.Name)]
    return found if len(set(found)) == len(elements) else []


def _settled(body: Iterable[ast.stmt], known: Mapping[str, ast.expr]) -> list[ast.stmt]:
    """Statements without branches that constants decide."""
    made: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.If):
            holds = _value(_Renamed(known, {}).visit(copy.deepcopy(statement.test)))
            if holds is not None:
                made += _settled(statement.body if holds else statement.orelse, known)
                continue
        if isinstance(statement, ast.For):
            statement.body = _settled(statement.body, known)
        made.append(statement)
    return made


def _value(node: ast.expr) -> int | None:
    """Of constants; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    kind: ast.AST = node
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is):
        return int(ast.unparse(node.left) == "None") if isinstance(node.left, ast.Constant) else None
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        kind, other = node.ops[0], node.comparators[0]
    elif isinstance(node, ast.BinOp):
        kind, other = node.op, node.right
    if type(kind) not in _OPERATIONS:
        return None
    sides = [_value(side) for side in (node.left, other)]  # type: ignore[attr-defined]
    return None if None in sides else int(_OPERATIONS[type(kind)](*sides))


class _Tiles(ast.NodeTransformer):
    """Loads and stores through block pointers and descriptors of two axes as those of pointers with masks."""

    def __init__(self, kernel: TritonKernel) -> None:
        self.tl, self.bound = kernel.tl, kernel.source.identifiers
        self.known: dict[str, tuple[str, list[list[str]]]] = {}
        """By name: where the tensor begins; sizes, strides, and extents of a tile."""

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.For):
            node.body = [one for statement in node.body for one in self.statement(statement)]
            return [node]
        value = node.value if isinstance(node, ast.Assign) else None
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if not isinstance(value, ast.Call):
            return [self.visit(node)]
        made = device_call(value, self.tl)
        if made in ("make_block_ptr", "make_tensor_descriptor"):
            keys = ("base", "shape", "strides", *(("offsets",) if "ptr" in made else ()), "block_shape")
            given = dict(zip(keys, value.args, strict=False)) | {str(k.arg): k.value for k in value.keywords}
            parts = {k: _pair(given.get(k)) for k in keys[1:]}
            if name in self.known or {f"{name}_0", f"{name}_1"} & self.bound:
                raise Unsupported(f"a tile, {name}, that is described twice")
            self.known[name] = (ast.unparse(given["base"]), [parts[k] for k in ("shape", "strides", "block_shape")])
            return _lines(f"{name}_{n} = {at}" for n, at in enumerate(parts.get("offsets", ())))
        if made == "advance" and name in self.known and ast.unparse(value.args[0]) == name:
            return _lines(f"{name}_{n} += {by}" for n, by in enumerate(_pair(value.args[1])) if by != "0")
        return [self.visit(node)]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("load", "store") or not node.args:
            return node
        name, (first, *rest) = ast.unparse(node.func.value), node.args
        if name in self.known:
            at, checked = _pair(first), "01"
        elif device_call(node, self.tl) and ast.unparse(first) in self.known:
            name = ast.unparse(first)
            at = [f"{name}_0", f"{name}_1"]
            checked = "".join(ast.unparse(k.value) for k in node.keywords if k.arg == "boundary_check")
        else:
            return node
        base, (sizes, strides, extents) = self.known[name]
        sides = ("[:, None]", "[None, :]")
        where = [f"({a} + {self.tl}.arange(0, {e}))" for a, e in zip(at, extents, strict=True)]
        ends = [f"({where[n]} < {sizes[n]}){sides[n]}" for n in (0, 1) if str(n) in checked]
        steps = [f"{where[n]}.to({self.tl}.int64){sides[n]} * ({strides[n]})" for n in (0, 1)]
        parts = [" + ".join([base, *steps]), *map(ast.unparse, rest)]
        parts += [f"mask={' & '.join(ends)}"] if ends else []
        parts += ["other=0.0"] if ends and node.func.attr == "load" else []
        return ast.parse(f"{self.tl}.{node.func.attr}({', '.join(parts)})", mode="eval").body


def _pair(node: ast.expr | None) -> list[str]:
    elements = [ast.unparse(e) for e in getattr(node, "elts", ())]
    if len(elements) != 2:
        raise Unsupported("a tile that is not described by two axes")
    return elements


def _lines(texts: Iterable[str]) -> list[ast.stmt]:
    return ast.parse("\n".join(texts)).body
