"""Run in a child process by the tests of the torch library: one scenario a call, JSON on standard output.

The child sees the library and torch only. Triton reads TRITON_INTERPRET when a kernel is defined.
"""

import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F


def snr(got: torch.Tensor, wanted: torch.Tensor) -> float:
    wanted = wanted.detach().double()
    error = (got.detach().double() - wanted).square().sum().clamp_min(1e-300)
    return float(10 * torch.log10(wanted.square().sum() / error))


def warned(call: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(w.message) for w in caught if "Fallback" in w.category.__name__]


def step(function: Any, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = function(x, w)
    return y, *torch.autograd.grad(y, (x, w), dy)


def numbers() -> dict[str, Any]:
    """Forward and both gradients against the bf16 product, warnings, inference, and a leading batch dimension."""
    from tilewright_library import gemm_fp8_blockwise

    torch.manual_seed(0)
    x, w, dy = (torch.randn(*s, dtype=torch.bfloat16) for s in ((2, 64, 256), (128, 256), (2, 64, 128)))
    ours, messages = warned(lambda: step(gemm_fp8_blockwise, x, w, dy))
    again, more = warned(lambda: step(gemm_fp8_blockwise, x, w, dy))
    theirs = step(F.linear, x.float(), w.float(), dy.float())
    with torch.no_grad():
        inference, _ = warned(lambda: gemm_fp8_blockwise(x, w))
    frozen = x.detach().requires_grad_()
    (only,) = torch.autograd.grad(gemm_fp8_blockwise(frozen, w), (frozen,), dy)
    return {
        "snr": [snr(a, b) for a, b in zip(ours, theirs, strict=True)],
        "same": all(bool((a == b).all()) for a, b in zip(ours, again, strict=True)),
        "inference": snr(inference, theirs[0]),
        "shapes": [list(t.shape) for t in ours],
        "only_x": bool((only == ours[1]).all()),
        "warnings": messages,
        "later": more,
    }


def compiled() -> dict[str, Any]:
    """torch.compile without a graph break, forward and backward, equal to eager."""
    from tilewright_library import gemm_fp8_blockwise

    torch.manual_seed(1)
    x, w, dy = (torch.randn(*s, dtype=torch.bfloat16) for s in ((128, 128), (128, 128), (128, 128)))

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.silu(gemm_fp8_blockwise(x, w)) * 2

    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")
    eager, traced = step(layer, x, w, dy), step(fast, x, w, dy)
    odd, messages = warned(lambda: torch.compile(layer, fullgraph=True, backend="aot_eager")(x[:, :96], w[:, :96]))
    pair = torch.compile(
        lambda x, w: gemm_fp8_blockwise(x, w) + gemm_fp8_blockwise(x, torch.cat([w, w]))[:, 128:],
        fullgraph=True,
        backend="aot_eager_decomp_partition",
    )
    kept: list[torch.dtype] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.dtype) or t, lambda t: t):
        pair(x.detach().requires_grad_(), w.detach().requires_grad_())
    namespace = torch.ops.tilewright_library
    checks = torch.library.opcheck(
        namespace.linear_trained.default,
        (x.requires_grad_(), w.requires_grad_(), *namespace.quantised(x.detach())),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        raise_exception=False,
    )
    return {
        "equal": [snr(a, b) for a, b in zip(traced, eager, strict=True)],
        "odd": snr(odd, layer(x[:, :96], w[:, :96])),
        "odd_warnings": messages,
        "kept": kept.count(torch.uint8),
        "opcheck": {name: str(result) for name, result in checks.items()},
    }


def modules() -> dict[str, Any]:
    """What needs no device of ``Linear``: autocast, checkpointing, state dicts, kept weights."""
    from tilewright_library import convert, kept_weights
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(3)

    def mlp() -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.SiLU(), torch.nn.Linear(256, 128))

    plain, model = mlp(), convert(mlp())
    model.load_state_dict(plain.state_dict())
    back = mlp()
    back.load_state_dict(model.state_dict())
    x = torch.randn(128, 128)
    with torch.autocast("cpu", torch.bfloat16):
        wanted, found = plain(x), model(x)
        found.float().square().sum().backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        again = checkpoint(model, x, use_reentrant=False)
        again.float().square().sum().backward()
    gradients = [snr(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True)]
    half, batches = model.bfloat16(), [torch.randn(128, 128).bfloat16() for _ in range(2)]

    def accumulated() -> list[torch.Tensor]:
        half.zero_grad()
        for batch in batches:
            half(batch).float().square().mean().backward()
        return [p.grad.clone() for p in half.parameters()]

    without = accumulated()
    with kept_weights(half):
        kept = accumulated()

    return {
        "autocast": snr(found, wanted),
        "state": [bool(torch.equal(a, b)) for a, b in zip(back.parameters(), plain.parameters(), strict=True)],
        "keys": list(model.state_dict()) == list(plain.state_dict()),
        "checkpointed": bool(torch.equal(found, again)),
        "gradients": gradients,
        "kept": [snr(a, b) for a, b in zip(kept, without, strict=True)],
        "emptied": half[0]._kept is None,
    }


class Adapted(torch.nn.Module):
    """A layer with a low-rank adapter beside it."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = (torch.nn.Linear(a, b, bias=False) for a, b in ((128, 8), (8, 128)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x) + self.up(self.down(x))
        return result


def _model(kind: str) -> torch.nn.Module:
    """A model of 128 numbers in and out, with something that a conversion could lose."""
    from torch.nn.utils import parametrizations, prune

    body = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.SiLU(), torch.nn.Linear(128, 128))
    if kind == "shared layer":
        body[2] = body[0]
    elif kind == "tied weight":
        body[2].weight = body[0].weight
    elif kind == "adapter":
        return torch.nn.Sequential(Adapted(body[0]), body[2])
    elif kind == "hooks":
        body[0].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
        body[2].register_forward_hook(lambda module, given, found: found + 1)
    elif kind == "replaced forward":
        before = body[0].forward
        body[0].forward = lambda x: before(x) * 3
    elif kind == "weight norm":
        parametrizations.weight_norm(body[0])
    elif kind == "pruned":
        prune.l1_unstructured(body[0], "weight", 0.5)
    elif kind == "frozen":
        body[0].weight.requires_grad_(False)
    elif kind == "narrow":
        return torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.Linear(64, 192), torch.nn.Linear(192, 128))
    return body


def odd_models() -> dict[str, Any]:
    """By kind of model: answers and gradients against the model as it was, what is converted, what is said, state."""
    from tilewright_library import Linear, convert, gain_table
    from torch.nn.utils import prune

    found = {}
    kinds = (
        "shared layer",
        "tied weight",
        "adapter",
        "hooks",
        "replaced forward",
        "weight norm",
        "pruned",
        "frozen",
        "narrow",
        "pruned afterwards",
    )
    for kind in kinds:
        torch.manual_seed(4)
        plain = _model(kind).bfloat16()
        torch.manual_seed(4)
        model = _model(kind).bfloat16()
        before = list(model.modules())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            convert(model)
        if kind == "pruned afterwards":
            for one in (plain, model):
                prune.l1_unstructured(one[0], "weight", 0.5)
        x = torch.randn(128, 128).bfloat16()
        wanted, got = plain(x), model(x)
        for y in (wanted, got):
            y.float().square().sum().backward()
        table = gain_table(model)
        gradients = [(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True)]
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.zero_()
        plain.load_state_dict(model.state_dict())
        found[kind] = {
            "snr": snr(got, wanted),
            "gradients": [(a is None) == (b is None) for a, b in gradients],
            "gradient": min(snr(b, a) for a, b in gradients if a is not None),
            "converted": sum(isinstance(module, Linear) for module in model.modules()),
            "same": all(a is b for a, b in zip(before, model.modules(), strict=True)),
            "said": [str(w.message) for w in caught],
            "left": table.count("no multiple of 128"),
            "back": snr(plain(x), wanted),
        }
    return found


def fallbacks() -> dict[str, Any]:
    """Operands the recipe cannot take, and what it refuses."""
    from tilewright_library import gemm_fp8_blockwise

    x, w = torch.randn(5, 100, dtype=torch.bfloat16), torch.randn(7, 100, dtype=torch.bfloat16)
    odd, messages = warned(lambda: gemm_fp8_blockwise(x, w))
    _, again = warned(lambda: gemm_fp8_blockwise(x[:3], w))
    empty = gemm_fp8_blockwise(x[:0], w)
    refused = []
    for bad in ((x.float(), w), (x, w.float()), (x, w[:, :50]), (x, w[0])):
        try:
            gemm_fp8_blockwise(*bad)
        except (TypeError, ValueError) as error:
            refused.append(str(error))
    return {
        "equal": bool((odd == F.linear(x, w)).all()),
        "empty": list(empty.shape),
        "warnings": messages,
        "again": again,
        "refused": refused,
    }


def damaged() -> dict[str, Any]:
    """For each package of the library: numbers and warnings of an inference call."""
    found = {}
    folders = [f for f in Path(os.environ["PYTHONPATH"]).iterdir() if f.name != "tilewright_library"]
    for folder in sorted(folders):
        library = importlib.import_module(folder.name)
        if folder.name == "stale_toolchain":  # toolchains matter where kernels are compiled
            launch = importlib.import_module(f"{folder.name}.torch_launch")
            launch.device_key = lambda device: "cpu"
        torch.manual_seed(0)
        x, w = torch.randn(256, 256, dtype=torch.bfloat16), torch.randn(256, 256, dtype=torch.bfloat16)
        with torch.no_grad():
            y, messages = warned(lambda library=library, x=x, w=w: library.gemm_fp8_blockwise(x, w))
        found[folder.name] = {"snr": snr(y, x.double() @ w.double().t()), "warnings": messages}
    return found


def pages() -> dict[str, Any]:
    """The Python blocks of the documentation, each in a namespace of its own."""
    blocks = json.loads(os.environ["BLOCKS"])
    for block in blocks:
        exec(compile(block, "page", "exec"), {})
    return {"ran": len(blocks)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps({name: globals()[name]() for name in sys.argv[1:]}) + "\n")
