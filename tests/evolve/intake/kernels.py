"""Kernels as people write them, for tests: nothing of the dialect is asked of them."""

from __future__ import annotations

from pathlib import Path

TRITON = '''
from typing import Optional

import torch
import triton
import triton.language as tl
import a_package_that_is_not_here

print("nobody needs to see this")
GROUP = 32


@triton.jit
def _root(v, _eps):
    return tl.sqrt(v + _eps)


@triton.jit
def _group_norm(x_ptr, y_ptr, rows, cols, stride, eps, GROUP_SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Each group of a row by its root mean square."""
    pid = tl.program_id(0)
    _at = pid * BLOCK + tl.arange(0, BLOCK)
    row = _at // (cols // GROUP_SIZE)
    group = _at % (cols // GROUP_SIZE)
    inside = row < rows
    offs = row[:, None] * stride + group[:, None] * GROUP_SIZE + tl.arange(0, GROUP_SIZE)[None, :]
    x = tl.load(x_ptr + offs, mask=inside[:, None], other=0.0).to(tl.float32)
    y = x / _root(tl.sum(x * x, axis=1) / GROUP_SIZE, eps)[:, None]
    tl.store(y_ptr + offs, y.to(y_ptr.type.element_ty), mask=inside[:, None])

Waited = torch.cuda.Stream | torch.cuda.Event | None  # what packages annotate with while they are imported


def group_norm(x: torch.Tensor, eps: float = 1e-6, out: Optional[torch.Tensor] = None) -> torch.Tensor:
    assert x.is_cuda and x.shape[1] % GROUP == 0, "whole groups"
    if x.dim() != 2:
        raise ValueError("two dimensions")
    rows, cols = x.shape
    y = torch.empty((rows, cols), device=x.device, dtype=x.dtype)
    BLOCK = 16
    warps = 4 if cols < 4096 else 8
    grid = (triton.cdiv(rows * (cols // GROUP), BLOCK),)
    with torch.cuda.device(x.device):
        _group_norm[grid](x, y, rows, cols, x.stride(0), eps, GROUP_SIZE=GROUP, BLOCK=BLOCK, num_warps=warps)
    return y


def wrong_group_norm(x, eps=1e-6):
    return group_norm(x, 1.0)


@triton.jit
def _scale(x_ptr, n, factor, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * factor, mask=offs < n)


def scale_(x, factor):
    _scale[(triton.cdiv(x.numel(), 256),)](x, x.numel(), factor, BLOCK=256)
    return x


@triton.jit
def _noisy(x_ptr, y_ptr, n, seed, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    keep = tl.extra.cuda.globaltimer() > seed
    x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r, r", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y_ptr + offs, tl.where(keep, x, 0.0), mask=offs < n)


def noisy(x):
    y = torch.empty_like(x)
    order = torch.sort(x)[0]
    _noisy[(triton.cdiv(x.numel(), 256),)](order, y, x.numel(), 7, BLOCK=256)
    return y


def column_means(x, out_dtype=torch.float32):
    """torch before, between and after the kernel, and its argument as a transposed view."""
    left, right = x.chunk(2, dim=1)
    turned = (left + right * 0.5).contiguous()
    scale_(turned, 2.0)
    spread = torch.logsumexp(turned.clamp(min=-1.0, max=4.0) ** 2, dim=0)
    return turned.sum(dim=0).to(out_dtype) / x.shape[0] + spread


best = group_norm(torch.ones(3, 64, device="cuda"))
'''

REFERENCE = """
import torch


def group_norm(x, eps=1e-6):
    groups = x.view(x.shape[0], -1, 32)
    return (groups * torch.rsqrt((groups * groups).mean(-1, keepdim=True) + eps)).view(x.shape)


def column_means(x):
    left, right = x.chunk(2, dim=1)
    turned = 2 * left + right
    return turned.mean(0) + torch.logsumexp(turned.clamp(min=-1.0, max=4.0) ** 2, dim=0)
"""


def write(folder: Path) -> Path:
    """The files ``mine.py`` and ``plain.py`` in a folder."""
    for name, text in (("mine", TRITON), ("plain", REFERENCE)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder
