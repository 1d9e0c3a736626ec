"""Winners' modules of functions without a campaign: what ``tune`` writes, with sizes that nobody has searched."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tilewright.evolve.intake import tune, winner
from tilewright.evolve.intake.child import part_of
from tilewright.fitness.targets import load_target
from tilewright.workers.intake.calls.call_text import Call, parse
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.operator import Operand, operand_row

TPU = "tpu7x"


@dataclass(frozen=True)
class Winner:
    """``made``: makes the arguments of the recorded call, the same ones each time."""

    text: str
    name: str
    made: Callable[[], tuple[list[Any], dict[str, Any]]]
    facts: Mapping[str, Any]


def triton_winner(path: Path, name: str, call: str, values: str = "") -> Winner:
    """Raises Refusal, and what reading the function in raises."""
    from tilewright.workers.intake.calls.dimensions import argument_at
    from tilewright.workers.intake.triton import program

    request = tune.Request(path, name, SELF, (call,))
    asked = {"path": str(path), "function": name, "reference": SELF, "calls": [call], "part": part_of(load_target("interpreter"))}  # fmt: skip
    try:
        site, text = program.recorded(asked)
        paired = site.pair is not None and not program.violations(text, str(path))
    except Exception:  # noqa: BLE001 - as the intake does, which then takes the forward alone
        paired = False
    if name.endswith(".apply") and not paired:
        site, text = program.recorded(asked, paired=False)
    answer = {
        "operands": [operand_row(o) for o in site.operands], "wrapper": asdict(text.wrapper),
        "orders": [argument_at(site.calls[0], place).order for place in site.places],
    }  # fmt: skip
    defaults = {knob.name: knob.default for knob in text.knobs}
    module = winner.winner_module(text.with_space({}, {}), defaults, request, answer, "A winner.")
    facts = {"knobs": sorted(defaults), "left_out": text.left_out, "pair": paired}
    given = [
        o
        for o in site.operands
        if not (paired and o.name in (text.wrapper.pair.given if text.wrapper.pair else ()))
    ]
    return Winner(module, request.name, lambda: arguments(given, site.dims[0], parse(call), "torch"), facts)


def pallas_winner(path: Path, name: str, call: str, sizes: Mapping[str, int] | None = None) -> Winner:
    """``sizes``: of blocks, in place of the function's own. Raises as ``triton_winner`` does."""
    from tilewright.workers.intake.pallas import program

    kept: list[Any] = []
    with (
        mock.patch.object(program, "judge", lambda *given: kept.append(given) or {}),
        tempfile.TemporaryDirectory() as folder,
    ):
        program.answer_to(
            {"path": str(path), "function": name, "reference": SELF, "calls": [call], "folder": folder}
        )
    _, _, module, operands, calls, knobs, _ = kept[0]
    operands = program._sized(operands, 0)
    params = {knob.name: knob.default for knob in knobs} | dict(sizes or {})
    answer = {"operands": [operand_row(o) for o in operands]}
    text = winner.winner_module(
        module.source(""), params, tune.Request(path, name, SELF, (call,)), answer, "A winner."
    )
    facts = {"knobs": params, "module": type(module).__name__}
    return Winner(
        text, tune.Request(path, name, SELF, ()).name, lambda: arguments(operands, {}, calls[0], "jax"), facts
    )


def arguments(
    operands: Sequence[Operand], dims: Mapping[str, int], call: Call, language: str
) -> tuple[list[Any], dict[str, Any]]:
    """Of a call, drawn, the same ones each time. ``language``: ``torch`` or ``jax``."""
    import numpy as np

    from tilewright.workers.intake.judge.inputs import draw
    from tilewright.workers.intake.winner_trial import _arguments

    arrays = [draw(o, dims, "randn", 1, np.random.default_rng(1)) for o in operands]
    if language == "jax":
        import jax

        return _arguments(call, [jax.numpy.asarray(a) for a in arrays])
    from tilewright.workers.runners.triton.tensors import to_torch

    return _arguments(call, [to_torch(a, "cpu") for a in arrays])
