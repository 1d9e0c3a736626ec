"""Numbers of a recorded call as text, and the knobs that literals and configurations among them become."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.source.knobs import STAGES, WARPS, Knob, between, constexprs, values_around
from tilewright.workers.intake.source.traced_numbers import Number, Traced
from tilewright.workers.intake.triton.kernel_module import Origin
from tilewright.workers.intake.triton.kernel_text import definition
from tilewright.workers.intake.triton.trace import Launch, Trace

_OTHER_VENDOR = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")


class KnobFinder:
    """Writes numbers of a recording, and makes ``knobs`` (by name) of what compile-time arguments are made of."""

    def __init__(self, trace: Trace, origin: Origin) -> None:
        self._trace, self._device = trace, origin.device
        self._literals, self._names = origin.literals, origin.names
        self.knobs: dict[str, Knob] = {}
        self.meant: dict[str, int] = {}
        """Literals that select a branch by equality, or that other constants are computed from."""
        self.notes: list[str] = []

    def options(self, launch: Launch, name: str, launches: Sequence[Launch]) -> list[str]:
        """The options of a launch as text. Warps and stages become knobs."""
        several = len({id(step.kernel.fn) for step in launches}) > 1
        suffix = f"_{name}" if several else ""
        given = dict(launch.options)
        warps = int(traced_numbers.plain(given.pop("num_warps", 4)))
        texts = [f"num_warps={self._option(f'num_warps{suffix}', warps, WARPS, launch, 'num_warps')}"]
        loops = any(isinstance(n, ast.For | ast.While) for n in ast.walk(definition(launch.kernel.fn)[0]))
        stages = given.pop("num_stages", None)
        if "num_stages" not in launch.arguments and (loops or stages is not None):
            value = int(traced_numbers.plain(stages if stages is not None else 3))
            texts.append(
                f"num_stages={self._option(f'num_stages{suffix}', value, STAGES, launch, 'num_stages')}"
            )
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

    def number(
        self, value: Number, parameter: str = "", constexpr: bool = False, launch: Launch | None = None
    ) -> str:
        """A number as text; the knobs that a compile-time argument is made of are found on the way."""
        if not isinstance(value, Traced):
            return traced_numbers.number_text(value)
        if "compiled" in value.atoms:
            return self._occupancy(value)
        if constexpr and launch is not None:
            self.find(value, parameter, launch)
        return self.resolved(value.code)

    def find(self, value: Traced, parameter: str, launch: Launch) -> None:
        """Make knobs of the literals and configurations that a compile-time argument is made of."""
        kernel = launch.kernel.fn.__name__
        body = definition(launch.kernel.fn)[0].body
        if not any(isinstance(n, ast.Name) and n.id == parameter for part in body for n in ast.walk(part)):
            return  # the kernel never uses it
        fixed = constexprs(launch.kernel.fn)
        compiled = [v for p, v in launch.arguments.items() if p in fixed and isinstance(v, Traced)]
        for atom in sorted(value.atoms - {knob.atom for knob in self.knobs.values()}):
            default = self._trace.atoms.get(atom)
            if atom.startswith("C") and default is not None:
                key = atom.rpartition("__")[2].rstrip("_")
                configured = _configured(launch, key, default)
                values = tuple(sorted({default, *configured, *between(default, configured)}))
                source = f"autotune configurations of {kernel}"
                certain = len(set(configured)) > 1  # else its authors never chose between values
                name = self._knob_name(key, launch)
                self._add(Knob(name, default, values, source, atom, certain, configured))
            elif atom.startswith("K") and default is not None:
                name = self._knob_name(parameter, launch)
                source = f"default of {parameter} of {kernel}"
                self._add(Knob(name, default, values_around(default), source, atom))
            elif atom in self._literals and not isinstance(value, traced_numbers.TracedBool):
                default, _, line = self._literals[atom]
                exact = value.code == atom
                codes = {v.code for v in compiled if atom in v.atoms and v.atoms <= set(self._literals)}
                if (exact and selects(launch.kernel.fn, parameter)) or (atom in codes and len(codes) > 1):
                    self._trace.meanings.add(
                        atom
                    )  # it selects a branch, or another constant is computed from it
                if atom in self._trace.meanings:
                    self.meant[self._names.get(atom, parameter)] = default
                    continue
                name = parameter if exact else self._names.get(atom) or f"{parameter}_{default}"
                name = self._knob_name(name, launch)
                self._add(Knob(name, default, values_around(default), f"literal at line {line}", atom))

    def note_echoes(self, launch: Launch, fixed: set[str]) -> None:
        """Literals of the grid and of run-time arguments that have the value of a literal that is a knob."""
        given = [v for p, v in launch.arguments.items() if p not in fixed]
        repeated = {knob.default for knob in self.knobs.values() if not knob.certain and not knob.echo}
        known = {knob.atom for knob in self.knobs.values()}
        for atom in sorted(traced_numbers.atoms_of(*launch.grid, *given) - known):
            value, _, line = self._literals.get(atom, (0, "", 0))
            if value in repeated:
                name = f"again_{value}_{len(self.knobs)}"
                self._add(Knob(name, value, (value,), f"literal at line {line}", atom, echo=True))

    def _knob_name(self, wanted: str, launch: Launch) -> str:
        name = re.sub(r"\W", "_", wanted).lstrip("_") or "knob"
        return name if name not in self.knobs else f"{name}_{launch.kernel.fn.__name__.lstrip('_')}"

    def _occupancy(self, value: Traced) -> str:
        """Programs that fill the device: a knob in place of what only compiled code could tell."""
        tree = ast.parse(value.code, mode="eval").body
        texts = [
            ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.expr)
        ]  # outermost first
        measured = next(
            (
                t
                for t in texts
                if re.search(r"Dn_regs_|Dshared_", t) and not re.search(r"\.shape|\.stride|\.numel", t)
            ),
            None,
        )
        found = re.search(r"\bDmultiprocessor_count_", value.code)
        programs = (
            self._device["Dmultiprocessor_count_"] if found else max(int(traced_numbers.plain(value)), 1)
        )
        source = "programs on the device at once, which the wrapper computes from compiled code"
        values = tuple(programs * n for n in (1, 2, 4, 8, 16, 32))
        self._add(Knob("programs", programs * 4, values, source, "programs", True))
        text = 'params["programs"]'
        return text if measured is None else self.resolved(ast.unparse(tree).replace(measured, text))

    def plain_code(self, code: str) -> str:
        """An expression with all that is constant as numbers, as the wrapper itself has them."""
        return self.resolved(code, {})

    def resolved(self, code: str, knobs: Mapping[str, str] | None = None) -> str:
        """An expression with ``knobs`` (names by atom; default: all) as parameters and all else that is constant as
        numbers."""
        knobs = {knob.atom: knob.name for knob in self.knobs.values()} if knobs is None else knobs

        def text(match: re.Match[str]) -> str:
            atom = match[0]
            if atom in knobs:
                return f'params["{knobs[atom]}"]'
            if atom in self._literals:
                return str(self._literals[atom][0])
            return repr(self._trace.atoms[atom]) if atom in self._trace.atoms else atom

        made = re.sub(r"\b[LCK]\w+_\b", text, code)
        return re.sub(r"\bD\w+_\b", lambda m: str(self._device.get(m[0], 1)), made)


def _configured(launch: Launch, key: str, default: int) -> tuple[int, ...]:
    """The values of ``key`` in the tuner's configurations; ``default`` in one that leaves it open."""
    return tuple(c[key] if isinstance(c.get(key), int) else default for c in launch.tuned)


def selects(function: Any, parameter: str) -> bool:
    """Whether a kernel compares a parameter, as it is, with a constant for equality."""
    for node in ast.walk(definition(function)[0]):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            sides = (node.left, node.comparators[0])
            if any(isinstance(s, ast.Name) and s.id == parameter for s in sides) and any(
                isinstance(s, ast.Constant | ast.Tuple) or (isinstance(s, ast.Name) and s.id.isupper())
                for s in sides
            ):
                return True
    return False
