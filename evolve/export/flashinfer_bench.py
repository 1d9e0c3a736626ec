"""Solutions of flashinfer-bench with the Definitions that they solve, of functions that ``tilewright tune`` took in.

A Definition brings its reference along, as the text of a Python module with a function ``run``. It is the one that
judged the campaign, or is made from the operator's operands, results and reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.evolve.export.promoted import Disagreement
from tilewright.evolve.intake.winner import plain_module
from tilewright.evolve.promote.reference_files import judge_of
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.intake.operator import TakenOperator

AUTHOR = "tilewright"
TUNED = "tuned"
"""The ``op_type`` of functions that ``tilewright tune`` took in."""


def of_campaign(journal: Path) -> dict[str, str]:
    """The winner of a campaign that tuned a function: path below a trace set's folder to text. Raises Disagreement."""
    campaign = journal.parent.name
    with Journal(journal) as opened:
        data = load(opened)
    operator = load_operator(str(data.facts["operator"]))
    if not isinstance(operator, TakenOperator):
        raise Disagreement(
            f"flashinfer-bench: {campaign} tunes no function; name a campaign of 'tilewright tune'."
        )
    if data.winner is None:
        raise Disagreement(f"flashinfer-bench: {campaign} has no winner to export; let it find one first.")
    genome = data.winner.genome
    if "def launch(" not in genome.source:
        raise Disagreement("flashinfer-bench runs torch programs; a Pallas kernel is none.")
    definition = _judging_definition(operator, campaign)
    tensors = [name for name, spec in definition["inputs"].items() if spec["shape"] is not None]
    note = f"Winner of campaign {campaign}, candidate {data.winner.index}."
    module = plain_module(genome.source, genome.params, "tuned", [o.name for o in operator.operands], note)
    target = str(data.facts["target"])
    run = f"def run({', '.join(definition['inputs'])}):\n    return tuned({', '.join(tensors)})\n"
    solution = f"{AUTHOR}_{definition['name']}_{campaign}"
    return _files(definition, solution, target, f"{note} Target {target}.", {"main.py": f"{module}\n\n{run}"})


def _judging_definition(operator: TakenOperator, campaign: str) -> dict[str, Any]:
    """The Definition that judged a tuned function, or one made of its reference. Raises Disagreement."""
    path, _, function = operator.reference.rpartition(":")
    own = operator.reference.startswith("itself")
    try:
        if own:
            text = None
        elif path.endswith(".json"):
            return dict(json.loads(Path(path).read_text(encoding="utf-8")))
        else:
            text = judge_of(Path(path)) if path else f"import {function.partition('.')[0]}\n"
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
    inputs = ", ".join(operand.name for operand in operator.operands)
    return _definition(
        re.sub(r"\W+", "_", operator.name.rpartition("/")[0] or operator.name),
        [(o.name, o.dtype, o.shape) for o in operator.operands],
        [(r.name, r.dtype, r.shape) for r in operator.results],
        f"{text}\n\ndef run({inputs}):\n    return {function}({operator.call})\n",
    )


Tensor = tuple[str, str, Sequence[int | str]]
"""Name, dtype and shape: sizes, names of dimensions, or expressions of them such as ``M // 128``."""


def _definition(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    reference: str,
) -> dict[str, Any]:
    axes: dict[str, dict[str, Any]] = {}
    constraints: list[str] = []

    def axis_of(size: str) -> str:
        axis = f"axis_{size}" if size.isdigit() else re.sub(r"\W+", "_", size)
        if size.isdigit():
            axes[axis] = {"type": "const", "value": int(size)}
        elif axis not in axes:
            axes[axis] = {"type": "var"}
            if axis != size:
                axes[axis]["description"] = size
                constraints.append(f"{axis} == {size}")
        return axis

    def described(tensors: Sequence[Tensor]) -> dict[str, dict[str, Any]]:
        return {
            name: {"shape": [axis_of(str(size)) for size in shape], "dtype": dtype}
            for name, dtype, shape in tensors
        }

    found = {
        "name": name,
        "op_type": TUNED,
        "axes": axes,
        "inputs": described(inputs),
        "outputs": described(outputs),
    }
    return {**found, **({"constraints": constraints} if constraints else {}), "reference": reference}


def _files(
    definition: Mapping[str, Any],
    name: str,
    hardware: str,
    description: str,
    sources: Mapping[str, str],
) -> dict[str, str]:
    solution = {
        "name": name,
        "definition": definition["name"],
        "author": AUTHOR,
        "description": description,
        "spec": {
            "language": "triton",
            "target_hardware": [hardware],
            "entry_point": "main.py::run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": path, "content": text} for path, text in sources.items()],
    }
    return {
        f"definitions/{TUNED}/{definition['name']}.json": json.dumps(definition, indent=2) + "\n",
        f"solutions/{AUTHOR}/{TUNED}/{definition['name']}/{name}.json": json.dumps(solution, indent=2) + "\n",
    }
