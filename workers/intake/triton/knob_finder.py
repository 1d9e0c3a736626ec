"""Numbers of a recorded call as text, and the knobs that literals and configurations among them become."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from tilewright.workers.intake.source import traced_numbers as symbols
from tilewright.workers.intake.source.knobs import STAGES, WARPS, Knob, around, between
from tilewright.workers.intake.triton.kernel_module import Origin
from tilewright.workers.intake.triton.kernel_text import definition
from tilewright.workers.intake.triton.trace import Launch, Trace


class Lifting:
    """Says numbers of a recording, and makes ``knobs`` (by name) of what compile-time arguments are made of."""

    def __init__(self, trace: Trace, origin: Origin) -> None:
        self._trace, self._device = trace, origin.device
        self._literals, self._names = origin.literals, origin.names
        self.knobs: dict[str, Knob] = {}
        self.notes: list[str] = []

    def options(self, launch: Launch, name: str, launches: Sequence[Launch]) -> list[str]:
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
                self.notes.append(
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
        self.knobs.setdefault(knob.name, knob)

    def number(
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
            self.lift(value, parameter, launch)
        return self.resolved(value.code)

    def lift(self, value: Any, parameter: str, launch: Launch) -> None:
        """Make knobs of the literals and configurations that a compile-time argument is made of."""
        for atom in sorted(value.atoms - {knob.atom for knob in self.knobs.values()}):
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

    def note_echoes(self, launch: Launch, fixed: set[str]) -> None:
        """Literals of the grid and of run-time arguments that have the value of a literal that is a knob."""
        given = [v for p, v in launch.arguments.items() if p not in fixed]
        repeated = {knob.default for knob in self.knobs.values() if not knob.certain and not knob.echo}
        known = {knob.atom for knob in self.knobs.values()}
        for atom in sorted(symbols.atoms_of(*launch.grid, *given) - known):
            value, _, line = self._literals.get(atom, (0, "", 0))
            if value in repeated:
                name = f"again_{value}_{len(self.knobs)}"
                self._add(Knob(name, value, (value,), atom, f"literal at line {line}", False, echo=True))

    def _knob_name(self, wanted: str, launch: Launch) -> str:
        name = re.sub(r"\W", "_", wanted).lstrip("_") or "knob"
        return name if name not in self.knobs else f"{name}_{launch.kernel.fn.__name__.lstrip('_')}"

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
        return self.resolved(text)

    def resolved(self, code: str) -> str:
        """An expression with knobs as parameters and all else that is constant as numbers."""
        knobs = {knob.atom: knob.name for knob in self.knobs.values()}

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
