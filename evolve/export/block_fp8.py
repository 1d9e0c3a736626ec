"""Rows of vLLM's and SGLang's tuned tables for block-FP8 products: one JSON file a weight's N and K, keyed by rows M.

Both programs read a file's keys as integers and pass every value on as a launch option, so a row can hold nothing
else; a second file beside each table links the receipts. Their kernel is the plain one of pointer loads here: one
128-wide step of K for each scale block, groups of row blocks, partial products scaled as they come. Rows come from a
promoted table of that kernel, or from a campaign: on each shape its fastest candidate with that kernel, whoever won.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.evolve.export.choice import Disagreement, SearchedCampaign
from tilewright.evolve.export.promoted import PromotedKernel, PromotedTable
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
    provenance: Mapping[str, Any]


def of_operator(table: PromotedTable, program: str) -> dict[str, str]:
    """A promoted table for ``program`` (vllm, sglang): path below its repository to text. Raises Disagreement."""
    _require_operator(table.operator, program)
    options = {name: _promoted_options(kernel, program) for name, kernel in table.kernels.items()}
    device = table.device()
    return _files(
        [Row(dims, device, options[kernel], table.row(workload)) for workload, dims, kernel in table.regions],
        program,
    )


def of_campaign(journal: Path, program: str) -> dict[str, str]:
    """The same of a campaign's candidates. Raises Disagreement when none has the programs' kernel."""
    campaign = SearchedCampaign.read(journal)
    facts, config = campaign.data.facts, campaign.data.config
    _require_operator(str(config.get("operator") or facts["operator"]), program)
    rows = [
        Row(
            choice.workload.dims,
            choice.provenance["toolchain"].get("device"),
            _options(choice.params),
            choice.provenance,
        )
        for choice in campaign.fastest(lambda choice: is_plain(choice.source, choice.params))
    ]
    if not rows:
        raise Disagreement(
            f"{program}'s block-FP8 product is the plain kernel of pointer loads, and no candidate of {campaign.name} "
            f"is; run one with seeds=[{_KERNEL}]."
        )
    return _files(rows, program)


def _require_operator(operator: str, program: str) -> None:
    if operator != OPERATOR:
        raise Disagreement(f"{program} has block-FP8 tables for {OPERATOR} alone, not for {operator}.")


def _files(rows: Iterable[Row], program: str) -> dict[str, str]:
    tables: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        if row.device is None:
            raise Disagreement(
                f"{program}'s tables are named after a device, and no device timed {OPERATOR}."
            )
        path = (
            f"{_FOLDERS[program]}/N={row.dims['N']},K={row.dims['K']},device_name={row.device.replace(' ', '_')},"
            "dtype=fp8_w8a8,block_shape=[128,128]"
        )
        tables.setdefault(f"{path}.json", {})[row.dims["M"]] = row.options
        tables.setdefault(f"{path}.receipts.json", {})[row.dims["M"]] = row.provenance
    return {
        path: json.dumps({str(m): table[m] for m in sorted(table)}, indent=4) + "\n"
        for path, table in tables.items()
    }


def is_plain(source: str, params: Mapping[str, Any]) -> bool:
    """Whether a kernel is the plain one of pointer loads, without a skewed promotion."""
    return params.get("skew") is False and _is_plain_source(source)


@functools.lru_cache(maxsize=512)
def _is_plain_source(source: str) -> bool:
    """Whether a source is the plain kernel's; comments and declarations do not count."""
    plain = load_operator(OPERATOR).kernels[_KERNEL].source
    return source == plain or source_id(source) == source_id(plain)


def _promoted_options(kernel: PromotedKernel, program: str) -> dict[str, int]:
    """The launch options of a promoted kernel. Raises Disagreement."""
    if not is_plain(kernel.source, kernel.params):
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
