"""The function ``launch`` of a recorded call of kernels in CUDA C++, as text over the shapes of its inputs."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tilewright.library.plans.format import Tensor
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.cuda.device_code import TYPES
from tilewright.workers.intake.cuda.host_code import Launch, Pointer
from tilewright.workers.intake.cuda.torch_steps import THREADS, kernel_of
from tilewright.workers.intake.operator import Operand
from tilewright.workers.intake.source.traced_numbers import code_of, plain
from tilewright.workers.intake.triton import trace as recorded
from tilewright.workers.intake.triton.results import root_of
from tilewright.workers.intake.triton.trace import Trace, Var, Work

_NEW = ("fresh", "zeros")
_ADDS = r"\batomic\w+\s*\(\s*&?\s*{0}\b|\b{0}\s*\[[^;=]*\]\s*[-+*/|&^]=(?!=)"
_WRITES = r"\b{0}\s*\[[^;=]*\]\s*=(?!=)|(?:_cast<[^>]*>\s*\(|\([\w ]+\*\)\s*\(?)\s*&?\s*{0}\b|" + _ADDS
_WORDS = {1: "char", 2: "short", 4: "int", 8: "long long"}
COPY = """
template <typename T>
__global__ void copied(T* to, const T* from, long long count) {
    long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    for (long long i = first; i < count; i += gridDim.x * blockDim.x) to[i] = from[i];
}
"""
"""What a kernel changes that is not its own, it is given a copy of."""
Dims = Mapping[str, int]


def launched(text: str, operands: Sequence[Operand], dims: Dims, params: Mapping[str, Any]) -> Any:
    """What a ``launch`` says at some dimensions. Raises whatever it raises."""
    scope: dict[str, Any] = {}
    exec(re.sub(r"\$(\w+)\$", lambda found: str(params[found[1]]), text), scope)
    return scope["launch"]({o.name: Tensor(o.name, o.dtype, o.sizes(dims)) for o in operands}, dict(params))


def pointers(trace: Trace) -> Iterator[Pointer]:
    """What the launches of a recording are given."""
    given = (value for step in trace.steps if isinstance(step, Launch) for value in step.arguments)
    return (value for value in given if isinstance(value, Pointer))


def written(trace: Trace, how: str = _WRITES) -> tuple[str, ...]:
    """Arguments of the call that its kernels assign to, by the kernels' texts."""
    found = set()
    for step in (s for s in trace.steps if isinstance(s, Launch)):
        for parameter, value in zip(step.parameters, step.arguments, strict=True):
            var = trace.find(value.tensor) if isinstance(value, Pointer) and not parameter.const else None
            if var is not None and re.search(how.format(parameter.name), step.text):
                found.add(root_of(var).name)
    return tuple(name for name in trace.inputs if name in found)


class LaunchWriter:
    """Writes a recording down. ``literal``: with plain numbers; ``sized``: whether some size had to be one."""

    def __init__(
        self,
        trace: Trace,
        outputs: Sequence[str],
        numbers: Collection[str],
        options: Mapping[str, str],
        literal: bool = False,
        changed: Collection[str] = (),
    ) -> None:
        """``numbers``: names of parameters; ``options``: the compiler's, as texts; ``changed``: arguments that kernels
        may change, of which they then get a copy. Raises Refusal."""
        self.numbers = numbers
        self._trace, self._literal, self.sized = trace, literal, False
        self.kernels: list[str] = []
        listed = ", ".join(f'"{name}": {value}' for name, value in options.items())
        self._options = f', "options": {{{listed}}}' * bool(options)
        self._vars = {**trace.inputs, **{step.name: step for step in trace.steps if isinstance(step, Var)}}
        self._outputs: dict[int, str] = {}
        self.copied = {name: f"{name}_own" for name in written(trace) if name not in outputs}
        for name in self.copied:
            if name not in changed or not trace.inputs[name].tensor.is_contiguous():
                raise Refusal(f"a kernel changes {name}, an argument of the call")
        for tensor, name in zip(trace.results, outputs if trace.results else (), strict=True):
            root = self._root(tensor, "after the kernels")
            whole = root.tensor.numel() == tensor.numel() and tensor.is_contiguous()
            made = root.kind in _NEW or root.name in self.copied
            if not made or id(root) in self._outputs or not whole:
                raise Refusal("a result is an argument of the call, another result, or a part of a tensor")
            self._outputs[id(root)] = name
        self._results = [*self._outputs.values()]
        for name, own in self.copied.items():
            self.copied[name] = self._outputs.setdefault(id(trace.inputs[name]), own)

    def text(self) -> str:
        """Raises Refusal."""
        added = written(self._trace, _ADDS) if not self._trace.results else ()
        steps, scratch = [f'{{"zero": "{name}"}}' for name in added], []
        for name, own in self.copied.items():
            tensor, count = self._trace.inputs[name].tensor, self.product(name, 0)
            if own not in self._results:
                scratch.append(f'"{own}": ("{str(tensor.dtype)[6:]}", ({count},))')
            sizes = '"grid": (1024, 1, 1), "block": (256, 1, 1), "shared": 0'
            steps.append(
                f'{{"kernel": "copied<{_WORDS[tensor.element_size()]}>", {sizes}, '
                f'"arguments": ("{own}", "{name}", {{"i64": {count}}})}}'
            )
        used = {*self._outputs, *(id(self._root(p.tensor, "on a tensor")) for p in pointers(self._trace))}
        for step in reversed(self._trace.steps):
            if isinstance(step, Work) and id(root_of(step.target)) in used:
                used |= {id(root_of(var)) for var in step.reads}
        for step in self._trace.steps:
            new = isinstance(step, Var) and step.kind in _NEW and id(step) in used
            if isinstance(step, Work) and id(root_of(step.target)) in used:
                steps.append(self._torch_step(step))
            if isinstance(step, recorded.Launch):
                raise Refusal("it launches Triton kernels beside those in CUDA C++", step.line)
            if new and id(step) not in self._outputs:
                sizes = "".join(f"{self._size(step, axis)}, " for axis in range(step.tensor.dim()))
                scratch.append(f'"{step.name}": ("{str(step.tensor.dtype)[6:]}", ({sizes}))')
            if isinstance(step, tuple) or (new and step.kind == "zeros"):
                steps.append(f'{{"zero": "{self._slot(step[0] if isinstance(step, tuple) else step)}"}}')
            elif isinstance(step, Launch):
                steps.append(self._launch(step))
        parts = f'"steps": ({", ".join(steps)},), "scratch": {{{", ".join(scratch)}}}{self._options}'
        plan = f"{{{parts}}}"
        inputs = [name for name in self._trace.inputs if re.search(rf"\b{name}\.shape", plan)]
        lines = "".join(f'    {name} = inputs["{name}"]\n' for name in inputs)
        return "import math\n\n\n" * ("math." in plan) + f"def launch(inputs, params):\n{lines}    return {plan}\n"

    def _root(self, tensor: Any, where: str) -> Var:
        var = self._trace.find(tensor)
        if var is None:
            raise Refusal("a kernel is given a tensor that is neither argument nor made by the call")
        root = root_of(var)
        if var.foreign or root.foreign or root.kind == "foreign":
            raise Refusal(f"torch computes {var.foreign or root.foreign} {where}", var.line)
        return root

    def _slot(self, var: Var) -> str:
        return self._outputs.get(id(root_of(var)), root_of(var).name)

    def _launch(self, launch: Launch) -> str:
        arguments = ""
        for parameter, value in zip(launch.parameters, launch.arguments, strict=True):
            if isinstance(value, Pointer):
                root = self._root(value.tensor, "on a tensor")
                first = value.tensor.storage_offset() * value.tensor.element_size()
                arguments += f'("{self._slot(root)}", {self._code(value.offset + first)}), '
            else:
                kind = TYPES[parameter.kind][1] if value is not None else "u64"
                arguments += f'{{"{kind}": {self._code(0 if value is None else value)}}}, '
        templates = [
            t if isinstance(t, str) else str(plain(t)) if self._literal else f"${code_of(t)}$" for t in launch.templates
        ]
        name = f"{launch.name}<{', '.join(templates)}>" if templates else launch.name
        grid, block = (f"({', '.join(map(self._code, sizes))})" for sizes in (launch.grid, launch.block))
        shared = self._code(launch.shared)
        sizes = f'"grid": {grid}, "block": {block}, "shared": {shared}'
        return f'{{"kernel": "{name}", {sizes}, "arguments": ({arguments})}}'

    def _sizes(self, var: Var) -> list[str]:
        """A tensor's shape as text."""
        return [self._size(var, axis) for axis in range(var.tensor.dim())]

    def _torch_step(self, work: Work) -> str:
        """torch's work as a kernel of ours. Raises Refusal."""
        name = f"torch_{work.what.strip('_')}{len(self.kernels)}"
        roots = [self._root(var.tensor, "on a tensor") for var in (*work.reads, work.target)]
        made = kernel_of(work, name, self._sizes) if roots[-1].kind in _NEW else None
        if made is None or roots[-1].tensor.numel() != work.target.tensor.numel():
            raise Refusal(f"torch computes {work.what} on a tensor", work.line)
        text, grid, given = made
        self.kernels.append(text)
        arguments = ""
        for value in given:
            if isinstance(value, Var):
                first = value.tensor.storage_offset() * value.tensor.element_size()
                arguments += f'("{self._slot(value)}", {first}), '
            else:
                kind, number = value
                arguments += f'{{"{kind}": {number if isinstance(number, str) else self._code(number)}}}, '
        sizes = f'"grid": ({grid}, 1, 1), "block": ({THREADS}, 1, 1), "shared": 0'
        return f'{{"kernel": "{name}", {sizes}, "arguments": ({arguments})}}'

    # -- numbers ---------------------------------------------------------------------------------

    def _code(self, value: Any) -> str:
        """A number by the inputs' shapes and by parameters; where these do not say it, its value."""
        if not self._literal and hasattr(value, "code"):
            try:
                return self._resolved(ast.parse(value.code, mode="eval").body)
            except LookupError:
                self.sized = True
        return code_of(plain(value))

    def _resolved(self, node: ast.expr) -> str:
        return ast.unparse(_Resolved(self).visit(node)).replace("'", '"')

    def size(self, name: str, axis: int) -> str:
        """The size of a tensor. Raises LookupError where nothing says it."""
        return self._size(self._vars[name], axis)

    def product(self, name: str, first: int) -> str:
        """The product of a tensor's sizes from an axis on. Raises LookupError."""
        if not self._vars[name].tensor.is_contiguous():
            raise LookupError(name)
        return " * ".join(f"({self.size(name, n)})" for n in range(first, self._vars[name].tensor.dim())) or "1"

    def _size(self, var: Var, axis: int) -> str:
        axis %= var.tensor.dim()
        if var.kind == "input" or self._literal:
            return str(int(var.tensor.shape[axis])) if self._literal else f"{var.name}.shape[{axis}]"
        made = ast.parse(var.text or "0", mode="eval").body
        if isinstance(made, ast.Call) and ast.unparse(made.func).endswith((".empty", ".zeros", ".view", ".reshape")):
            sizes = made.args[0].elts if isinstance(made.args[0], ast.Tuple) else made.args
            if not ast.unparse(sizes[axis]).startswith("-"):
                return self._resolved(sizes[axis])
            if var.base is not None and var.tensor.dim() == 1:
                return self.product(var.base.name, 0)
        self.sized = True
        return str(int(var.tensor.shape[axis]))


class _Resolved(ast.NodeTransformer):
    """What a recording says of its tensors' sizes, by the shapes of the inputs; numbers with a name as parameters."""

    def __init__(self, writer: LaunchWriter) -> None:
        self._writer = writer

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name, _, _ = ast.unparse(node.value).partition(".shape")
        return ast.parse(self._writer.size(name, ast.literal_eval(node.slice)), mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name, _, asked = ast.unparse(node.func).rpartition(".")
        if asked in ("numel", "stride"):
            first = 1 + ast.literal_eval(node.args[0]) if asked == "stride" else 0
            return ast.parse(self._writer.product(name, first), mode="eval").body
        node.args = [self.visit(argument) for argument in node.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._writer.numbers:
            raise LookupError(node.id)
        return ast.parse(f'params["{node.id}"]', mode="eval").body
