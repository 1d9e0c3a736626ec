"""Shapes and dtypes of chain values, inferred from block shapes by walking the code that computes them.

Extents stay symbolic: they are texts over names that are visible where the kernel is launched.
"""

import ast
from dataclasses import dataclass, field

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value, dedented, definitions, parameters
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall
from tilewright.fitness.dialect_names import names

_BROADCASTING = names("maximum minimum where clip multiply divide add subtract power fmax true_divide")
_REDUCING = ("max", "amax", "min", "amin", "sum", "mean")
_UNARY = names("abs absolute negative exp exp2 log log2 sqrt square reciprocal round floor ceil sign rint rsqrt")


@dataclass(frozen=True)
class ShapedValue:
    """``dims`` are texts; ``dtype`` is a text, None for Python scalars."""

    dims: tuple[str, ...] = ()
    dtype: str | None = None


Abstract = ShapedValue | tuple


@dataclass
class _Frame:
    values: dict[str, Abstract] = field(default_factory=dict)
    texts: dict[str, ast.expr] = field(default_factory=dict)


def extent_text(lower: str, upper: str, index: str) -> str | None:
    """The size of ``i*g : (i+1)*g``, ``i : i+g`` or ``i*g : i*g+g`` for index i."""
    low, high = lower.replace(" ", ""), upper.replace(" ", "")
    if high.startswith(low + "+"):
        return high[len(low) + 1 :]
    for size in (low.removeprefix(f"{index}*"), low.removesuffix(f"*{index}")):
        forms = (
            f"({index}+1)*{size}",
            f"{size}*({index}+1)",
            f"(1+{index})*{size}",
            f"{size}*{index}+{size}",
            f"{index}*{size}+{size}",
        )
        if size != low and high in forms:
            return size
    return None


class Inference:
    """Abstract interpretation of chain code of one launch."""

    def __init__(self, view: PallasCall) -> None:
        self.view, self.kernel = view, view.kernel
        self.frame = _Frame()
        self.loops: list[str] = []
        for ref in view.inputs:
            if ref.spec is not None and ref.position < len(view.operands):
                dims = [self.kernel.code(d) for d in ref.spec.shape]
                kept = tuple(f"{d}" for d in dims if d not in ("None",) and not d.endswith("squeezed"))
                operand = self.kernel.code(view.operands[ref.position])
                self.frame.values[ref.name] = ShapedValue(kept, f"{operand}.dtype")
        for name, argument in view.bound.items():
            self.frame.texts[name] = _expression(self.kernel.code(argument.value))
        self._static_locals()

    def _static_locals(self) -> None:
        """Names of the kernel bound once to something that is no array: their text."""
        for name, places in definitions(self.view.function).items():
            found = assigned_value(places[0]) if len(places) == 1 else None
            if found is None or name in self.frame.texts:
                continue
            names, value = found
            text = self.kernel.code(value)
            if len(names) == 1:
                self.frame.texts[name] = _expression(text)
            elif text.endswith(".shape"):
                self.frame.texts[name] = _expression(f"{text}[{names.index(name)}]")
            elif isinstance(value, cst.Tuple):
                self.frame.texts[name] = _expression(self.kernel.code(value.elements[names.index(name)].value))

    # -- statements -----------------------------------------------------------------------------------------

    def run(self, code: str) -> dict[str, Abstract]:
        """Interpret statements; returns every name's abstract value."""
        self._block(ast.parse(code).body)
        return self.frame.values

    def _block(self, body: list[ast.stmt]) -> Abstract | None:
        for statement in body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._bind(statement.targets[0], statement.value)
            elif isinstance(statement, ast.For):
                self.loops += [n.id for n in ast.walk(statement.target) if isinstance(n, ast.Name)]
                self._block(statement.body)
            elif isinstance(statement, ast.Return) and statement.value is not None:
                return self.value(statement.value)
        return None

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        try:
            found: Abstract = self.value(value)
        except Unsupported:
            if isinstance(target, ast.Name) and target.id in self.frame.texts:
                return
            raise
        if isinstance(target, ast.Name):
            self.frame.values[target.id] = found
        elif isinstance(target, ast.Tuple) and isinstance(found, tuple):
            for element, part in zip(target.elts, found, strict=True):
                if isinstance(element, ast.Name):
                    self.frame.values[element.id] = part

    # -- expressions ----------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Abstract:
        if isinstance(node, ast.Constant):
            return ShapedValue()
        if isinstance(node, ast.Name):
            return self.frame.values.get(node.id, ShapedValue())
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.value(e) for e in node.elts)
        if isinstance(node, ast.Subscript):
            return self._indexed(node)
        if isinstance(node, ast.BinOp):
            return self._broadcast([self._array(node.left), self._array(node.right)])
        if isinstance(node, ast.UnaryOp):
            return self.value(node.operand)
        if isinstance(node, ast.Attribute):
            if node.attr == "T":
                base = self._array(node.value)
                return ShapedValue(base.dims[::-1], base.dtype)
            return ShapedValue()
        if isinstance(node, ast.Call):
            return self._call(node)
        raise Unsupported(f"a shape that cannot be inferred: {ast.unparse(node)[:60]}")

    def _array(self, node: ast.expr) -> ShapedValue:
        found = self.value(node)
        if not isinstance(found, ShapedValue):
            raise Unsupported(f"a tuple where an array was expected: {ast.unparse(node)[:60]}")
        return found

    def _indexed(self, node: ast.Subscript) -> Abstract:
        base = self.value(node.value)
        if not isinstance(base, ShapedValue):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
                return base[node.slice.value]
            raise Unsupported(f"a computed tuple index: {ast.unparse(node)[:60]}")
        items = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        dims, left = [], list(base.dims)
        for position, item in enumerate(items):
            if isinstance(item, ast.Constant) and item.value is Ellipsis:
                while len(left) > len(items) - position - 1:
                    dims.append(left.pop(0))
            elif isinstance(item, ast.Constant) and item.value is None:
                dims.append("1")
            elif not left:
                return ShapedValue()
            elif isinstance(item, ast.Slice):
                dims.append(self._slice(item, left.pop(0)))
            elif isinstance(item, ast.Call) and ast.unparse(item.func).split(".")[-1] in ("ds", "dslice"):
                left.pop(0)
                dims.append(self.static(item.args[1]))
            else:
                left.pop(0)
        return ShapedValue((*dims, *left), base.dtype)

    def _slice(self, item: ast.Slice, whole: str) -> str:
        if item.step is not None:
            raise Unsupported("a slice with a step")
        if item.upper is None:
            return whole if item.lower is None else f"{whole} - ({self.static(item.lower)})"
        if item.lower is None:
            return self.static(item.upper)
        lower, upper = ast.unparse(item.lower), ast.unparse(item.upper)
        for index in reversed([*self.loops, "0"]):
            size = extent_text(lower, upper, index)
            if size is not None:
                return self.static(_expression(size))
        raise Unsupported(f"a slice whose size is not plain: {lower}:{upper}")

    def static(self, node: ast.expr) -> str:
        """Text of a static expression in the names of the launch. Raises Unsupported for loop variables."""
        text = ast.unparse(_Translate(self).visit(_expression(ast.unparse(node))))
        names = {n.id for n in ast.walk(_expression(text)) if isinstance(n, ast.Name)}
        if names & set(self.loops):
            raise Unsupported(f"an extent that changes in a loop: {text}")
        return text

    def _broadcast(self, parts: list[ShapedValue]) -> ShapedValue:
        rank = max(len(p.dims) for p in parts)
        dims = []
        for place in range(rank):
            wanted = {p.dims[place - rank + len(p.dims)] for p in parts if place - rank + len(p.dims) >= 0}
            wanted -= {"1"} if len(wanted) > 1 else set()
            if len(wanted) != 1:
                raise Unsupported("operands whose extents cannot be matched")
            dims.append(wanted.pop())
        dtypes = {p.dtype for p in parts if p.dtype is not None}
        if len(dtypes) > 1:
            dtypes = {d for d in dtypes if d.endswith("float32")} or dtypes
        if len(dtypes) > 1:
            raise Unsupported("a promotion of dtypes that cannot be followed")
        return ShapedValue(tuple(dims), dtypes.pop() if dtypes else None)

    def _call(self, node: ast.Call) -> Abstract:
        path = ast.unparse(node.func)
        name = path.split(".")[-1]
        method = isinstance(node.func, ast.Attribute) and not self._module(node.func.value)
        arguments = [node.func.value, *node.args] if method and isinstance(node.func, ast.Attribute) else node.args
        if name == "astype" and method:
            return ShapedValue(self._array(arguments[0]).dims, ast.unparse(node.args[0]))
        if name in _REDUCING:
            return self._reduced(node, self._array(arguments[0]), list(arguments[1:]))
        if name in _UNARY:
            return self._array(arguments[0])
        if name in _BROADCASTING:
            parts = [self._array(a) for a in arguments]
            return self._broadcast(parts[1:] if name == "where" else parts)
        if name in ("broadcast_to", "reshape"):
            shape = arguments[1] if len(arguments) == 2 else ast.Tuple(list(arguments[1:]), ast.Load())
            if isinstance(shape, ast.Tuple | ast.List) and "-1" not in ast.unparse(shape):
                return ShapedValue(tuple(self.static(e) for e in shape.elts), self._array(arguments[0]).dtype)
        function = self.kernel.function(path, near=self.view.function) if path.isidentifier() else None
        if function is not None:
            return self._apply(function, node)
        raise Unsupported(f"a call whose shape cannot be inferred: {path}")

    def _module(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.kernel.aliases

    def _reduced(self, node: ast.Call, base: ShapedValue, rest: list[ast.expr]) -> ShapedValue:
        options = {k.arg: k.value for k in node.keywords}
        axis = options.get("axis", rest[0] if rest else None)
        keep = ast.unparse(options["keepdims"]) == "True" if "keepdims" in options else False
        if axis is None:
            return ShapedValue(("1",) * len(base.dims) if keep else (), base.dtype)
        try:
            chosen = ast.literal_eval(axis)
        except ValueError as error:
            raise Unsupported("a reduction over a computed axis") from error
        axes = {a % len(base.dims) for a in (chosen if isinstance(chosen, tuple) else (chosen,))}
        if keep:
            return ShapedValue(tuple("1" if i in axes else d for i, d in enumerate(base.dims)), base.dtype)
        return ShapedValue(tuple(d for i, d in enumerate(base.dims) if i not in axes), base.dtype)

    def _apply(self, function: cst.FunctionDef, node: ast.Call) -> Abstract:
        """Interpret a local helper on the arguments' abstract values."""
        outer = self.frame
        inner = _Frame()
        names = [p.name.value for p in parameters(function)]
        given = [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords if k.arg)]
        for name, argument in given:
            inner.values[name] = self.value(argument)
            inner.texts[name] = _Translate(self).visit(_expression(ast.unparse(argument)))
        self.frame = inner
        try:
            body = "\n".join(dedented(self.kernel, s) for s in function.body.body)
            found = self._block(ast.parse(body).body)
        finally:
            self.frame = outer
        if found is None:
            raise Unsupported(f"a helper that returns nothing plain: {function.name.value}")
        return found


class _Translate(ast.NodeTransformer):
    """Static kernel names to the launch's: bound keywords, local definitions, extents of references."""

    def __init__(self, inference: Inference, depth: int = 0) -> None:
        self.inference, self.depth = inference, depth
        if depth > 20:
            raise Unsupported("a definition that refers to itself")

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self.inference.frame.texts.get(node.id)
        if found is None or (isinstance(found, ast.Name) and found.id == node.id):
            return node
        if node.id in self.inference.loops:
            return node
        if node.id in self.inference.view.bound:
            return _expression(ast.unparse(found))
        return _Translate(self.inference, self.depth + 1).visit(_expression(ast.unparse(found)))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        base = node.value
        if isinstance(base, ast.Attribute) and base.attr == "shape" and isinstance(base.value, ast.Name):
            shaped = self.inference.frame.values.get(base.value.id)
            if isinstance(shaped, ShapedValue) and isinstance(node.slice, ast.Constant):
                return _expression(shaped.dims[int(node.slice.value)])  # type: ignore[arg-type]
        return self.generic_visit(node)  # type: ignore[return-value]


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def loop_count(inference: Inference, kernel: KernelSource, loop: cst.For) -> str:
    """Text of the number of iterations of a loop over ``range`` or ``enumerate(range(...))``."""
    call = loop.iter
    while isinstance(call, cst.Call) and kernel.code(call.func) == "enumerate":
        call = call.args[0].value
    if not isinstance(call, cst.Call) or kernel.code(call.func) != "range":
        raise Unsupported("a loop that is not over range")
    texts = [inference.static(_expression(kernel.code(a.value))) for a in call.args]
    return texts[0] if len(texts) == 1 else f"len(range({', '.join(texts)}))"
