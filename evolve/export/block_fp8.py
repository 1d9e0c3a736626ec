"""Rows of vLLM's and SGLang's tuned tables for block-FP8 products: one JSON file a weight's N and K, keyed by rows M.

Both programs read a file's keys as integers and pass every value on as a launch option, so a row can hold nothing
else: the link to its receipt is in a file beside it. Their kernel is the plain one of pointer loads here: one
128-wide step of K a scale block, groups of row blocks, partial products scaled as they come.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tilewright.evolve.export.choice import Disagreement
from tilewright.evolve.export.promoted import PromotedKernel, PromotedTable
from tilewright.evolve.space.genome import source_id
from tilewright.seeds.catalogue import load_operator

OPERATOR = "gemm_fp8_blockwise/gemm_nt"
_KERNEL = "pointer"
_FOLDERS = {
    "vllm": "vllm/model_executor/layers/quantization/utils/configs",
    "sglang": "python/sglang/srt/layers/quantization/configs",
}


def vllm(table: PromotedTable) -> dict[str, str]:
    """Path below vLLM's repository to text. Raises Disagreement."""
    return _files(table, "vllm")


def sglang(table: PromotedTable) -> dict[str, str]:
    """Path below SGLang's repository to text. Raises Disagreement."""
    return _files(table, "sglang")


def _files(table: PromotedTable, program: str) -> dict[str, str]:
    if table.operator != OPERATOR:
        raise Disagreement(f"{program} has block-FP8 tables for {OPERATOR} alone, not for {table.operator}.")
    device = table.device()
    if device is None:
        raise Disagreement(
            f"{program}'s tables are named after a device, and no device timed {table.operator}."
        )
    options = {name: configuration(kernel, program) for name, kernel in table.kernels.items()}
    rows: dict[str, dict[int, dict[str, int]]] = {}
    receipts: dict[str, dict[int, dict[str, Any]]] = {}
    for workload, dims, kernel in table.regions:
        name = (
            f"N={dims['N']},K={dims['K']},device_name={device.replace(' ', '_')},dtype=fp8_w8a8,"
            "block_shape=[128,128].json"
        )
        rows.setdefault(name, {})[dims["M"]] = options[kernel]
        receipts.setdefault(name, {})[dims["M"]] = table.row(workload)
    found = {}
    for name, table_rows in rows.items():
        path = f"{_FOLDERS[program]}/{name}"
        found[path] = _json(table_rows)
        found[path.removesuffix(".json") + ".receipts.json"] = _json(receipts[name])
    return found


def configuration(kernel: PromotedKernel, program: str) -> dict[str, int]:
    """The launch options of one row. Raises Disagreement."""
    seed = load_operator(OPERATOR).kernels[_KERNEL]
    params = kernel.params
    if source_id(kernel.data.decode("utf-8")) != source_id(seed.source) or params["skew"]:
        skewed = ", with its promotion one step behind" if params.get("skew") else ""
        raise Disagreement(
            f"{program}'s block-FP8 product is the plain kernel of pointer loads; kernel {kernel.name}{skewed} has "
            "another schedule, for which its tiles were chosen."
        )
    return {
        "BLOCK_SIZE_M": params["block_m"],
        "BLOCK_SIZE_N": params["block_n"],
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": params["group_m"],
        "num_warps": params["num_warps"],
        "num_stages": params["num_stages"],
    }


def _json(rows: Mapping[int, Mapping[str, Any]]) -> str:
    return json.dumps({str(m): rows[m] for m in sorted(rows)}, indent=4) + "\n"
