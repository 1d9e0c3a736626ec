"""Modules for programs that train or serve: a drop-in for ``nn.Linear``, and whole models converted.

    model = convert(model)                       # every nn.Linear whose sizes the recipe takes, parameters shared
    with kept_weights(model):                    # quantise each weight once for all micro-batches of a step
        for batch in micro_batches:
            loss(model(batch)).backward()
    optimiser.step()

State dicts are those of the modules replaced. Work with torch.compile, activation checkpointing, FSDP2, tensor parallel
(``torch_parallel`` tells DTensor how the ops shard) and torch.autocast.
"""

import contextlib
import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn

from .layer_rows import gains, is_faster, takes_rows
from .torch_contract import BLOCK
from .torch_launch import aligned, device_key
from .torch_operators import (
    KEPT,
    KeptWeight,
    LinearKept,
    ServedCall,
    gemm_fp8_blockwise,
    linear_infer,
    served_call,
    unwatched,
)

Filter = Callable[[str, nn.Linear], bool]
Way = ServedCall | object | None
"""What serves an input, weight and bias of one shape each; where it gives None, ``multiply`` does."""

IN_BF16 = object()
"""The way of torch's own product, whatever watches the call."""

MOST_CALLS = 4096
"""Shapes of inputs for which a layer keeps what serves them."""

NO_CALLS: dict[tuple[torch.Size, bool, bool], tuple[Way, Way]] = {}
_stream = torch._C._cuda_getCurrentRawStream if torch.backends.cuda.is_built() else lambda index: 0


class Linear(nn.Linear):
    """y = x . w^T + b, with forward and both gradients multiplied in blockwise FP8.

    Where FP8 was measured to be slower than bf16 (``layer_rows``), bf16 serves, unless ``only_faster`` is False.
    Weights and inputs in bfloat16; under ``torch.autocast`` to bfloat16 both may be float32. What the recipe does not
    take (sizes off its blocks, other dtypes) is multiplied as ``nn.Linear`` does, with one warning.
    """

    _kept: KeptWeight | None = None
    _keeping: bool = False
    _calls: dict[tuple[torch.Size, bool, bool], tuple[Way, Way]] = NO_CALLS
    """What serves an input of a shape, with or without a gradient, eagerly and in a graph."""
    only_faster: bool = True

    @classmethod
    def from_linear(cls, linear: nn.Linear, only_faster: bool = True) -> "Linear":
        """A module with the same parameters (shared, not copied), device, dtype and mode."""
        with torch.device("meta"):
            made = cls(linear.in_features, linear.out_features, bias=linear.bias is not None)
        made.weight, made.bias = linear.weight, linear.bias
        made.only_faster = only_faster
        made.train(linear.training)
        return made

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features] in bfloat16.

        Of a shape that it has served, an eager call costs the host little more than a result and its launches.
        """
        parameters = self._parameters
        weight = parameters.get("weight")
        if weight is not None and "bias" in parameters and not torch.compiler.is_compiling():
            bias = parameters["bias"]
            trains = torch.is_grad_enabled() and (weight.requires_grad or input.requires_grad)
            key = (input.shape, trains, self.only_faster)
            call, graph = self._calls.get(key) or self._ways(input, weight, key)
            # the default stream is never captured
            if call is not graph and _stream(input.get_device()) and torch.cuda.is_current_stream_capturing():
                call = graph
            if call is IN_BF16:
                if bias is None or bias.dtype is input.dtype:
                    return torch.nn.functional.linear(input, weight, bias)
            elif isinstance(call, ServedCall) and (y := call(input, weight, bias)) is not None:
                return y
        y, bias = multiply(input, self.weight, self), self.bias
        return y if bias is None else y + bias.to(y.dtype)

    def _ways(self, x: torch.Tensor, weight: torch.Tensor, key: tuple[torch.Size, bool, bool]) -> tuple[Way, Way]:
        """What serves inputs of x's shape eagerly, and in graphs; None for what ``multiply`` has to see."""
        if not unwatched(x, weight) or x.dtype is not torch.bfloat16 or weight.dtype is not torch.bfloat16:
            return None, None
        ways: tuple[Way, Way] = (None, None)
        n, k = weight.shape
        m, trains = x.numel() // k if k else 0, key[1]
        if x.is_cuda and x.shape[-1:] == (k,) and takes(self) and takes_rows(m, trains):
            mode = "train" if trains else "kept" if self._keeping else "infer"
            at = (m, n, k, _device_key(x.get_device()))
            fast = [not self.only_faster or is_faster(mode, way, *at) for way in ("eager", "graph")]
            # a graph that is captured later has to find the weight quantised
            copies = self.quantised_weight() if any(fast) and not trains else None
            served = None
            if not trains and (copies is not None or not self._keeping):
                served = served_call(x, weight, self._kept if self._keeping else None)
            eager, graph = (served if faster else IN_BF16 for faster in fast)
            ways = (eager, graph)
        if len(self._calls) > MOST_CALLS or self._calls is NO_CALLS:
            self._calls = {}
        self._calls[key] = ways
        return ways

    def quantised_weight(self) -> torch.Tensor | None:
        """Both quantised copies of the weight, made once while ``kept_weights`` is open; None outside of it, and where
        they would have to be made while a graph is captured."""
        if not self._keeping:
            return None
        kept = self._kept
        if kept is None or kept.weight is not self.weight:
            kept = self._kept = KeptWeight(self.weight)
        before, copies = kept.version, kept.copies()
        if kept.version != before:
            self._calls = {}
        return copies


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
            rows, shape = x.reshape(-1, x.shape[-1]), (*x.shape[:-1], w.shape[0])
            if trains:
                y: torch.Tensor = LinearKept.apply(aligned(rows), w, kept)
                return y.view(shape)
            if unwatched(x, w):
                return linear_infer(rows, w, kept).view(shape)
    return gemm_fp8_blockwise(x, w)


def _slower(x: torch.Tensor, w: torch.Tensor, keeper: Linear) -> bool:
    """Whether bf16 was measured to be faster at these rows; compiled code counts as a graph."""
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        mode = "train"
    else:
        mode = "kept" if keeper._keeping else "infer"
    graph = torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing()
    n, k = w.shape
    return not is_faster(mode, "graph" if graph else "eager", x.numel() // k, n, k, _device_key(x.device.index or 0))


def _device_key(index: int) -> str:
    return _key_of(index)


_device_key._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache
def _key_of(index: int) -> str:
    return device_key(torch.device("cuda", index))


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
    lines = [f"{'N x K':>15}  {'layers':>6}  {'rows: ' + str(rows[0]):>8}" + "".join(f"{m:>8}" for m in rows[1:])]
    for (n, k, key), names in sizes.items():
        known = gains(mode, way, n, k, key) if key else {}
        if not key:
            off = "N or K is no multiple of 128" if n % BLOCK or k % BLOCK else "not converted"
            found = f"  bf16: {off}"
        elif not known:
            found = "  FP8: nothing was measured on this device"
        else:
            near = {m: known[_nearest(known, m)] for m in rows}
            serves = {m: is_faster(mode, way, m, n, k, key) for m in rows}
            found = "".join(f"{near[m]:>8.2f}" if serves[m] else f"{'bf16':>8}" for m in rows)
        lines.append(f"{f'{n} x {k}':>15}  {len(names):>6}{found}  {names[0]}")
    return "\n".join(lines)


def _is_distributed(tensor: torch.Tensor) -> bool:
    if type(tensor) is torch.Tensor or type(tensor) is nn.Parameter:
        return False
    return type(tensor).__name__ == "DTensor" or type(getattr(tensor, "data", None)).__name__ == "DTensor"


def takes(linear: nn.Linear) -> bool:
    """Whether the recipe takes a layer's sizes: both multiples of 128."""
    return linear.in_features % BLOCK == 0 and linear.out_features % BLOCK == 0


class RMSNorm(nn.Module):
    """w * x / sqrt(mean(x^2) + eps) over the last dimension by torch's one kernel, where eager code takes six."""

    _eps: float
    _plain: type[nn.Module]
    """The class that the module was of: it serves compiled code, autocast, other dtypes than the weight's, CPUs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] -> [..., K]."""
        weight = self.weight
        own = not x.is_cuda or x.dtype is not weight.dtype or torch.is_autocast_enabled("cuda")
        if own or torch.compiler.is_compiling() or not unwatched(x, weight):
            plain: torch.Tensor = self._plain.forward(self, x)
            return plain
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self._eps)


def _norm_epsilon(module: nn.Module) -> float | None:
    """The eps of a module that computes what ``RMSNorm`` does, found by calling its class on values; None of others.

    Such a module has one vector and one float. Of the rows tried, one is so small that eps decides the answer.
    """
    weight, values = module._parameters.get("weight"), [v for v in vars(module).values() if type(v) is float]
    if (
        "forward" in vars(module)
        or len(module._parameters) != 1
        or module._buffers
        or module._modules
        or len(values) != 1
        or type(weight) is not nn.Parameter
        or weight.dim() != 1
        or not weight.is_floating_point()
        or weight.is_meta
        or isinstance(module, nn.RMSNorm | RMSNorm)
    ):
        return None
    angles = torch.arange(4 * len(weight), device=weight.device).view(4, -1)
    scales = torch.tensor([1e-3, 0.1, 1.0, 30.0], device=weight.device)[:, None]
    x, vector = (
        (a.float() * s).to(weight.dtype) for a, s in (((angles * 1.7).sin(), scales), ((angles[0] * 2.3).cos() + 2, 1))
    )
    probe = copy.copy(module)
    probe._parameters = {"weight": nn.Parameter(vector, requires_grad=False)}
    try:
        found = type(module).forward(probe, x)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return None
    wanted = torch.nn.functional.rms_norm(x.double(), weight.shape, vector.double(), values[0])
    near = isinstance(found, torch.Tensor) and found.shape == x.shape and found.dtype is x.dtype
    near = near and bool(((found.double() - wanted).abs() <= 2**-7 * wanted.abs() + 1e-12).all())
    return values[0] if near else None


def convert(model: nn.Module, filter: Filter | None = None, only_faster: bool = True, norms: bool = True) -> nn.Module:
    """Turn, in place, every ``nn.Linear`` whose sizes the recipe takes and for which ``filter(name, module)`` holds.

    A module stays the object that it was, with its parameters, hooks and names, also where a model has it twice or ties
    its weight. Subclasses of ``nn.Linear`` are left alone, and with one warning for all those whose product is not
    plainly that of their weight: something replaced ``forward`` (as accelerate's ``device_map`` does) or computes the
    weight at each call (weight norm, pruning). ``only_faster`` False: FP8 serves where bf16 is faster, too. ``norms``:
    modules that are seen to compute a root mean square norm in several kernels do it in one.
    """
    left: dict[str, str] = {}
    for name, module in list(model.named_modules()):
        if norms and (eps := _norm_epsilon(module)) is not None:
            module._plain, module._eps, module.__class__ = type(module), eps, RMSNorm
            continue
        if type(module) is not nn.Linear or not takes(module) or not (filter is None or filter(name, module)):
            continue
        if (reason := _not_plain(module)) is not None:
            left.setdefault(reason, name or "the model")
            continue
        module.__class__ = Linear
        assert isinstance(module, Linear)
        module.only_faster = only_faster
    if left:
        reasons = "; ".join(f"{name}: {reason}" for reason, name in left.items())
        warnings.warn(f"layers stay as they are, first of each kind: {reasons}", stacklevel=2)
    return model


def _not_plain(linear: nn.Linear) -> str | None:
    """Why a layer's product may not be what ``nn.Linear`` computes of its parameters; None for an ordinary layer."""
    if "forward" in vars(linear):
        return "its forward was replaced"
    if linear._parameters.get("weight") is None or "bias" not in linear._parameters:
        return "its weight is computed at each call"
    return None


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
            kept.calls.clear()  # they hold it
            if KEPT.get(address) is kept:
                del KEPT[address]
        for layer in layers:
            layer._keeping, layer._kept, layer._calls = False, None, {}
