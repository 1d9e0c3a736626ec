"""Rows of tpu-inference's tables of tuned block sizes, as Python to paste: one file a kernel.

Its flash attention walks blocks of keys by the grid and masks every score; its grouped product (megablox) walks columns
outermost, one dot a tile. Its paged attention serves prompts and tokens in one kernel, and its quantised product scales
a whole row of activations: neither works as a kernel here does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.evolve.export.choice import Choice, Disagreement, require_seed

Row = tuple[str, str]
"""The table's module and one entry."""


def files(choices: Sequence[Choice]) -> dict[str, str]:
    """Path below ``tpu_inference/kernels`` to text. Raises Disagreement."""
    tables: dict[str, list[str]] = {}
    for choice in choices:
        family = choice.operator.split("/")[0]
        if family in _REFUSED:
            raise Disagreement(_REFUSED[family])
        if family not in _TABLES:
            raise Disagreement(
                f"tpu-inference has no table for {choice.operator}; operators of {', '.join(_TABLES)} can be exported."
            )
        require_seed(choice)
        module, entry = _TABLES[family](choice)
        tables.setdefault(module, []).append(f"    # {_told(choice)}\n    {entry},\n")
    return {path: "{\n" + "".join(rows) + "}\n" for path, rows in tables.items()}


def _told(choice: Choice) -> str:
    told = choice.provenance
    low, high = told["interval_ms"]
    model = f", time model {told['time_model']}" if "time_model" in told else ""
    return (
        f"{told['target']}: {told['time_ms']:.4f} ms ({told['kind']}{model}; 90 % {low:.4f} to {high:.4f}), "
        f"{told['source']}, campaign {told['campaign']}, candidate {told['candidate'][:12]}"
        + (f", receipt {told['receipt']}" if "receipt" in told else "")
    )


def _attention(choice: Choice) -> Row:
    params, d = choice.params, choice.workload.dims
    walks = params.get("walk", "grid") == "grid" and params.get("mask", "all") == "all"
    if not walks or params.get("sub_q", params["block_q"]) < min(params["block_q"], d["S"]):
        raise Disagreement(
            "tpu-inference's flash attention walks blocks of keys by the grid, all queries of a block at once, every "
            f"score masked; the winner has walk {params['walk']}, mask {params['mask']} and sub-tiles of "
            f"{params['sub_q']} queries."
        )
    if d["H"] != d["KV"]:
        raise Disagreement("tpu-inference's flash attention has as many key heads as query heads.")
    block_k = min(params["block_k"], d["T"])
    key = f"batch_size=1, num_heads={d['H']}, q_seq_len={d['S']}, kv_seq_len={d['T']}, head_dim={d['D']}"
    value = (
        f"block_q={min(params['block_q'], d['S'])}, block_k_major={block_k}, "
        f"block_k={min(params.get('sub_k', block_k), block_k)}, block_b=1"
    )
    return "flash_attention/tuned_params.py", f"TuningKey({key}): TunableParams({value})"


def _grouped(choice: Choice) -> Row:
    params, d = choice.params, choice.workload.dims
    if choice.operator != "gmm_fp8/fwd-bf16":
        raise Disagreement(
            f"tpu-inference's grouped product takes other scales, or another phase, than {choice.operator}; "
            "gmm_fp8/fwd-bf16 can be exported."
        )
    tiles = params["block_m"], min(d["K"], params["block_k"]), min(d["N"], params["block_n"])
    if params["order"] != "columns" or params["sub_m"] < tiles[0] or params["sub_n"] < tiles[2]:
        raise Disagreement(
            "tpu-inference's grouped product walks columns outermost and multiplies a tile in one dot; the winner has "
            f"order {params['order']} and dots of {params['sub_m']} x {params['sub_n']}."
        )
    key = (d["M"], d["K"], d["N"], d["G"], d["G"], "bfloat16", "bfloat16", d["K"])
    return "megablox/tuned_block_sizes.py", f"{key!r}: {tiles!r}"


_TABLES: Mapping[str, Callable[[Choice], Row]] = {"flash_attention": _attention, "gmm_fp8": _grouped}
_REFUSED = {
    "paged_attention": (
        "tpu-inference's paged attention serves prompts and tokens in one kernel, whose blocks of queries no "
        "kernel here has."
    ),
    "gemm_fp8_fused": (
        "tpu-inference's quantised product has one scale for a whole row of activations, not one for each group along "
        "K."
    ),
}
