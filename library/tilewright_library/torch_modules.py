"""Modules for programs that train or serve: a drop-in for ``nn.Linear``, experts of a mixture, whole models converted.

    model = convert(model)                       # every nn.Linear whose sizes the recipe takes, parameters shared
    with kept_weights(model):                    # quantise each weight once for all micro-batches of a step
        for batch in micro_batches:
            loss(model(batch)).backward()
    optimiser.step()

State dicts are those of the modules replaced. Work with torch.compile, activation checkpointing, FSDP2, tensor parallel
(``torch_parallel`` tells DTensor how the ops shard) and torch.autocast.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .layer_rows import gains, is_faster, takes_rows
from .torch_contract import BLOCK, dequantise_blocks, dequantise_rows
from .torch_launch import device_key
from .torch_layer import LAUNCHER, both_weight_bytes, kept_bytes, kept_weight_bytes, run
from .torch_operators import (
    KEPT,
    KeptCall,
    KeptWeight,
    gemm_fp8_blockwise,
    infer_kept,
    kept_call,
    multiply_kept,
    unwatched,
)

Filter = Callable[[str, nn.Linear], bool]


class Linear(nn.Linear):
    """y = x . w^T + b, with forward and both gradients multiplied in blockwise FP8.

    Where FP8 was measured to be slower than bf16 (``layer_rows``), bf16 serves, unless ``only_faster`` is False.
    Weights and inputs in bfloat16; under ``torch.autocast`` to bfloat16 both may be float32. What the recipe does not
    take (sizes off its blocks, other dtypes) is multiplied as ``nn.Linear`` does, with one warning.
    """

    _kept: KeptWeight | None = None
    _keeping: bool = False
    _calls: dict[torch.Size, KeptCall | None] | None = None
    """What serves an input of a shape without a gradient while weights are kept; None: nothing so simple."""
    only_faster: bool = True

    @classmethod
    def from_linear(cls, linear: nn.Linear, only_faster: bool = True) -> Linear:
        """A module with the same parameters (shared, not copied), device, dtype and mode."""
        with torch.device("meta"):
            made = cls(linear.in_features, linear.out_features, bias=linear.bias is not None)
        made.weight, made.bias = linear.weight, linear.bias
        made.only_faster = only_faster
        made.train(linear.training)
        return made

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features] in bfloat16."""
        y = self._straight(input) if self._calls is not None and not torch.compiler.is_compiling() else None
        if y is None:
            y = multiply(input, self.weight, self)
        bias = self._parameters["bias"]
        return y if bias is None else y + bias.to(y.dtype)

    def _straight(self, x: torch.Tensor) -> torch.Tensor | None:
        """What ``multiply`` gives, for a shape it has served with a kept weight; None where anything else is at stake.

        A call costs the host little more than a result and a launch.
        """
        calls, kept = self._calls, self._kept
        weight = self._parameters["weight"]
        if calls is None or kept is None or weight is None or torch.is_grad_enabled():
            return None
        if kept.weight is not weight or kept.version != weight._version or not unwatched(x, weight):
            return None
        if x.dtype is not torch.bfloat16 or weight.dtype is not torch.bfloat16:
            return None
        try:
            call = calls[x.shape]
        except KeyError:
            call = calls[x.shape] = self._call(x)
        if call is None or x.get_device() != call.index or torch.is_autocast_enabled("cuda"):
            return None
        return call(x)

    def _call(self, x: torch.Tensor) -> KeptCall | None:
        """What serves inputs of x's shape, if FP8 does in graphs and eagerly."""
        assert self._kept is not None
        n, k = self._kept.weight.shape
        m = x.numel() // k if k else 0
        if not x.is_cuda or x.shape[-1:] != (k,) or not takes_rows(m, False):
            return None
        key = _device_key(x.get_device())
        if self.only_faster and not all(is_faster("kept", way, m, n, k, key) for way in ("graph", "eager")):
            return None
        return kept_call(x, n, self._kept.copies())

    def quantised_weight(self) -> torch.Tensor | None:
        """Both quantised copies of the weight, made once while ``kept_weights`` is open; None outside of it."""
        if not self._keeping:
            return None
        kept = self._kept
        if kept is None or kept.weight is not self.weight:
            kept = self._kept = KeptWeight(self.weight)
            self._calls = {}
        return kept.copies()


def multiply(x: torch.Tensor, w: torch.Tensor, keeper: Linear | None = None) -> torch.Tensor:
    """x [..., K] . w [N, K]^T in FP8 where the operands allow it, as ``torch.nn.functional.linear`` where not."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        wanted = torch.get_autocast_dtype(kind)
        x, w = x.to(wanted), w.to(wanted)
    if x.dtype is not torch.bfloat16 or w.dtype is not torch.bfloat16:
        return torch.nn.functional.linear(x, w)
    if _is_distributed(x) or _is_distributed(w):
        from .torch_parallel import multiply_distributed

        return multiply_distributed(x, w)
    if keeper is not None and keeper.only_faster and x.is_cuda and _slower(x, w, keeper):
        return torch.nn.functional.linear(x, w)
    if keeper is not None and not torch.compiler.is_compiling():
        kept, trains = keeper.quantised_weight(), torch.is_grad_enabled()
        if kept is not None and takes_rows(x.numel() // x.shape[-1], trains):
            if trains:
                return multiply_kept(x, w, kept)
            if unwatched(x, w):
                return infer_kept(x, w.shape[0], kept)
    return gemm_fp8_blockwise(x, w)


def _slower(x: torch.Tensor, w: torch.Tensor, keeper: Linear) -> bool:
    """Whether bf16 was measured to be faster at these rows; compiled code counts as a graph."""
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        mode = "train"
    else:
        mode = "kept" if keeper._keeping else "infer"
    graph = torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing()
    n, k = w.shape
    return not is_faster(
        mode, "graph" if graph else "eager", x.numel() // k, n, k, _device_key(x.device.index or 0)
    )


@functools.lru_cache
def _device_key(index: int) -> str:
    return device_key(torch.device("cuda", index))


_device_key._dynamo_marked_constant = True  # type: ignore[attr-defined]


def expected_gains(model: nn.Module, rows: int, mode: str = "train", way: str = "eager") -> dict[str, float]:
    """By layer: the gain over bf16 measured at the nearest layer and rows, as ``layer_rows`` tells modes and ways."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            key = device_key(module.weight.device)
            known = gains(mode, way, module.out_features, module.in_features, key)
            if known:
                found[name] = known[_nearest(known, rows)]
    return found


def _nearest(known: Iterable[int], rows: int) -> int:
    return min(known, key=lambda size: abs(math.log2(size / rows)))


ROWS = (1, 16, 64, 128, 256, 512, 1024, 4096)


def gain_table(model: nn.Module, mode: str = "kept", way: str = "graph", rows: Sequence[int] = ROWS) -> str:
    """Lines of text: a converted model's layers by size, with the measured gain over bf16 by rows; those left in bf16.

    ``bf16`` stands where FP8 was measured to be slower, and serves there. Modes and ways: see ``layer_rows``.
    """
    sizes: dict[tuple[int, int, str], list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            key = device_key(module.weight.device) if isinstance(module, Linear) else ""
            sizes.setdefault((module.out_features, module.in_features, key), []).append(name or "(the model)")
    lines = [
        f"{'N x K':>15}  {'layers':>6}  {'rows: ' + str(rows[0]):>8}" + "".join(f"{m:>8}" for m in rows[1:])
    ]
    for (n, k, key), names in sizes.items():
        known = gains(mode, way, n, k, key) if key else {}
        if not key:
            off = "N or K is no multiple of 128" if n % BLOCK or k % BLOCK else "not converted"
            found = f"  bf16: {off}"
        elif not known:
            found = "  FP8: nothing was measured on this device"
        else:
            near = [known[_nearest(known, m)] for m in rows]
            found = "".join(f"{gain:>8.2f}" if gain >= 1.0 else f"{'bf16':>8}" for gain in near)
        lines.append(f"{f'{n} x {k}':>15}  {len(names):>6}{found}  {names[0]}")
    return "\n".join(lines)


def _is_distributed(tensor: torch.Tensor) -> bool:
    if type(tensor) is torch.Tensor or type(tensor) is nn.Parameter:
        return False
    return type(tensor).__name__ == "DTensor" or type(getattr(tensor, "data", None)).__name__ == "DTensor"


def takes(linear: nn.Linear) -> bool:
    """Whether the recipe takes a layer's sizes: both multiples of 128."""
    return linear.in_features % BLOCK == 0 and linear.out_features % BLOCK == 0


def convert(model: nn.Module, filter: Filter | None = None, only_faster: bool = True) -> nn.Module:
    """Replace, in place, every ``nn.Linear`` whose sizes the recipe takes and for which ``filter(name, module)`` holds.

    The root itself is returned converted when it is a linear layer. Subclasses of ``nn.Linear`` are left alone. A
    module that is used in two places stays one module. ``only_faster`` False: FP8 serves where bf16 is faster, too.
    """
    made: dict[int, Linear] = {}

    def chosen(name: str, module: nn.Module) -> bool:
        if type(module) is not nn.Linear or not takes(module):
            return False
        return filter is None or bool(filter(name, module))

    if chosen("", model):
        assert isinstance(model, nn.Linear)
        return Linear.from_linear(model, only_faster)
    for name, parent in list(model.named_modules(remove_duplicate=False)):
        for child_name, child in list(parent.named_children()):
            full = f"{name}.{child_name}" if name else child_name
            if id(child) in made:
                setattr(parent, child_name, made[id(child)])
            elif chosen(full, child):
                assert isinstance(child, nn.Linear)
                made[id(child)] = Linear.from_linear(child, only_faster)
                setattr(parent, child_name, made[id(child)])
    return model


@contextlib.contextmanager
def kept_weights(model: nn.Module) -> Iterator[None]:
    """While open, each layer's weight is quantised once, at its first use: for a step's micro-batches, or to serve.

    Weights must not change inside: an optimiser's step or a load of a state dict belongs outside. (In-place changes
    that autograd sees are noticed; those of FSDP, which gathers weights anew, are why this is not automatic.) Costs
    both FP8 copies of every weight in memory. Compiled code keeps weights where there is no gradient.
    """
    layers = [module for module in model.modules() if isinstance(module, Linear)]
    held: dict[int, KeptWeight] = {}
    for layer in layers:
        layer._keeping, layer._calls, layer._kept = True, {}, KeptWeight(layer.weight)
        if layer.weight.is_cuda:
            held[layer.weight.data_ptr()] = layer._kept
    KEPT.update(held)
    try:
        yield
    finally:
        for address, kept in held.items():
            if KEPT.get(address) is kept:
                del KEPT[address]
        for layer in layers:
            layer._keeping, layer._kept, layer._calls = False, None, None


class GroupedExperts(nn.Module):
    """The linear layers of a mixture's experts: ``weight`` [experts, out_features, in_features] in bfloat16.

    ``forward(x [T, K], counts)``: rows of x in the order of the experts, ``counts`` whole numbers that add up to T. A
    tensor of counts stays on its device and nothing waits for it (``grouped_linear``); numbers of the host, a list say,
    are one FP8 product an expert.
    """

    def __init__(self, experts: int, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__()
        options.setdefault("dtype", torch.bfloat16)
        self.weight = nn.Parameter(torch.empty(experts, out_features, in_features, **options))
        nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)

    def forward(self, x: torch.Tensor, counts: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """[T, K] -> [T, out_features]. Raises ValueError for counts of the host that do not fit x."""
        if isinstance(counts, torch.Tensor):
            return self._on_device(x, counts)
        sizes = [int(n) for n in counts]
        if len(sizes) != self.weight.shape[0] or sum(sizes) != x.shape[0] or min(sizes, default=0) < 0:
            raise ValueError(
                f"counts must be {self.weight.shape[0]} sizes that add up to {x.shape[0]}, not {sizes}"
            )
        parts = []
        for number, rows in enumerate(x.split(sizes)):
            if rows.shape[0]:
                short = (
                    -rows.shape[0] % BLOCK
                )  # gradients come in whole blocks of rows; rows of zeros add nothing
                padded = torch.nn.functional.pad(rows, (0, 0, 0, short)) if short else rows
                parts.append(multiply(padded, self.weight[number])[: rows.shape[0]])
        return torch.cat(parts) if parts else x.new_empty((0, self.weight.shape[1]))

    def _on_device(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        w = self.weight
        if counts.shape != w.shape[:1] or counts.is_floating_point():
            raise ValueError(
                f"counts must be {w.shape[0]} whole numbers, not {counts.dtype} {list(counts.shape)}"
            )
        if w.shape[1] % BLOCK or w.shape[2] % BLOCK:
            raise ValueError(
                f"counts on the device need sizes in multiples of {BLOCK}, not {list(w.shape[1:])}"
            )
        kind = x.device.type
        wanted = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.bfloat16
        return grouped_linear(x.to(wanted), w.to(wanted), counts.to(x.device, non_blocking=True))


def activation_bytes(model: nn.Module, rows: int) -> dict[str, tuple[int, int]]:
    """By layer: bytes kept for the backward pass of ``rows`` rows, and what bf16 would keep (its input alone).

    Ours are the FP8 copies of the input and of the weight; bf16 keeps the input and refers to the weight.
    """
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            n, k = module.out_features, module.in_features
            weight = both_weight_bytes(n, k) if module._keeping else kept_weight_bytes(n, k)
            found[name] = (kept_bytes(rows, k) + weight, 2 * rows * k)
    return found


# -- group sizes on the device -----------------------------------------------------------------------

_REASON = "no grouped kernel has been promoted for group sizes on the device"


def grouped_linear(x: torch.Tensor, w: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """``x`` [T, K], rows sorted by expert, ``w`` [E, N, K], ``counts`` [E] whole numbers on x's device -> [T, N] bf16.

    The host reads no size, so that CUDA graphs and queues go on: rows are moved to where every expert begins at a
    multiple of 128, in a buffer whose size depends on the number of rows and experts alone. Operands are rounded as the
    recipe says, by the promoted quantisers where there are any; the three grouped products are torch's, in bf16.

    Differentiable in x and w. K and N are multiples of 128. Counts that do not add up to T, or are negative, fail on
    the device (RuntimeError at the next synchronisation).
    """
    LAUNCHER.dispatcher.warn("grouped", _REASON)
    place, ends, rows = layout(counts, x.shape[0])
    padded = x.new_zeros((rows, x.shape[1])).index_copy(0, place, x)
    return _Grouped.apply(padded, w, ends).index_select(0, place)


def layout(counts: torch.Tensor, total: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Of a padded buffer: the place of each of ``total`` rows, ends [E] int32 of the experts' blocks, its rows."""
    counts = counts.to(torch.int64)
    torch._assert_async((counts.sum() == total) & (counts >= 0).all())
    ends = counts.cumsum(0)
    blocks = ((counts + BLOCK - 1) // BLOCK * BLOCK).cumsum(0)
    number = torch.arange(total, device=counts.device)
    expert = torch.searchsorted(ends, number, right=True).clamp_max(counts.shape[0] - 1)
    padded_ends = torch.cat((blocks.new_zeros(1), blocks))
    place = number - (ends - counts)[expert] + padded_ends[expert]
    rows = -(-total // BLOCK) * BLOCK + BLOCK * counts.shape[0]
    return place, blocks.to(torch.int32), rows


def _both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [R, C] rounded in blocks along its rows, and along its columns, in bf16."""
    q, s, q_t, s_t = run("quant_dual", (x.shape[0], x.shape[1]), {"x": x})
    return dequantise_rows(q, s).bfloat16(), dequantise_rows(q_t, s_t).t().bfloat16()


class _Grouped(torch.autograd.Function):
    """y, dx and dw of rows in blocks by expert; every operand rounded to FP8 along what it is summed over."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        experts, n, k = w.shape
        along_k, along_rows = _both(x)
        rounded = dequantise_blocks(
            *run("quant_128x128", (experts * n, k), {"x": w.reshape(experts * n, k).contiguous()})
        ).bfloat16()
        rounded = rounded.reshape(experts, n, k)
        ctx.save_for_backward(along_rows, rounded, ends)
        return _product(along_k, rounded.transpose(1, 2), ends)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        along_rows, rounded, ends = ctx.saved_tensors
        along_n, dy_along_rows = _both(gradients[0].contiguous())
        dx = _product(along_n, rounded, ends) if ctx.needs_input_grad[0] else None
        dw = None
        if ctx.needs_input_grad[1]:
            dw = _product(dy_along_rows.t().contiguous(), along_rows.contiguous(), ends)
        return dx, dw, None


def _product(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """torch's grouped product: rows of a, or columns of a and rows of b, end where ``ends`` says."""
    product: torch.Tensor = torch._grouped_mm(a, b, offs=ends)
    return product
