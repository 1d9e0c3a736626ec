"""Numbers of a recorded call as text, and the knobs that numbers and configurations among them become."""

import ast
import builtins
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.source.knobs import STAGES, WARPS, Knob, powers_between, values_around
from tilewright.workers.intake.source.traced_numbers import Number, Traced
from tilewright.workers.intake.triton.kernel_module import Origin
from tilewright.workers.intake.triton.kernel_text import definition
from tilewright.workers.intake.triton.trace import Launch, Trace

_OTHER_VENDOR = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")

MOST = 1 << 20
"""Largest number that may be a knob."""


class KnobFinder:
    """Writes numbers of a recording, and makes ``knobs`` (by name) of what compile-time arguments are made of.

    Nothing says where in the wrapper a number comes from. Others of the same value, in a grid or a size, are echoes:
    runs tell which of them move with a knob.
    """

    def __init__(self, trace: Trace, origin: Origin) -> None:
        self._trace, self._device = trace, origin.device
        self._names: dict[tuple[str, int], str] = {}
        self.knobs: dict[str, Knob] = {}
        self.meant: dict[str, int] = {}
        """Numbers that select a branch by equality."""
        self.notes: list[str] = []

    def options(self, launch: Launch, name: str, launches: Sequence[Launch]) -> list[str]:
        """The options of a launch as text. Warps and stages become knobs."""
        several = len({id(step.kernel.fn) for step in launches}) > 1
        suffix = f"_{name}" if several else ""
        given = dict(launch.options)
        warps = int(traced_numbers.plain(given.pop("num_warps", 4)))
        texts, stages = [], given.pop("num_stages", None)
        if "num_warps" not in launch.arguments:
            texts = [f"num_warps={self._option(f'num_warps{suffix}', warps, WARPS, launch, 'num_warps')}"]
        if "num_stages" not in launch.arguments and (_loops(launch.kernel.fn) or stages is not None):
            value = int(traced_numbers.plain(stages if stages is not None else 3))
            texts.append(f"num_stages={self._option(f'num_stages{suffix}', value, STAGES, launch, 'num_stages')}")
        for key, value in given.items():
            plain = traced_numbers.plain(value)
            if key in _OTHER_VENDOR:
                self.notes.append(f"the launch's {key}={plain} is dropped: it is for another vendor's device")
            elif key != "num_ctas" or plain != 1:
                texts.append(f"{key}={plain!r}")
        return texts

    def _option(self, name: str, value: int, known: Sequence[int], launch: Launch, key: str) -> str:
        configured = _configured(launch, key, value)
        most = 16 if key == "num_warps" else 5
        values = tuple(sorted({value, *configured, *(v for v in known if v <= most)}))
        source = f"option {key} of the launch at line {launch.line}"
        self._add(Knob(name, value, values, source, name, True, configured))
        return f'params["{name}"]'

    def _add(self, knob: Knob) -> None:
        self.knobs.setdefault(knob.name, knob)

    def number(self, value: Number, parameter: str = "", constexpr: bool = False, launch: Launch | None = None) -> str:
        """A number as text; the knobs that a compile-time argument is made of are found on the way."""
        code = traced_numbers.code_of(value)
        if not constexpr or launch is None:
            return self.resolved(code)
        if isinstance(value, bool | float | traced_numbers.TracedBool) or parameter not in _used(launch.kernel.fn):
            return self.resolved(code)
        for atom in sorted(traced_numbers.atoms_of(value)):
            if atom.startswith("C") and atom in self._trace.atoms:
                self._configured_knob(atom, launch)
        if code.isdigit() and (parameter in selecting(launch.kernel.fn) or isinstance(value, Traced)):
            if not isinstance(value, Traced):  # such a one is the caller's
                self.meant[parameter] = int(code)
            return code
        alone = len(list(_numbers(ast.parse(code)))) == 1
        made = _replaced(code, lambda number: self._knob_of(number, parameter, alone, launch))
        return self._with_atoms(made)

    def _configured_knob(self, atom: str, launch: Launch) -> None:
        """The knob of a configuration's value."""
        default, key = self._trace.atoms[atom], atom.rpartition("__")[2].rstrip("_")
        if any(knob.atom == atom for knob in self.knobs.values()):
            return
        configured = _configured(launch, key, default)
        values = tuple(sorted({default, *configured, *powers_between(default, configured)}))
        source = f"autotune configurations of {launch.kernel.fn.__name__}"
        certain = len(set(configured)) > 1  # else its authors never chose between values
        self._add(Knob(self._knob_name(key, launch), default, values, source, atom, certain, configured))

    def _knob_of(self, default: int, parameter: str, alone: bool, launch: Launch) -> str:
        """The name of the knob of a number; one for all kernels that have that number under that name."""
        key = (parameter, default)
        if key not in self._names:
            wanted = parameter if alone else f"{parameter}_{default}"
            name = self._names[key] = self._knob_name(wanted, launch)
            source, tiles = (f"number in the launch at line {launch.line}", parameter in extents(launch.kernel.fn))
            self._add(Knob(name, default, values_around(default), source, tiles=tiles))
        return self._names[key]

    def _echo_of(self, value: int) -> str:
        """The name of an echo, where a number has the value of a knob."""
        if not any(k.default == value and not k.certain and not k.echo for k in self.knobs.values()):
            return ""
        name = f"again_{value}_{len(self.knobs)}"
        self._add(Knob(name, value, (value,), "number beside a kernel's own", echo=True))
        return name

    def _knob_name(self, wanted: str, launch: Launch) -> str:
        name = re.sub(r"\W", "_", wanted).lstrip("_") or "knob"
        return name if name not in self.knobs else f"{name}_{launch.kernel.fn.__name__.lstrip('_')}"

    def plain_code(self, code: str) -> str:
        """An expression with all that is constant as numbers, as the wrapper itself has them."""
        made = re.sub(r"\bC\w+_\b", lambda m: repr(self._trace.atoms.get(m[0], m[0])), code)
        return re.sub(r"\bD\w+_\b", lambda m: str(self._device.get(m[0], 1)), made)

    def resolved(self, code: str) -> str:
        """An expression outside compile-time arguments, with knobs as parameters and numbers that may repeat them as
        echoes."""
        return self._with_atoms(_replaced(code, self._echo_of))

    def _with_atoms(self, code: str) -> str:
        for knob in self.knobs.values():
            if knob.atom:
                code = re.sub(rf"\b{knob.atom}\b", f'params["{knob.name}"]', code)
        return self.plain_code(code)


def _numbers(tree: ast.AST) -> Iterator[ast.Constant]:
    """Whole numbers of an expression that may be sizes: no places of dimensions, nothing of a kernel of ours."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and 2 <= node.value <= MOST:
            yield node
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith(".shape"):
            continue
        if not called.endswith((".stride", ".size", ".permute", ".transpose")) and "torch_" not in called:
            yield from _numbers(node)


def _replaced(code: str, name_of: Callable[[int], str]) -> str:
    """An expression with parameters in place of its numbers that have a name."""
    tree = ast.parse(code, mode="eval")
    named = {id(node): name for node in _numbers(tree) if (name := name_of(node.value))}  # type: ignore[arg-type]

    class Replace(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            name = named.get(id(node))
            return node if name is None else ast.parse(f'params["{name}"]', mode="eval").body

    return ast.unparse(Replace().visit(tree)) if named else code


@functools.cache
def _loops(function: Any) -> bool:
    return any(isinstance(n, ast.For | ast.While) for n in ast.walk(definition(function)[0]))


@functools.cache
def _used(function: Any) -> frozenset[str]:
    """Names in a kernel's body."""
    body = definition(function)[0].body
    return frozenset(n.id for part in body for n in ast.walk(part) if isinstance(n, ast.Name))


def _configured(launch: Launch, key: str, default: int) -> tuple[int, ...]:
    """The values of ``key`` in the tuner's configurations; ``default`` in one that leaves it open."""
    return tuple(c[key] if isinstance(c.get(key), int) else default for c in launch.tuned)


_SHAPED = re.compile(r"(.*\.)?(arange|zeros|full|reshape|view|broadcast_to|make_\w+|(static_)?range)|\w+")
"""What takes shapes, places, and turns of loops; functions of the file may."""


@functools.cache
def extents(function: Any) -> frozenset[str]:
    """Names of which a kernel makes shapes, places along an axis, and turns and steps of loops."""
    found: set[str] = set()
    for call in (n for n in ast.walk(definition(function)[0]) if isinstance(n, ast.Call)):
        called = ast.unparse(call.func)
        first = 2 if re.fullmatch(r"(.*\.)?(static_)?range", called) and len(call.args) > 1 else 0
        if _SHAPED.fullmatch(called) and (called == "range" or called not in dir(builtins)):
            parts: list[ast.AST] = [*call.args[first:], *call.keywords]
            found |= {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}
    return frozenset(found)


@functools.cache
def selecting(function: Any) -> frozenset[str]:
    """Names that a kernel compares, as they are, with a constant for equality."""
    found: set[str] = set()
    for node in ast.walk(definition(function)[0]):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            sides = (node.left, node.comparators[0])
            named = {side.id for side in sides if isinstance(side, ast.Name)}
            constant = any(isinstance(side, ast.Constant | ast.Tuple) for side in sides)
            if constant or any(name.isupper() for name in named):
                found |= named
    return frozenset(found)
