"""A recorded call as a module of the dialect: kernels, ``launch``, and the knobs between them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import triton.language as tl
from triton.runtime.jit import TensorWrapper

from tilewright.workers.intake import read_values, symbols, torch_ops
from tilewright.workers.intake.copies import COPY, COPY_TEXT
from tilewright.workers.intake.dead_branches import constants_of
from tilewright.workers.intake.knobs import STAGES, WARPS, Knob, around, between, constexprs
from tilewright.workers.intake.normalise import Kernels, Text, definition, dtype_name, is_jitted
from tilewright.workers.intake.pointers import written_tensors
from tilewright.workers.intake.taken import Origin, Taken, Wanted
from tilewright.workers.intake.trace import Launch, Refusal, Trace, Var, Work


def emit(trace: Trace, origin: Origin, wanted: Wanted) -> Taken:
    """The module of a recording. Raises Refusal."""
    return _Emitter(trace, origin).module(wanted)


class _Emitter:
    def __init__(self, trace: Trace, origin: Origin) -> None:
        self._trace, self._origin, self._dims, self._device = trace, origin.title, origin.dims, origin.device
        self._literals, self._names = origin.literals, origin.names
        self._kernels = Kernels()
        self._knobs: dict[str, Knob] = {}
        self._kernels.refusals += trace.refusals
        self._notes: list[str] = list(trace.notes)
        self._fixed: list[str] = []
        self._renamed: dict[str, str] = {}

    def module(self, wanted: Wanted) -> Taken:
        launches = [step for step in self._trace.steps if isinstance(step, Launch)]
        if not launches:
            raise Refusal("the call launches no Triton kernel")
        by_kernel: dict[int, list[Mapping[str, Any]]] = {}
        for launch in launches:
            by_kernel.setdefault(id(launch.kernel.fn), []).append(launch.arguments)
        self._kernels.given = {fn: constants_of(given) for fn, given in by_kernel.items()}
        outputs, replaced = self._outputs(launches, wanted)
        body = self._statements(launches, outputs, replaced)
        self._kernels.keep_used(body)
        constants = "".join(f"{n} = {t}\n" for n, t in self._kernels.constants.items())
        functions = "\n\n".join(t.text for t in self._kernels.functions.values())
        maths = "import math\n\n" if "math." in body else ""
        source = (
            f'"""Taken from {self._origin}."""\n\n{maths}import torch\nimport triton\nimport triton.language as tl\n\n'
            f"SPACE = {{}}\n\n{constants}\n\n{functions}\n\n\ndef launch(inputs, params):\n{body}"
        )
        if "TensorDescriptor(" in body:
            source = source.replace(
                "import triton.language as tl\n",
                "import triton.language as tl\n"
                "from triton.tools.tensor_descriptor import TensorDescriptor\n", 1)  # fmt: skip
        notes = [*self._notes, *self._kernels.notes]
        tensors = [var.tensor for var in outputs]
        return Taken(source, list(self._knobs.values()), tensors, self._kernels, notes, self._fixed)

    # -- outputs ---------------------------------------------------------------------------------

    def _outputs(self, launches: Sequence[Launch], wanted: Wanted) -> tuple[list[Var], dict[str, str]]:
        """Tensors that ``launch`` returns, and the inputs that are outputs in disguise."""
        written = written_tensors(launches)
        candidates: list[tuple[Var, torch.Tensor]] = []
        for result in self._trace.results:
            var = self._trace.find(result)
            if var is not None and all(var is not other for other, _ in candidates):
                candidates.append((var, result))
        replaced: dict[str, str] = {}
        for var in self._trace.inputs.values():
            use = self._use(var, written)
            if use == "written":
                replaced[var.name] = "fresh"
                if all(var is not other for other, _ in candidates):
                    candidates.append((var, var.tensor))
            elif use == "both":
                replaced[var.name] = "copied"
                if all(var is not other for other, _ in candidates):
                    candidates.append((var, var.tensor))
        candidates = [
            (v, t) for v, t in candidates if self._root(v).kind != "input" or self._root(v).name in replaced
        ]
        if wanted is None:
            chosen = [v for v, _ in candidates]
        else:
            chosen, left = [], list(candidates)
            for shape, dtype in wanted:
                fits = [c for c in left if tuple(c[1].shape) == shape and c[1].dtype == dtype]
                fits = fits or [c for c in left if tuple(c[1].shape) == shape]
                if not fits:
                    made = ", ".join(f"{list(t.shape)} {t.dtype}" for _, t in candidates) or "none"
                    raise Refusal(
                        f"the reference returns a result of shape {list(shape)}, and the call makes none ({made})"
                    )
                left = [c for c in left if c[0] is not fits[0][0]]
                chosen.append(fits[0][0])
            if left:
                self._notes.append(
                    f"{len(left)} more result(s) of the call are not judged: the reference has none"
                )
        if not chosen:
            raise Refusal("the call returns no tensor, and its kernels write to none of its arguments")
        for var in chosen:
            if var.foreign or var.kind == "foreign":
                self._kernels.refusals.append((var.line, f"torch computes {var.foreign} after the kernel"))
        return chosen, replaced

    def _root(self, var: Var) -> Var:
        while var.base is not None:
            var = var.base
        return var

    def _use(self, var: Var, written: Mapping[int, str]) -> str:
        found = {use for key, use in written.items() if self._root(self._trace.vars[key]).name == var.name}
        if found & {"both"} or {"read", "written"} <= found:
            return "both"
        return "written" if "written" in found else "read"

    # -- launch ----------------------------------------------------------------------------------

    def _statements(
        self, launches: Sequence[Launch], outputs: Sequence[Var], replaced: Mapping[str, str]
    ) -> str:
        lines: list[str] = []
        used = self._used_vars(launches, outputs)
        for name, var in self._trace.inputs.items():
            if name in replaced:
                if replaced[name] == "copied":
                    given = f'inputs["{name}"]'
                    lines.append(f"{name} = torch.empty_like({given})")
                    lines.append(
                        f"{COPY}[(triton.cdiv({name}.numel(), 4096),)]({given}, {name}, {name}.numel(), 4096)"
                    )
                    self._kernels.functions.setdefault(COPY, Text(COPY, COPY_TEXT, ""))
                    self._notes.append(
                        f"{name} is changed in place: it is copied first, and the copy's time counts"
                    )
                else:
                    shape = self._fresh_shape(var, replaced)
                    lines.append(f"{name} = torch.empty(({shape},), dtype={var.tensor.dtype})")
            else:
                lines.append(f'{name} = inputs["{name}"]')
        for step in self._trace.steps:
            if isinstance(step, Launch):
                lines += self._launch(step, launches)
            elif isinstance(step, Work):
                if self._root(step.target).name in used:
                    lines.append(self._work(step))
            elif isinstance(step, tuple):
                var, method = step
                if self._root(var).name in used:
                    lines.append(f"{var.name}.{method}()")
            elif step.name in used and step.text is not None:
                lines.append(f"{step.name} = {self._resolved(step.text)}")
        returned = []
        for place, var in enumerate(outputs):
            returned.append(var.name)
            if not var.tensor.is_contiguous():
                returned[-1] = f"r{place}"
                shape = "".join(f"{var.name}.shape[{axis}], " for axis in range(var.tensor.dim()))
                lines.append(f"r{place} = torch.empty(({shape}), dtype={var.tensor.dtype})")
                target = Var(
                    f"r{place}", torch.empty_like(var.tensor, memory_format=torch.contiguous_format), "fresh"
                )
                own = Trace({})
                if not torch_ops.elementwise(own, "copy", "x0", [var], target, var.line):
                    raise Refusal("a result is a view of more than six dimensions", var.line)
                lines.append(self._work(own.steps[0]))
        lines.append(f"return ({', '.join(returned)},)")
        return "".join(f"    {_tidy(line)}\n" for line in lines)

    def _work(self, work: Work) -> str:
        """The launch of a kernel of ours."""
        self._kernels.functions.setdefault(work.kernel, Text(work.kernel, work.text, ""))
        place = f"line {work.line}: " if work.line else ""
        self._notes.append(f"{place}torch's {work.what} becomes a kernel, whose time counts")
        return self._resolved(work.call)

    def _fresh_shape(self, var: Var, replaced: Mapping[str, str]) -> str:
        """The shape of an output argument, said by the shapes of what is truly given."""
        said = []
        for size, dim in zip(var.tensor.shape, self._dims[var.name], strict=True):
            places = [(n, axis) for n, shape in self._dims.items() if n not in replaced
                      for axis, other in enumerate(shape) if isinstance(dim, str) and other == dim]  # fmt: skip
            said.append(f'inputs["{places[0][0]}"].shape[{places[0][1]}]' if places else str(int(size)))
        return ", ".join(said)

    def _used_vars(self, launches: Sequence[Launch], outputs: Sequence[Var]) -> set[str]:
        used: set[str] = set()
        texts: list[str] = []
        works = [step for step in self._trace.steps if isinstance(step, Work)]

        def add(var: Var) -> None:
            if var.name in used:
                return
            used.add(var.name)
            if var.foreign or var.kind == "foreign":
                self._kernels.refusals.append((var.line, f"torch computes {var.foreign} outside a kernel"))
            if var.base is not None:
                add(var.base)
            if var.text:
                texts.append(var.text)
            for work in works:
                if self._root(work.target).name == self._root(var).name:
                    texts.append(work.call)
                    for read in (*work.reads, work.target):
                        add(read)

        for launch in launches:
            for value in (*launch.arguments.values(), *launch.grid):
                if isinstance(value, torch.Tensor):
                    found = self._trace.find(value)
                    if found is None:
                        raise Refusal(
                            "a kernel is given a tensor that is neither argument nor made by the call",
                            launch.line,
                        )
                    add(found)
                elif isinstance(value, TensorWrapper):
                    add(self._descriptor_base(value, launch.line))
                elif isinstance(value, symbols.Traced):
                    texts.append(value.code)
                    for atom in value.atoms & set(self._trace.reads):
                        add(self._trace.reads[atom])
                elif hasattr(value, "block_shape") and hasattr(value, "base"):
                    add(self._descriptor_base(value, launch.line))
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

    def _descriptor_base(self, value: Any, line: int) -> Var:
        found = self._trace.find(value.base)
        if found is None:
            raise Refusal("a descriptor is of a tensor that is neither argument nor made by the call", line)
        return found

    def _launch(self, launch: Launch, launches: Sequence[Launch]) -> list[str]:
        kernel = launch.kernel
        fixed = constexprs(kernel.fn)
        name = self._reading(launch, fixed)
        for parameter, value in launch.arguments.items():
            if parameter in fixed and isinstance(value, symbols.Traced) and "compiled" not in value.atoms:
                self._lift(value, parameter, launch)
        self._note_echoes(launch, fixed)
        arguments = []
        for parameter, value in launch.arguments.items():
            if read_values.is_read(value):
                arguments += self._given(parameter, value)
            else:
                arguments.append(self._argument(parameter, value, parameter in fixed, launch))
        missing = [p for p in kernel.arg_names if p not in launch.arguments]
        if missing:
            raise Refusal(f"the launch of {kernel.fn.__name__} leaves out {', '.join(missing)}", launch.line)
        options = self._options(launch, name, launches)
        grid = ", ".join(self._number(g, launch.line) for g in launch.grid)
        return [f"{name}[({grid},)]({', '.join([*arguments, *options])})"]

    def _reading(self, launch: Launch, fixed: Collection[str]) -> str:
        """The kernel of a launch, loading itself what the wrapper read from tensors; its name."""
        heads = {}
        for parameter, value in launch.arguments.items():
            if read_values.is_read(value):
                head = self._head(parameter, value)
                if head is None or parameter in fixed:
                    what = f"argument {parameter} of a kernel is worked out from a tensor's values"
                    self._kernels.refusals.append((launch.line, what))
                else:
                    heads[self._renamed_parameter(launch, parameter)] = head
        if any(map(read_values.is_read, launch.grid)):
            self._kernels.refusals.append((launch.line, "a grid is worked out from a tensor's values"))
        name = self._kernels.take(launch.kernel)
        return self._kernels.variant(name, heads) if heads else name

    def _renamed_parameter(self, launch: Launch, parameter: str) -> str:
        return self._kernels.parameters[self._kernels.take(launch.kernel)].get(parameter, parameter)

    def _head(self, parameter: str, value: Any) -> read_values.Head | None:
        return read_values.head(parameter, value.code, self._trace.reads)

    def _given(self, parameter: str, value: Any) -> list[str]:
        """What a kernel is given in place of a number that was read from a tensor."""
        head = self._head(parameter, value)
        texts = head.given.values() if head is not None else ()
        return [self._trace.reads[t].name if t in self._trace.reads else self._resolved(t) for t in texts]

    def _options(self, launch: Launch, name: str, launches: Sequence[Launch]) -> list[str]:
        several = len({id(step.kernel.fn) for step in launches}) > 1
        suffix = f"_{name}" if several else ""
        given = dict(launch.options)
        said = []
        warps = int(symbols.plain(given.pop("num_warps", 4)))
        said.append(f"num_warps={self._option(f'num_warps{suffix}', warps, WARPS, launch, 'num_warps')}")
        loops = any(isinstance(n, ast.For | ast.While) for n in ast.walk(definition(launch.kernel.fn)[0]))
        stages = given.pop("num_stages", None)
        own = "num_stages" in launch.arguments
        if not own and (loops or stages is not None):
            value = int(symbols.plain(stages if stages is not None else 3))
            said.append(
                f"num_stages={self._option(f'num_stages{suffix}', value, STAGES, launch, 'num_stages')}"
            )
        for key, value in given.items():
            plain = symbols.plain(value)
            if key in ("waves_per_eu", "matrix_instr_nonkdim", "kpack"):
                self._notes.append(
                    f"{key}={plain} of the launch is left out: it speaks of another vendor's device"
                )
            elif key == "num_ctas" and plain == 1:
                continue
            else:
                said.append(f"{key}={plain!r}")
        return said

    def _option(self, name: str, value: int, known: Sequence[int], launch: Launch, key: str) -> str:
        configured = _configured(launch, key, value)
        low, high = (1, 16) if key == "num_warps" else (1, 5)
        values = tuple(sorted({value, *configured, *(v for v in known if low <= v <= high)}))
        source = f"option {key} of the launch at line {launch.line}"
        self._add(Knob(name, value, values, name, source, True, configured))
        return f'params["{name}"]'

    def _add(self, knob: Knob) -> None:
        self._knobs.setdefault(knob.name, knob)

    def _argument(self, parameter: str, value: Any, constexpr: bool, launch: Launch) -> str:
        if isinstance(value, TensorWrapper):
            base = self._trace.find(value.base)
            if base is None:
                raise Refusal(
                    "a kernel is given a tensor that is neither argument nor made by the call", launch.line
                )
            return f"triton.reinterpret({base.name}, tl.{dtype_name(value.dtype)})"
        if isinstance(value, torch.Tensor):
            found = self._trace.find(value)
            assert found is not None
            return found.name
        if value is None or isinstance(value, str):
            return repr(value)
        if isinstance(value, bool):
            return repr(value)
        if isinstance(value, int | float):
            return self._number(value, launch.line, parameter, constexpr, launch)
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
            return self._kernels.take(value)
        if hasattr(value, "block_shape") and hasattr(value, "base"):
            base = self._descriptor_base(value, launch.line)
            parts = [[self._number(n, launch.line, parameter, True, launch) for n in part]
                     for part in (value.shape, value.strides, value.block_shape)]  # fmt: skip
            return f"TensorDescriptor({base.name}, {', '.join('[' + ', '.join(p) + ']' for p in parts)})"
        raise Refusal(f"argument {parameter} of a kernel is a {type(value).__name__}", launch.line)

    # -- numbers and knobs -----------------------------------------------------------------------

    def _number(
        self,
        value: Any,
        line: int,
        parameter: str = "",
        constexpr: bool = False,
        launch: Launch | None = None,
    ) -> str:
        if not isinstance(value, symbols.Traced):
            return symbols.number_text(value)
        if "compiled" in value.atoms:
            value = self._occupancy(value)
            if isinstance(value, str):
                return value
        if constexpr and launch is not None:
            self._lift(value, parameter, launch)
        return self._resolved(value.code)

    def _lift(self, value: Any, parameter: str, launch: Launch) -> None:
        """Make knobs of the literals and configurations that a compile-time argument is made of."""
        for atom in sorted(value.atoms - {knob.atom for knob in self._knobs.values()}):
            if atom.startswith("C") and atom in self._trace.atoms:
                default = self._trace.atoms[atom]
                key = atom.rpartition("__")[2].rstrip("_")
                configured = _configured(launch, key, default)
                values = tuple(sorted({default, *configured, *between(default, configured)}))
                source = f"autotune configurations of {launch.kernel.fn.__name__}"
                told = len(set(configured)) > 1  # else its authors never chose between values
                self._add(Knob(self._knob_name(key, launch), default, values, atom, source, told, configured))
            elif atom.startswith("K") and atom in self._trace.atoms:
                default = self._trace.atoms[atom]
                source = f"default of {parameter} of {launch.kernel.fn.__name__}"
                name = self._knob_name(parameter, launch)
                self._add(Knob(name, default, around(default), atom, source, False))
            elif atom in self._literals and not isinstance(value, symbols.TracedBool):
                default, _, line = self._literals[atom]
                exact = value.code == atom
                name = parameter if exact else self._names.get(atom) or f"{parameter}_{default}"
                self._add(
                    Knob(
                        self._knob_name(name, launch),
                        default,
                        around(default),
                        atom,
                        f"literal at line {line}",
                        False,
                    )
                )

    def _note_echoes(self, launch: Launch, fixed: set[str]) -> None:
        """Literals of the grid and of run-time arguments that have the value of a literal that is a knob."""
        given = [v for p, v in launch.arguments.items() if p not in fixed]
        repeated = {knob.default for knob in self._knobs.values() if not knob.certain and not knob.echo}
        known = {knob.atom for knob in self._knobs.values()}
        for atom in sorted(symbols.atoms_of(*launch.grid, *given) - known):
            value, _, line = self._literals.get(atom, (0, "", 0))
            if value in repeated:
                name = f"again_{value}_{len(self._knobs)}"
                self._add(Knob(name, value, (value,), atom, f"literal at line {line}", False, echo=True))

    def _knob_name(self, wanted: str, launch: Launch) -> str:
        name = re.sub(r"\W", "_", wanted).lstrip("_") or "knob"
        return name if name not in self._knobs else f"{name}_{launch.kernel.fn.__name__.lstrip('_')}"

    def _occupancy(self, value: Any) -> Any:
        """Programs that fill the device: a knob in place of what only compiled code could say."""
        plain = int(symbols.plain(value))
        tree = ast.parse(value.code, mode="eval").body
        pieces = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
        whole = None
        for node in pieces:  # outermost first
            text = ast.unparse(node)
            if re.search(r"Dn_regs_|Dshared_", text) and not re.search(r"\.shape|\.stride|\.numel", text):
                whole = text
                break
        found = re.search(r"\bDmultiprocessor_count_", value.code)
        programs = self._device["Dmultiprocessor_count_"] if found else max(plain, 1)
        knob = Knob("programs", programs * 4, tuple(programs * n for n in (1, 2, 4, 8, 16, 32)), "programs",
                    "programs on the device at once, which the wrapper works out from compiled code", True)  # fmt: skip
        self._add(knob)
        if whole is None:
            return 'params["programs"]'
        text = ast.unparse(tree).replace(whole, 'params["programs"]')
        return self._resolved(text)

    def _resolved(self, code: str) -> str:
        """An expression with knobs as parameters and all else that is constant as numbers."""
        knobs = {knob.atom: knob.name for knob in self._knobs.values()}

        def say(match: re.Match[str]) -> str:
            atom = match[0]
            if atom in knobs:
                return f'params["{knobs[atom]}"]'
            if atom in self._literals:
                return str(self._literals[atom][0])
            if atom in self._trace.atoms:
                return repr(self._trace.atoms[atom])
            return atom

        text = re.sub(r"\b[LCK]\w+_\b", say, code)
        return re.sub(r"\bD\w+_\b", lambda m: str(self._device.get(m[0], 1)), text)


def _configured(launch: Launch, key: str, default: int) -> tuple[int, ...]:
    """The values of ``key`` in the tuner's configurations; ``default`` in one that leaves it open."""
    return tuple(c[key] if isinstance(c.get(key), int) else default for c in launch.tuned)


def _tidy(line: str) -> str:
    return ast.unparse(ast.parse(line)) if not line.startswith("return") else line
