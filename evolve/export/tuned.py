"""The winner of a campaign on a function that was taken in, as a Solution of flashinfer-bench with its Definition.

A Definition that judged the campaign is written as it is; else one is made of the operator's operands, results and
reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.evolve.export.choice import Disagreement
from tilewright.evolve.intake.winner import plain_module
from tilewright.evolve.promote.taken_reference import judge_of
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.intake.operator import TakenOperator

AUTHOR = "tilewright"
KIND = "tuned"


def files(campaign: Path) -> dict[str, str]:
    """Path below a trace set's folder to text. Raises Disagreement."""
    with Journal(campaign / JOURNAL) as journal:
        data = load(journal)
    operator = load_operator(str(data.facts["operator"]))
    if not isinstance(operator, TakenOperator):
        raise Disagreement(
            f"flashinfer-bench: {campaign.name} tunes no function that was taken in; promote it, and name the operator "
            "instead."
        )
    if data.winner is None:
        raise Disagreement(
            f"flashinfer-bench: {campaign.name} has no winner to export; let it find one first."
        )
    source = data.winner.genome.source
    if "def launch(" not in source:
        raise Disagreement("flashinfer-bench runs torch programs; a Pallas kernel is none.")
    definition = _definition(operator, campaign.name)
    given = list(definition["inputs"])
    tensors = [name for name, spec in definition["inputs"].items() if spec["shape"] is not None]
    note = f"Winner of campaign {campaign.name}, candidate {data.winner.index}."
    module = plain_module(
        source, data.winner.genome.params, "tuned", [operand.name for operand in operator.operands], note
    )
    name = str(definition["name"])
    solution = {
        "name": f"{AUTHOR}_{name}_{campaign.name}",
        "definition": name,
        "author": AUTHOR,
        "description": f"{note} Target {data.facts['target']}.",
        "spec": {
            "language": "triton",
            "target_hardware": [str(data.facts["target"])],
            "entry_point": "main.py::run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [
            {
                "path": "main.py",
                "content": f"{module}\n\ndef run({', '.join(given)}):\n    return tuned({', '.join(tensors)})\n",
            }
        ],
    }
    return {
        f"definitions/{KIND}/{name}.json": _json(definition),
        f"solutions/{AUTHOR}/{KIND}/{name}/{solution['name']}.json": _json(solution),
    }


def _definition(operator: TakenOperator, campaign: str) -> dict[str, Any]:
    path, _, function = operator.reference.rpartition(":")
    own = operator.reference.startswith("itself")
    try:
        if own:
            text = None
        elif path.endswith(".json"):
            return dict(json.loads(Path(path).read_text(encoding="utf-8")))
        else:
            text = f"import {function.partition('.')[0]}\n" if not path else judge_of(Path(path))
    except (OSError, ValueError, SyntaxError) as error:
        raise Disagreement(
            f"flashinfer-bench: the reference of {campaign} cannot be read: {error}."
        ) from error
    if text is None:
        raise Disagreement(
            f"flashinfer-bench: a Definition holds its reference whole, and that of {campaign} is "
            f"{'the kernel itself' if own else 'of several files'}."
        )
    if f"class {function}(" in text:
        first = operator.operands[0].name
        text += f"\n\ntorch.manual_seed(0)\nMODEL = {function}(*get_init_inputs())"
        function = f"MODEL.to({first}.device, {first}.dtype)"
    axes: dict[str, Any] = {}

    def tensor(dtype: str, shape: tuple[int | str, ...]) -> dict[str, Any]:
        named = []
        for size in shape:
            axis = f"axis_{size}" if isinstance(size, int) else re.sub(r"\W+", "_", size)
            axes.setdefault(
                axis, {"type": "const", "value": size} if isinstance(size, int) else {"type": "var"}
            )
            named.append(axis)
        return {"shape": named, "dtype": dtype}

    inputs = {o.name: tensor(o.dtype, o.shape) for o in operator.operands}
    outputs = {r.name: tensor(r.dtype, r.shape) for r in operator.results}
    run = f"def run({', '.join(inputs)}):\n    return {function}({operator.call})\n"
    return {
        "name": re.sub(r"\W+", "_", operator.name.rpartition("/")[0] or operator.name),
        "op_type": KIND,
        "axes": axes,
        "inputs": inputs,
        "outputs": outputs,
        "reference": f"{text}\n\n{run}",
    }


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"
