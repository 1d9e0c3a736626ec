"""Writes a recorded call as a kernel module: its kernels, ``launch``, and the knobs between them."""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import triton.language as tl
from triton.runtime.jit import TensorWrapper

from tilewright.workers.intake.calls.sizes import size_code
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.source.knobs import constexprs
from tilewright.workers.intake.triton import scalar_reads, torch_kernels
from tilewright.workers.intake.triton.autograd_pair import GRADIENT
from tilewright.workers.intake.triton.dead_branches import constants_of
from tilewright.workers.intake.triton.kernel_module import KernelModule, Origin, ResultTypes
from tilewright.workers.intake.triton.kernel_text import Kernels, Text, dtype_name, is_jitted
from tilewright.workers.intake.triton.knob_finder import KnobFinder, selecting
from tilewright.workers.intake.triton.results import argument_uses, forward_results, results_of, root_of
from tilewright.workers.intake.triton.trace import Launch, Trace, Var, Work
from tilewright.workers.intake.triton.wrapper_text import wrapper_text

COPY = "copy_argument"
COPY_TEXT = """@triton.jit
def copy_argument(source, target, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < size), mask=at < size)"""
"""The kernel that copies an argument which the function changes in place."""

_DESCRIPTOR = "from triton.tools.tensor_descriptor import TensorDescriptor\n"
_STRANGER = "a kernel is given a tensor that is neither argument nor made by the call"


def module_of(trace: Trace, origin: Origin, types: ResultTypes) -> KernelModule:
    """The module of a recording. Raises Refusal."""
    return _ModuleWriter(trace, origin).module(types)


class _ModuleWriter:
    def __init__(self, trace: Trace, origin: Origin) -> None:
        self._trace, self._origin = trace, origin
        self._kernels = Kernels()
        self._finder = KnobFinder(trace, origin)
        self._kernels.refusals += trace.refusals
        self._notes: list[str] = list(trace.notes)
        self._apart: set[str] = set()
        """Arguments that are written as other tensors than those that are read."""
        self._pinned: list[str] = []
        """Conditions on the sizes of output arguments that no other argument has: they are numbers in ``launch``."""

    def module(self, types: ResultTypes) -> KernelModule:
        launches = [step for step in self._trace.steps if isinstance(step, Launch)]
        if not launches:
            raise Refusal("the call launches no Triton kernel")
        by_kernel: dict[Any, list[Mapping[str, Any]]] = {}
        for launch in launches:
            by_kernel.setdefault(launch.kernel.fn, []).append(launch.arguments)
        for kernel, given in by_kernel.items():
            self._kernels.given[id(kernel)] = constants_of(given, selecting(kernel))
        results = results_of(self._trace, types, self._origin.keeps_arguments)
        self._kernels.refusals += results.refusals
        body = self._statements(launches, results.chosen, results.replaced)
        self._kernels.keep_used(body)
        source = self._kernels.module(
            f"def launch(inputs, params):\n{body}",
            f"From {self._origin.title}.",
            _DESCRIPTOR if "TensorDescriptor(" in body else "",
        )
        notes = [*self._notes, *self._finder.notes, *self._kernels.notes]
        left_out = [*self._trace.left_out, *results.left_out, *self._kernels.left_out]
        wrapper = wrapper_text(self._trace, results, self._finder.plain_code, left_out)
        wrapper = replace(wrapper, conditions=(*wrapper.conditions, *self._pinned))
        return KernelModule(
            source,
            list(self._finder.knobs.values()),
            [var.tensor for var in results.chosen],
            self._kernels,
            notes,
            wrapper=wrapper,
            left_out=list(dict.fromkeys(left_out)),
            meant=self._finder.meant,
        )

    def _statements(self, launches: Sequence[Launch], outputs: Sequence[Var], replaced: Mapping[str, str]) -> str:
        lines: list[str] = []
        used = self._used_vars(launches, outputs)
        for launch in launches:  # all knobs are known before the first number that may repeat one
            fixed = constexprs(launch.kernel.fn)
            for parameter, value in launch.arguments.items():
                size = isinstance(value, int) and not isinstance(value, bool | traced_numbers.TracedBool)
                if size and parameter in fixed:
                    self._finder.number(value, parameter, True, launch)
        self._apart = {name for name, how in replaced.items() if how == "apart"}
        inputs = self._trace.inputs
        for name, var in inputs.items():
            if not name.startswith(GRADIENT):
                lines += self._given(name, var, replaced)
        halves = self._halves(outputs)
        returned: dict[int, str] = {}
        for place, step in enumerate([*self._trace.steps, None]):
            if place == self._trace.split:
                self._return(halves[0], returned, lines)
                for name in filter(lambda n: n.startswith(GRADIENT), inputs):
                    lines += self._given(name, inputs[name], replaced)
            if step is None:
                break
            if isinstance(step, Launch):
                lines += self._launch(step, launches)
            elif isinstance(step, Work):
                if root_of(step.target).name in used:
                    lines.append(self._work(step))
            elif isinstance(step, tuple):
                var, method = step
                if root_of(var).name in used:
                    lines.append(f"{var.name}.{method}()")
            elif step.name in used and step.text is not None:
                lines.append(f"{step.name} = {self._finder.resolved(step.text)}")
        self._return(halves[1], returned, lines)
        lines.append(f"return ({', '.join(returned[n] for n in range(len(outputs)))},)")
        return "".join(f"    {line if line.startswith('return') else ast.unparse(ast.parse(line))}\n" for line in lines)

    def _given(self, name: str, var: Var, replaced: Mapping[str, str]) -> list[str]:
        """The statements that name an argument, or what is written in its place."""
        given, how = f'inputs["{name}"]', replaced.get(name)
        if how is None:
            return [f"{name} = {given}"]
        if how == "fresh":
            return [f"{name} = torch.empty(({self._fresh_shape(var, replaced)},), dtype={var.tensor.dtype})"]
        made = [f"{name} = torch.empty_like({given})"]
        if how == "copied":
            made.append(f"{COPY}[(triton.cdiv({name}.numel(), 4096),)]({given}, {name}, {name}.numel(), 4096)")
            self._kernels.functions.setdefault(COPY, Text(COPY, COPY_TEXT, ""))
            self._notes.append(f"{name} is changed in place: each call copies it first, and the copy's time counts")
        return made

    def _halves(self, outputs: Sequence[Var]) -> tuple[dict[int, Var], dict[int, Var]]:
        """The results by number: those of a pair's forward, and the others."""
        numbered = dict(enumerate(outputs))
        if self._trace.split is None:
            return {}, numbered
        first = {n: var for n, var in numbered.items() if n in forward_results(self._trace, outputs)}
        return first, {n: var for n, var in numbered.items() if n not in first}

    def _return(self, results: Mapping[int, Var], returned: dict[int, str], lines: list[str]) -> None:
        """Name results as they are returned, contiguous."""
        for place, var in results.items():
            returned[place] = var.name
            if not var.tensor.is_contiguous():
                returned[place] = f"r{place}"
                shape = "".join(f"{var.name}.shape[{axis}], " for axis in range(var.tensor.dim()))
                lines.append(f"r{place} = torch.empty(({shape}), dtype={var.tensor.dtype})")
                target = Var(f"r{place}", torch.empty_like(var.tensor, memory_format=torch.contiguous_format), "fresh")
                own = Trace({})
                if not torch_kernels.elementwise(own, "copy", "x0", [var], target, var.line):
                    raise Refusal("a result is a view of more than six dimensions", var.line)
                lines.append(self._work(own.steps[0]))

    def _work(self, work: Work) -> str:
        """The launch of a kernel of ours."""
        self._kernels.functions.setdefault(work.kernel, Text(work.kernel, work.text, ""))
        place = f"line {work.line}: " if work.line else ""
        self._notes.append(f"{place}torch's {work.what} becomes a kernel, and its time counts")
        return self._finder.resolved(work.call)

    def _fresh_shape(self, var: Var, replaced: Mapping[str, str]) -> str:
        """The shape of an output argument, said by the shapes of what is truly given."""
        places = {
            dim: f'inputs["{name}"].shape[{axis}]'
            for name, shape in self._origin.dims.items()
            if name not in replaced
            for axis, dim in enumerate(shape)
            if isinstance(dim, str)
        }
        sizes = [size_code(dim, places) for dim in self._origin.dims[var.name]]
        for axis, size in enumerate(var.tensor.shape):
            if not sizes[axis]:
                self._pinned.append(f"{var.name}.shape[{axis}] == {int(size)}")
        return ", ".join(code or str(int(size)) for code, size in zip(sizes, var.tensor.shape, strict=True))

    def _used_vars(self, launches: Sequence[Launch], outputs: Sequence[Var]) -> set[str]:
        used: set[str] = set()
        texts: list[str] = []
        works = [step for step in self._trace.steps if isinstance(step, Work)]

        def add(var: Var) -> None:
            if var.name in used:
                return
            used.add(var.name)
            if var.is_foreign:
                self._kernels.refusals.append((var.line, f"torch computes {var.foreign} outside a kernel"))
            if var.base is not None:
                add(var.base)
            if var.text:
                texts.append(var.text)
            for work in works:
                if root_of(work.target).name == root_of(var).name:
                    texts.append(work.call)
                    for read in (*work.reads, work.target):
                        add(read)

        for launch in launches:
            for value in (*launch.arguments.values(), *launch.grid):
                if isinstance(value, torch.Tensor):
                    found = self._trace.find(value)
                    if found is None:
                        raise Refusal(_STRANGER, launch.line)
                    add(found)
                elif isinstance(value, traced_numbers.Traced):
                    texts.append(value.code)
                    for atom in value.atoms & set(self._trace.reads):
                        add(self._trace.reads[atom])
                elif isinstance(value, TensorWrapper) or _is_descriptor(value):
                    add(self._base_of(value, launch.line))
        for var in outputs:
            add(var)
        by_name = {step.name: step for step in self._trace.steps if isinstance(step, Var)}
        place = 0
        while place < len(texts):
            for name in re.findall(r"\b[tvu]\d+\b", texts[place]):
                if name in by_name:
                    add(by_name[name])
            place += 1
        return used

    def _base_of(self, value: Any, line: int) -> Var:
        found = self._trace.find(value.base)
        if found is None:
            raise Refusal(_STRANGER, line)
        return found

    def _launch(self, launch: Launch, launches: Sequence[Launch]) -> list[str]:
        kernel = launch.kernel
        fixed = constexprs(kernel.fn)
        name, read = self._reading(launch, fixed)
        arguments = []
        for parameter, value in launch.arguments.items():
            given = read.get(parameter)
            arguments += [self._argument(parameter, value, parameter in fixed, launch)] if given is None else given
        missing = [p for p in kernel.arg_names if p not in launch.arguments]
        if missing:
            raise Refusal(f"the launch of {kernel.fn.__name__} leaves out {', '.join(missing)}", launch.line)
        options = self._finder.options(launch, name, launches)
        grid = ", ".join(self._finder.number(g) for g in launch.grid)
        return [f"{name}[({grid},)]({', '.join([*arguments, *options])})"]

    def _reading(self, launch: Launch, fixed: Collection[str]) -> tuple[str, dict[str, list[str]]]:
        """The kernel of a launch, loading itself what the wrapper read from tensors: its name, and by parameter the
        tensors that it is given instead."""
        name = self._kernels.add(launch.kernel)
        heads, given = {}, {}
        for parameter, value in launch.arguments.items():
            if scalar_reads.is_read(value):
                own = self._kernels.parameters[name].get(parameter, parameter)
                head = scalar_reads.head(own, self._finder.plain_code(value.code), self._trace.reads)
                if head is None or parameter in fixed:
                    what = f"argument {parameter} of a kernel is computed from a tensor's values"
                    self._kernels.refusals.append((launch.line, what))
                else:
                    heads[own] = head
                given[parameter] = [] if head is None else [self._trace.reads[a].name for a in head.given.values()]
        if any(map(scalar_reads.is_read, launch.grid)):
            self._kernels.refusals.append((launch.line, "a grid is computed from a tensor's values"))
        return self._kernels.variant(name, heads) if heads else name, given

    def _argument(self, parameter: str, value: Any, constexpr: bool, launch: Launch) -> str:
        if isinstance(value, TensorWrapper):
            base = self._base_of(value, launch.line)
            return f"triton.reinterpret({base.name}, tl.{dtype_name(value.dtype)})"
        if isinstance(value, torch.Tensor):
            found = self._trace.find(value)
            assert found is not None
            if root_of(found).name in self._apart and argument_uses(launch).get(parameter, "read") == "read":
                return self._finder.resolved(_before(found))
            return found.name
        if value is None or isinstance(value, str | bool):
            return repr(value)
        if isinstance(value, int | float):
            return self._finder.number(value, parameter, constexpr, launch)
        if isinstance(value, tl.constexpr):
            return self._argument(parameter, value.value, True, launch)
        if isinstance(value, tl.dtype):
            return f"tl.{dtype_name(value)}"
        if isinstance(value, torch.dtype):
            name = str(value).removeprefix("torch.")
            return f"tl.{ {'float8_e4m3fn': 'float8e4nv', 'float8_e5m2': 'float8e5'}.get(name, name) }"
        if isinstance(value, tuple | list):
            return f"({', '.join(self._argument(parameter, v, constexpr, launch) for v in value)},)"
        if is_jitted(value):
            return self._kernels.add(value)
        if _is_descriptor(value):
            base = self._base_of(value, launch.line)
            parts = [
                [self._finder.number(n, parameter, part is value.block_shape, launch) for n in part]
                for part in (value.shape, value.strides, value.block_shape)
            ]
            return f"TensorDescriptor({base.name}, {', '.join('[' + ', '.join(p) + ']' for p in parts)})"
        raise Refusal(f"argument {parameter} of a kernel is a {type(value).__name__}", launch.line)


def _before(var: Var) -> str:
    """An expression of an argument's view as the call gives it, where its name stands for what is written instead."""
    base = var.base
    if base is None:
        return f'inputs["{var.name}"]'
    given = _before(base)
    return re.sub(rf"\b{base.name}\b", lambda _: given, var.text) if var.text else given


def _is_descriptor(value: object) -> bool:
    return hasattr(value, "block_shape") and hasattr(value, "base")
