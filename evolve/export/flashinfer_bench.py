"""A promoted operator as a Solution of flashinfer-bench, with the Definition that it solves.

The Solution's sources are the standalone package. Operators whose recipe the library has in torch can be exported: a
Definition brings its reference along, as the text of a Python module with a function ``run``.
"""

from __future__ import annotations

import ast
import json
import re
from importlib import resources
from typing import Any

from tilewright.evolve.export import standalone
from tilewright.evolve.export.choice import Disagreement
from tilewright.evolve.export.promoted import PromotedTable
from tilewright.library.operands import Operand

AUTHOR = "tilewright"
_CONTRACT = ("tilewright.library", "torch_contract.py")

_REFERENCES = {
    "gemm_fp8_blockwise/gemm_nt": "product(inputs)[0]",
    "gemm_fp8_blockwise/gemm_nt_rows": "product_rows(inputs)[0]",
    "gemm_fp8_blockwise/quant_1x128": 'quantise_rows(inputs["x"])',
    "gemm_fp8_blockwise/quant_128x128": 'quantise_blocks(inputs["x"])',
    "gemm_fp8_blockwise/quant_dual": '_dual(quantise_rows, inputs["x"])',
    "gemm_fp8_blockwise/quant_128x128_dual": '_dual(quantise_blocks, inputs["x"])',
}
"""What each operator computes, in functions of the torch contract."""


def files(table: PromotedTable) -> dict[str, str]:
    """Path below a trace set's folder to text. Raises Disagreement."""
    if table.operator not in _REFERENCES:
        raise Disagreement(
            f"a flashinfer-bench definition needs its reference in torch, which {table.operator} has not "
            f"(those that have: {', '.join(_REFERENCES)})."
        )
    if table.language == "pallas":
        raise Disagreement("flashinfer-bench runs torch programs; a Pallas kernel is none.")
    name = re.sub(r"\W", "_", table.operator)
    kind = "gemm" if "gemm_nt" in table.operator else "quantization"
    solution = f"tilewright_{name}_{table.version}"
    return {
        f"definitions/{kind}/{name}.json": _json(definition(table, name, kind)),
        f"solutions/{AUTHOR}/{kind}/{name}/{solution}.json": _json(_solution(table, name, solution)),
    }


def definition(table: PromotedTable, name: str, kind: str) -> dict[str, Any]:
    """The operator: axes, tensors, and a reference in torch."""
    axes: dict[str, Any] = {d: {"type": "var"} for d in table.dimensions}
    constraints: list[str] = []

    def tensor(operand: Operand) -> dict[str, Any]:
        shape = []
        for text in operand.shape:
            axis = text if text in axes else f"axis_{text}" if text.isdigit() else re.sub(r"\W+", "_", text)
            if text.isdigit():
                axes[axis] = {"type": "const", "value": int(text)}
            elif text not in axes and axis not in axes:
                axes[axis] = {"type": "var", "description": text}
                constraints.append(f"{axis} == {text}")
            shape.append(axis)
        return {"shape": shape, "dtype": operand.dtype}

    inputs = {o.name: tensor(o) for o in table.operands.inputs}
    outputs = {o.name: tensor(o) for o in table.operands.outputs}
    return {
        "name": name,
        "op_type": kind,
        "description": f"{table.operator} of tilewright, block-scaled FP8.",
        "axes": axes,
        "inputs": inputs,
        "outputs": outputs,
        **({"constraints": constraints} if constraints else {}),
        "reference": reference(table.operator, list(inputs)),
    }


def reference(operator: str, inputs: list[str]) -> str:
    """The library's torch contract, cut to what computes, with ``run`` at its end."""
    text = resources.files(_CONTRACT[0]).joinpath(_CONTRACT[1]).read_text(encoding="utf-8")
    lines = text.splitlines()
    kept = []
    for node in ast.parse(text).body:
        named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id
        if named == "FAMILY":
            break
        if isinstance(node, ast.ImportFrom) and node.level:
            continue
        kept.append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    given = ", ".join(f'"{name}": {name}' for name in inputs)
    run = f"def run({', '.join(inputs)}):\n    inputs = {{{given}}}\n    return {_REFERENCES[operator]}"
    return "\n\n".join([*kept, run]) + "\n"


def _solution(table: PromotedTable, definition: str, name: str) -> dict[str, Any]:
    sources = [{"path": path, "content": text} for path, text in standalone.modules(table).items()]
    return {
        "name": name,
        "definition": definition,
        "author": AUTHOR,
        "description": _description(table),
        "spec": {
            "language": "triton",
            "target_hardware": [table.device() or table.target],
            "entry_point": "main.py::run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": sources,
    }


def _description(table: PromotedTable) -> str:
    """The receipt, and the times it tells."""
    rows = []
    for workload, _, _ in table.regions:
        row = table.row(workload)
        if "time_us" in row:
            low, high = row["interval_us"]
            rows.append(f"{workload} {row['time_us']:.2f} us [{low:.2f}, {high:.2f}]")
    times = f" Times ({table.target}, {table.told['target']['kind']}): {'; '.join(rows)}." if rows else ""
    return f"Promoted by tilewright; receipt {table.receipt_name}, also among the sources.{times}"


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"
