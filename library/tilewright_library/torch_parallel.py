"""How the layer's ops shard: for DTensor, so that tensor parallel plans of ``nn.Linear`` hold for ``Linear``.

Columns (w by rows of w): x whole, y by columns. Rows (w by columns of w): x by columns, y a sum over devices. Data: x
by rows, w whole, dw a sum over devices. A cut goes along whole 128-blocks, else the operands are made whole first.
"""

import functools
from typing import Any

import torch

from .torch_operators import OPS


@functools.cache
def register() -> None:
    """Tell DTensor once."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    whole, rows, columns, added = Replicate(), Shard(0), Shard(1), Partial()

    # what is kept of an operand is one-dimensional: its parts lie one after the other
    @register_sharding(OPS.linear.default)
    def linear(x: Any, w: Any) -> Any:
        return [
            ([whole, whole, whole], [whole, whole]),
            ([columns, whole, rows], [whole, rows]),
            ([added, rows, rows], [columns, columns]),
            ([rows, rows, whole], [rows, whole]),
        ]

    @register_sharding(OPS.linear_forward_only.default)
    def linear_forward_only(x: Any, w: Any) -> Any:
        return [
            ([whole], [whole, whole]),
            ([columns], [whole, rows]),
            ([added], [columns, columns]),
            ([rows], [rows, whole]),
        ]

    del linear, linear_forward_only


class _Distributed(torch.autograd.Function):
    """The layer on local parts: the forward's op tells how it was cut, the backward follows from it."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        y, kept_x, kept_w = OPS.linear(x, w)
        ctx.save_for_backward(kept_x.to_local(), kept_w.to_local())
        ctx.cut = (y.placements, kept_x.placements, kept_w.placements)
        ctx.x, ctx.w = (x.device_mesh, x.shape), w.shape
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        mesh, x_shape = ctx.x
        y_cut = ctx.cut[0]
        # a sum over devices has the same gradient on each
        wanted = [Replicate() if p.is_partial() else p for p in y_cut]
        local = dy.redistribute(mesh, wanted).to_local()
        kept_x, kept_w = ctx.saved_tensors
        need_x, need_w = ctx.needs_input_grad
        k = x_shape[1]
        dx_cut: list[Any] = []
        dw_cut: list[Any] = []
        for axis, (y, of_x, of_w) in enumerate(zip(*ctx.cut, strict=True)):
            if y.is_partial():  # cut along K
                k //= mesh.size(axis)
                dx_cut.append(Shard(1))
                dw_cut.append(Shard(1))
            elif of_w.is_shard():  # cut along N
                dx_cut.append(Partial())
                dw_cut.append(Shard(0))
            elif of_x.is_shard():  # cut along M
                dx_cut.append(Shard(0))
                dw_cut.append(Partial())
            else:
                dx_cut.append(Replicate())
                dw_cut.append(Replicate())
        dx, dw = OPS.linear_backward(local, kept_x, kept_w, k, need_x, need_w)
        return (
            DTensor.from_local(dx, mesh, dx_cut, run_check=False) if need_x else None,
            DTensor.from_local(dw, mesh, dw_cut, run_check=False) if need_w else None,
        )


def multiply_distributed(x: Any, w: Any) -> Any:
    """x [..., K] . w [N, K]^T for DTensors; a plain tensor beside one counts as whole on every device."""
    from torch.distributed.tensor import DTensor, Replicate

    register()
    mesh = (x if isinstance(x, DTensor) else w).device_mesh
    everywhere = [Replicate()] * mesh.ndim
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, mesh, everywhere, run_check=False)
    if not isinstance(w, DTensor):
        w = DTensor.from_local(w, mesh, everywhere, run_check=False)
    lead = x.shape[:-1]
    rows = x.reshape(-1, x.shape[-1]) if x.dim() != 2 else x
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        y = _Distributed.apply(rows, w)
    else:
        y = OPS.linear_forward_only(rows, w)
    return y.reshape(*lead, w.shape[0]) if x.dim() != 2 else y
