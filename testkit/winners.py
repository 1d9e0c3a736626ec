"""Winners' modules of functions without a campaign: what ``tune`` writes, with sizes that nobody has searched.

Each is the module's text, the name of its function, a maker of the recorded call's arguments, and facts.
"""

import functools
import tempfile
from dataclasses import asdict
from unittest import mock

import numpy as np

from tilewright.evolve.intake import tune, winner
from tilewright.evolve.intake.child import part_of
from tilewright.fitness.targets import load_target
from tilewright.workers.intake.calls.call_text import parse
from tilewright.workers.intake.judge.inputs import draw
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.operator import operand_row
from tilewright.workers.intake.winner_trial import _arguments


def triton_winner(path, name, call):
    """Raises Refusal, and what reading the function in raises."""
    from tilewright.workers.intake.calls.dimensions import argument_at
    from tilewright.workers.intake.triton import program

    asked = {"path": str(path), "function": name, "reference": SELF, "calls": [call]}
    asked["part"] = part_of(load_target("interpreter"))
    try:
        site, text = program.recorded(asked)
        paired = site.pair is not None and not program.violations(text, str(path))
    except Exception:
        if not name.endswith(".apply"):
            raise
        paired = False  # as the intake does, which then takes the forward alone
    if name.endswith(".apply") and not paired:
        site, text = program.recorded(asked, paired=False)
    wrapper = asdict(text.wrapper)
    orders = [argument_at(site.calls[0], place).order for place in site.places]
    answer = {
        "operands": [operand_row(o) for o in site.operands],
        "wrapper": wrapper,
        "orders": orders,
        "settings": site.settings,
        "objects": program.objects_of(site.calls),
        "parameters": program.made_parameters(site) if "(" in name else [],
        "leading": program.leading_names(site.function),
    }
    defaults = {knob.name: knob.default for knob in text.knobs}
    gradients = (wrapper["pair"] or {}).get("given", ())
    own = [o for o in site.operands if o.name not in gradients]
    facts = {"knobs": sorted(defaults), "left_out": text.left_out, "pair": paired}
    facts |= {"operands": site.operands, "dims": site.dims[0]}
    return _winner(path, name, call, text.with_space({}, {}), defaults, answer, own, site.dims[0], _in_torch, facts)


def pallas_winner(path, name, call, sizes=None):
    """``sizes``: of blocks, in place of the function's own. Raises as ``triton_winner`` does."""
    from tilewright.workers.intake.pallas import program

    kept = []
    asked = {"path": str(path), "function": name, "reference": SELF, "calls": [call]}
    judge = mock.patch.object(program, "judge", lambda *given: kept.append(given) or {})
    with tempfile.TemporaryDirectory() as folder, judge:
        answer = program.answer_to({**asked, "folder": folder})
    assert kept, answer
    module, operands, _, knobs = kept[0][2:6]
    own = program._sized(operands, 0)
    params = {**{knob.name: knob.default for knob in knobs}, **(sizes or {})}
    answer = {"operands": [operand_row(o) for o in own]}
    facts = {"knobs": params, "module": type(module).__name__}
    return _winner(path, name, call, module.source(""), params, answer, own, {}, _in_jax, facts)


def _winner(path, name, call, source, params, answer, operands, dims, to, facts):
    request = tune.Request(path, name, SELF, (call,))
    made = functools.partial(_made, call, list(operands), dict(dims), to)
    return (winner.winner_module(source, params, request, answer, "A winner.", None), request.name, made, facts)


def _made(call, operands, dims, to):
    arrays = [draw(o, dims, "randn", 1, np.random.default_rng(1)) for o in operands]
    return _arguments(parse(call), [to(array) for array in arrays])


def _in_torch(array):
    from tilewright.workers.runners.triton.tensors import to_torch

    return to_torch(array, "cpu")


def _in_jax(array):
    import jax

    return jax.numpy.asarray(array)
