"""The texts of the templates: one kernel and the function that launches it, plain, without a mask too few."""

from __future__ import annotations

from collections.abc import Sequence

FUNCTION = "forward"
"""What a text calls its function, and its kernel begins with."""

_HEAD = '''"""{title}: written from what its reference computes. A beginning, to be tuned."""

import torch
import triton
import triton.language as tl


@triton.jit
'''


def _given(count: int) -> tuple[str, str]:
    names = [f"x{n}" for n in range(count)]
    return ", ".join(names), ", ".join(f"{name}_ptr" for name in names)


def _indented(lines: Sequence[str], depth: int) -> str:
    return "".join(f"{'    ' * depth}{line}\n" for line in lines)


def pointwise_text(title: str, count: int, lines: Sequence[str], result: str) -> str:
    """Element by element over inputs of one shape. ``lines`` make ``result`` of ``v0``, ``v1``, ..."""
    given, pointers = _given(count)
    loads = [f"v{n} = tl.load(x{n}_ptr + at, mask=inside).to(tl.float32)" for n in range(count)]
    return (
        _HEAD.format(title=title) + f"def forward_kernel(out_ptr, {pointers}, size, BLOCK: tl.constexpr):\n"
        "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    inside = at < size\n"
        + _indented([*loads, *lines, f"tl.store(out_ptr + at, {result}, mask=inside)"], 1)
        + f"\n\ndef {FUNCTION}({given}):\n    out = torch.empty_like(x0)\n    size = x0.numel()\n    BLOCK = 1024\n"
        f"    forward_kernel[(triton.cdiv(size, BLOCK),)](out, {given}, size, BLOCK=BLOCK, num_warps=4)\n"
        "    return out\n"
    )


Step = tuple[str, str, str, str, Sequence[str], str]
"""A reduction: its name, where it begins, how an element joins, what is left of a block; lines and the element."""


def rows_text(
    title: str, count: int, axis: int, rank: int, steps: Sequence[Step], lines: Sequence[str], result: str,
    whole: bool, kept: bool,
) -> str:  # fmt: skip
    """A program for each row along ``axis``; a pass for each reduction, and one that stores elements (``whole``)."""
    given, pointers = _given(count)
    body = []
    loop = "for start in range(0, n, BLOCK):"
    loads = ["k = start + tl.arange(0, BLOCK)", "inside = k < n"]
    loads += [
        f"v{n} = tl.load(x{n}_ptr + base + k * inner, mask=inside, other=0.0).to(tl.float32)"
        for n in range(count)
    ]
    for name, begin, join, end, before, element in steps:
        body.append(f"{name}_ = tl.full((BLOCK,), {begin}, tl.float32)")
        body.append(loop)
        joined = join.format(f"{name}_", f"tl.where(inside, {element}, {begin})")
        body += [f"    {line}" for line in (*loads, *before, f"{name}_ = {joined}")]
        body.append(f"{name} = {end.format(name + '_')}")
    if whole:
        body.append(loop)
        body += [
            f"    {line}"
            for line in (*loads, *lines, f"tl.store(out_ptr + base + k * inner, {result}, mask=inside)")
        ]
    else:
        body += [*lines, f"tl.store(out_ptr + row, {result})"]
    before_axis = [f"x0.shape[{n}]" for n in range(axis)]
    after_axis = [f"x0.shape[{n}]" for n in range(axis + 1, rank)]
    sizes = before_axis + (["1"] if kept else []) + after_axis
    made = (
        "torch.empty_like(x0)"
        if whole
        else f"torch.empty(({', '.join(sizes)},), dtype=x0.dtype, device=x0.device)"
    )
    return (
        _HEAD.format(title=title)
        + f"def forward_kernel(out_ptr, {pointers}, n, inner, BLOCK: tl.constexpr):\n"
        "    row = tl.program_id(0)\n    base = (row // inner) * n * inner + row % inner\n"
        + _indented(body, 1)
        + f"\n\ndef {FUNCTION}({given}):\n    out = {made}\n    n = x0.shape[{axis}]\n"
        f"    inner = {' * '.join(after_axis) or '1'}\n    rows = {' * '.join([*before_axis, *after_axis]) or '1'}\n"
        f"    BLOCK = 1024\n    forward_kernel[(rows,)](out, {given}, n, inner, BLOCK=BLOCK, num_warps=4)\n"
        "    return out\n"
    )


def matmul_text(title: str, turned: Sequence[bool], batched: bool, lines: Sequence[str], result: str) -> str:
    """A product of two matrices, each as it lies or transposed, and what follows element by element."""
    rows, inner = (1, 0) if turned[0] else (0, 1)
    deep, columns = (1, 0) if turned[1] else (0, 1)
    shift = 1 if batched else 0
    batch = (
        "    a_ptr += tl.program_id(1) * a_batch\n    b_ptr += tl.program_id(1) * b_batch\n"
        "    out_ptr += tl.program_id(1) * M * N\n"
    )
    sizes = ["x0.shape[0]"] * batched + ["M", "N"]
    by = [("x0", rows), ("x0", inner), ("x1", deep), ("x1", columns)]
    strides = ", ".join(f"{name}.stride({axis + shift})" for name, axis in by)
    asked = [("x0", rows), ("x0", inner), ("x1", columns)]
    shape = ", ".join(f"{name}.shape[{axis + shift}]" for name, axis in asked)
    return (
        _HEAD.format(title=title)
        + "def forward_kernel(out_ptr, a_ptr, b_ptr, M, N, K, a_rows, a_deep, b_deep, b_columns, a_batch, b_batch,\n"
        "                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):\n"
        + (batch if batched else "")
        + "    across = tl.cdiv(N, BLOCK_N)\n    pid = tl.program_id(0)\n"
        "    m = (pid // across) * BLOCK_M + tl.arange(0, BLOCK_M)\n"
        "    n = (pid % across) * BLOCK_N + tl.arange(0, BLOCK_N)\n    k = tl.arange(0, BLOCK_K)\n"
        "    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)\n"
        "    for start in range(0, K, BLOCK_K):\n        deep = start + k\n"
        "        a = tl.load(a_ptr + m[:, None] * a_rows + deep[None, :] * a_deep,\n"
        "                    mask=(m[:, None] < M) & (deep[None, :] < K), other=0.0)\n"
        "        b = tl.load(b_ptr + deep[:, None] * b_deep + n[None, :] * b_columns,\n"
        "                    mask=(deep[:, None] < K) & (n[None, :] < N), other=0.0)\n"
        '        acc = tl.dot(a, b, acc, input_precision="ieee")\n'
        + _indented([*lines], 1)
        + f"    tl.store(out_ptr + m[:, None] * N + n[None, :], {result},\n"
        "             mask=(m[:, None] < M) & (n[None, :] < N))\n"
        f"\n\ndef {FUNCTION}(x0, x1):\n    M, K, N = {shape}\n"
        f"    out = torch.empty(({', '.join(sizes)}), dtype=x0.dtype, device=x0.device)\n"
        "    BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 32\n"
        f"    grid = (triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N), {'x0.shape[0]' if batched else '1'})\n"
        f"    forward_kernel[grid](out, x0, x1, M, N, K, {strides},\n"
        f"                         {'x0.stride(0), x1.stride(0)' if batched else '0, 0'},\n"
        "                         BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=4, num_stages=2)\n"
        "    return out\n"
    )
