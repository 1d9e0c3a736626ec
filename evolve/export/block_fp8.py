"""Rows of vLLM's and SGLang's tuned tables for block-FP8 products: one JSON file a weight's N and K, keyed by rows M.

Both programs read a file's keys as integers and pass every value on as a launch option, so a row can hold nothing
else: the link to its receipt is in a file beside it. Their kernel is the plain one of pointer loads here: one
128-wide step of K a scale block, groups of row blocks, partial products scaled as they come. Rows come from a promoted
table of that kernel, or from a campaign: on each shape its fastest candidate that is that kernel, whoever won.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.evolve.export.choice import Disagreement, fastest
from tilewright.evolve.export.promoted import PromotedKernel, PromotedTable
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load
from tilewright.evolve.space.genome import source_id
from tilewright.seeds.catalogue import load_operator

OPERATOR = "gemm_fp8_blockwise/gemm_nt"
_KERNEL = "pointer"
_FOLDERS = {
    "vllm": "vllm/model_executor/layers/quantization/utils/configs",
    "sglang": "python/sglang/srt/layers/quantization/configs",
}


@dataclass(frozen=True)
class Row:
    """Launch options for a shape on a device, and where they come from."""

    dims: Mapping[str, int]
    device: str | None
    options: Mapping[str, int]
    told: Mapping[str, Any]


def of_table(table: PromotedTable, program: str) -> dict[str, str]:
    """A promoted table for ``program`` (vllm, sglang): path below its repository to text. Raises Disagreement."""
    _require(table.operator, program)
    options = {name: configuration(kernel, program) for name, kernel in table.kernels.items()}
    rows = [
        Row(dims, table.device(), options[kernel], table.row(workload))
        for workload, dims, kernel in table.regions
    ]
    return _files(rows, program)


def of_campaign(journal: Path, program: str) -> dict[str, str]:
    """The same of a campaign's candidates. Raises Disagreement for one that tried no kernel like theirs."""
    with Journal(journal) as opened:
        _require(str(load(opened).facts["operator"]), program)
    rows = [
        Row(
            choice.workload.dims,
            choice.provenance["toolchain"].get("device"),
            _options(choice.params),
            choice.provenance,
        )
        for choice in fastest(journal, lambda choice: theirs(choice.source, choice.params))
    ]
    if not rows:
        raise Disagreement(
            f"{program}'s block-FP8 product is the plain kernel of pointer loads, and no candidate of "
            f"{journal.parent.name} is; run one with seeds=[{_KERNEL}]."
        )
    return _files(rows, program)


def _require(operator: str, program: str) -> None:
    if operator != OPERATOR:
        raise Disagreement(f"{program} has block-FP8 tables for {OPERATOR} alone, not for {operator}.")


def _files(rows: Iterable[Row], program: str) -> dict[str, str]:
    files: dict[str, dict[int, Mapping[str, int]]] = {}
    receipts: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        if row.device is None:
            raise Disagreement(
                f"{program}'s tables are named after a device, and no device timed {OPERATOR}."
            )
        name = (
            f"N={row.dims['N']},K={row.dims['K']},device_name={row.device.replace(' ', '_')},dtype=fp8_w8a8,"
            "block_shape=[128,128].json"
        )
        files.setdefault(name, {})[row.dims["M"]] = row.options
        receipts.setdefault(name, {})[row.dims["M"]] = row.told
    found = {}
    for name, table_rows in files.items():
        path = f"{_FOLDERS[program]}/{name}"
        found[path] = _json(table_rows)
        found[path.removesuffix(".json") + ".receipts.json"] = _json(receipts[name])
    return found


def theirs(source: str, params: Mapping[str, Any]) -> bool:
    """Whether a kernel works as theirs does: the plain one of pointer loads, nothing a step behind."""
    return params.get("skew") is False and _works_alike(source)


@functools.lru_cache(maxsize=512)
def _works_alike(source: str) -> bool:
    """Whether a source is the plain kernel's, but for its comments and declarations."""
    plain = _plain()
    return source == plain or source_id(source) == source_id(plain)


@functools.cache
def _plain() -> str:
    return load_operator(OPERATOR).kernels[_KERNEL].source


def configuration(kernel: PromotedKernel, program: str) -> dict[str, int]:
    """The launch options of one row. Raises Disagreement."""
    if not theirs(kernel.data.decode("utf-8"), kernel.params):
        skewed = ", with its promotion one step behind" if kernel.params.get("skew") else ""
        raise Disagreement(
            f"{program}'s block-FP8 product is the plain kernel of pointer loads; kernel {kernel.name}{skewed} has "
            "another schedule, for which its tiles were chosen: name a campaign that tried their kernel, and "
            "its fastest tiles are exported."
        )
    return _options(kernel.params)


def _options(params: Mapping[str, Any]) -> dict[str, int]:
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
