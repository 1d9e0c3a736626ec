"""Run in a child process on a machine with a GPU, by the library's gpu tests; JSON on standard output.

The child sees the library and torch only. Each scenario is a process of its own where it says ``fresh``.
"""

import functools
import importlib
import json
import os
import random
import sys
import threading
import time
import warnings
from typing import Any

import torch
import torch.nn.functional as F

SHAPES = ((1024, 4096, 4096), (256, 512, 1024), (128, 2048, 512), (512, 384, 768), (384, 1024, 128), (1100, 512, 384))


def operands(m: int, n: int, k: int, device: str = "cuda", seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device).manual_seed(seed)
    shapes = ((m, k), (n, k), (m, n))
    return tuple(torch.randn(*s, dtype=torch.bfloat16, device=device, generator=generator) for s in shapes)


def db(got: torch.Tensor, wanted: torch.Tensor) -> float:
    wanted = wanted.double()
    error = (got.double() - wanted).square().sum().clamp_min(1e-300)
    return float(10 * torch.log10(wanted.square().sum() / error))


def step(function: Any, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = function(x, w)
    return y.detach(), *torch.autograd.grad(y, (x, w), dy)


def reference_step(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
    """The recipe in plain torch on this device, rows filled up with zeros to whole blocks."""
    from tilewright_library import torch_contract as c

    rows, short = x.shape[0], -x.shape[0] % 128
    x, dy = (F.pad(t, (0, 0, 0, short)) for t in (x, dy))

    def product(a: tuple[torch.Tensor, ...], b: torch.Tensor) -> torch.Tensor:
        return c.dequantise_rows(*a).double() @ b.double().t()

    xt, wt, dyt = (t.t().contiguous() for t in (x, w, dy))
    return [
        product(c.quantise_rows(x), c.dequantise_blocks(*c.quantise_blocks(w)))[:rows],
        product(c.quantise_rows(dy), c.dequantise_blocks(*c.quantise_blocks(wt)))[:rows],
        product(c.quantise_rows(dyt), c.dequantise_rows(*c.quantise_rows(xt))),
    ]


def first_backward() -> dict[str, Any]:
    """Fresh: the very first thing autograd's thread does is this library's backward, with dy given."""
    from tilewright_library import gemm_fp8_blockwise

    x, w, dy = operands(256, 512, 1024)
    x.requires_grad_(), w.requires_grad_()
    y = gemm_fp8_blockwise(x, w)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    torch.cuda.synchronize()
    wanted = reference_step(x.detach(), w.detach(), dy)
    return {"db": [db(a, b) for a, b in zip((y.detach(), dx, dw), wanted, strict=True)]}


def first_backward_through_modules() -> dict[str, Any]:
    """Fresh: as ``first_backward``, with every kernel launched by its module, as where no plan can be made."""
    from tilewright_library import torch_launch

    torch_launch.Launcher._plan = lambda *arguments: None
    return first_backward()


def numbers() -> dict[str, Any]:
    """Forward and gradients at several shapes against the recipe, and what serves them."""
    from tilewright_library import gemm_fp8_blockwise, torch_layer

    found = {}
    for shape in SHAPES:
        x, w, dy = operands(*shape)
        ours = step(gemm_fp8_blockwise, x, w, dy)
        with torch.no_grad():
            inferred = gemm_fp8_blockwise(x, w)
        wanted = reference_step(x, w, dy)
        found["x".join(map(str, shape))] = [
            *(db(a, b) for a, b in zip(ours, wanted, strict=True)),
            db(inferred, wanted[0]),
        ]
    kinds = {f"{key[0]} {key[1]}": served.kind for key, served in torch_layer.LAUNCHER._served.items()}
    return {"db": found, "kinds": kinds}


def without_triton() -> dict[str, Any]:
    """Fresh: promoted plans run where Triton cannot be imported."""
    sys.modules["triton"] = None  # type: ignore[assignment]
    from tilewright_library import gemm_fp8_blockwise, torch_layer

    x, w, dy = operands(2048, 4096, 4096)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = step(gemm_fp8_blockwise, x, w, dy)
    wanted = step(F.linear, x, w, dy)
    return {
        "db": [db(a, b) for a, b in zip(ours, wanted, strict=True)],
        "kinds": sorted({served.kind for served in torch_layer.LAUNCHER._served.values()}),
        "warnings": [str(c.message) for c in caught],
    }


def graphs() -> dict[str, Any]:
    """A captured step replays with other operands in the same places."""
    from tilewright_library import gemm_fp8_blockwise

    x, w, dy = operands(1024, 4096, 4096)
    x, w = x.requires_grad_(), w.requires_grad_()

    def once() -> tuple[torch.Tensor, ...]:
        y = gemm_fp8_blockwise(x, w)
        return y, *torch.autograd.grad(y, (x, w), dy)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = once()
    values = []
    for seed in (1, 2):
        fresh = operands(1024, 4096, 4096, seed=seed)
        with torch.no_grad():
            for place, value in zip((x, w, dy), fresh, strict=True):
                place.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        wanted = step(gemm_fp8_blockwise, *fresh)
        values.append(all(torch.equal(a, b) for a, b in zip(captured, wanted, strict=True)))
    return {"equal": values}


def compiled() -> dict[str, Any]:
    """torch.compile(fullgraph=True) with Inductor gives eager's bits, forward and backward."""
    from tilewright_library import gemm_fp8_blockwise

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return gemm_fp8_blockwise(x, w)

    x, w, dy = operands(1024, 4096, 4096)
    fast = step(torch.compile(layer, fullgraph=True), x, w, dy)
    slow = step(layer, x, w, dy)
    with torch.no_grad():
        pair = torch.compile(layer, dynamic=True)(x[:33], w), layer(x[:33], w)
    return {"equal": [torch.equal(a, b) for a, b in (*zip(fast, slow, strict=True), pair)]}


def modules() -> dict[str, Any]:
    """Linear under autocast, activation checkpointing, kept weights over micro-batches; state dicts."""
    from tilewright_library import Linear, convert, kept_weights
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.SiLU(), torch.nn.Linear(1024, 256)).cuda()
    copy = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.SiLU(), torch.nn.Linear(1024, 256)).cuda()
    copy.load_state_dict(plain.state_dict())
    model = convert(copy, only_faster=False)
    x = torch.randn(256, 512, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        wanted, found = plain(x), model(x)
        again = checkpoint(model, x, use_reentrant=False)
    again.float().square().sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    half = model.to(torch.bfloat16)
    xs = [torch.randn(256, 512, device="cuda", dtype=torch.bfloat16) for _ in range(3)]

    def accumulated() -> list[torch.Tensor]:
        half.zero_grad()
        for one in xs:
            half(one).float().square().mean().backward()
        return [p.grad.clone() for p in half.parameters()]

    without = accumulated()
    with kept_weights(half):
        kept = accumulated()
    return {
        "db": db(found, wanted),
        "checkpointed": torch.equal(found, again),
        "gradients": all(g is not None for g in grads),
        "kept": [torch.equal(a, b) for a, b in zip(without, kept, strict=True)],
        "linear": [type(layer) is Linear for layer in (model[0], model[2])],
        "emptied": half[0]._kept is None,
    }


def replaced() -> dict[str, Any]:
    """Layers that read one tensor in turn have the bits of each alone: rows missing, changed in place, captured."""
    return {"equal": [*_replaced(1024, 512), *_replaced(1100, 512)]}


def _replaced(m: int, k: int) -> list[bool]:
    from tilewright_library import gemm_fp8_blockwise
    from tilewright_library.torch_linear_replacement import LinearLayers

    sizes, equal = (256, 128, 512), []
    layers = LinearLayers([(m, n, k) for n in sizes])
    x = operands(m, 128, k)[0].requires_grad_()
    sides = [operands(m, n, k, seed=n)[1:] for n in sizes]

    def steps(multiply: Any) -> list[torch.Tensor]:
        found = []
        for w, dy in sides:
            w = w.detach().requires_grad_()
            y = multiply(x, w)
            found += [y, *torch.autograd.grad(y, (x, w), dy)]
        return found

    for _ in range(2):
        alone = steps(gemm_fp8_blockwise)
        layers.install()
        together = steps(F.linear)
        layers.uninstall()
        equal.append(all(torch.equal(a, b) for a, b in zip(alone, together, strict=True)))
        with torch.no_grad():
            x.mul_(1.5)
    equal.append(layers.calls == 6)
    layers.install()
    F.linear(x, sides[0][0])  # quantised before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = F.linear(x, sides[0][0])
    layers.uninstall()
    with torch.no_grad():
        x.mul_(0.5)
    graph.replay()
    equal.append(torch.equal(y, gemm_fp8_blockwise(x, sides[0][0])))
    return [*equal, *_kept(x.detach()[:16], sides[0][0].detach().clone())]


def _kept(x: torch.Tensor, w: torch.Tensor) -> list[bool]:
    """Layers whose weight is quantised once: a change of it is seen, and a captured graph has it as it was."""
    from tilewright_library.torch_linear_replacement import LinearLayers

    layers, near = LinearLayers([(len(x), *w.shape)], kept=True), []

    def asked(y: torch.Tensor, of: torch.Tensor) -> None:
        near.append(bool((y - x @ of.T).norm() < 0.1 * (x @ of.T).norm()))

    layers.install()
    for factor in (1.0, -3.0):
        w.mul_(factor)
        asked(F.linear(x, w), w)
    graph, before = torch.cuda.CUDAGraph(), w.clone()
    with torch.cuda.graph(graph):
        y = F.linear(x, w)
    w.fill_(0.5)
    graph.replay()
    asked(y, before)
    asked(F.linear(x, w), w)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for factor in (1.0, -3.0):
            w.mul_(factor)
            asked(F.linear(x, w), w)
    layers.uninstall()
    return [*near, layers.calls == 6]


def served() -> dict[str, Any]:
    """A layer that keeps its weight: any rows, leading dimensions, views, a changed weight, graphs, autocast."""
    from tilewright_library import Linear, kept_weights
    from tilewright_library import torch_contract as c

    layer = Linear(1024, 640, bias=False, device="cuda", dtype=torch.bfloat16)
    layer.only_faster = False

    def wanted(x: torch.Tensor) -> torch.Tensor:
        w_q, w_s = c.quantise_blocks(layer.weight.detach())
        (y,) = c.serving_linear({"x": x.reshape(-1, 1024), "w_q": w_q, "w_s": w_s})
        return y.view(*x.shape[:-1], 640)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    found: dict[str, list[float]] = {}
    with torch.no_grad(), kept_weights(layer):
        for m in (1, 33, 301):
            x = drawn(m, 1024)
            found[str(m)] = [db(layer(x), wanted(x)) for _ in range(3)]
        flat = drawn(6 * 1024 + 8)
        odd = (drawn(2, 3, 1024), drawn(1024, 6).t(), flat[1:-7].view(6, 1024))
        found["views"] = [db(layer(x), wanted(x)) for x in odd for _ in range(3)]
        with torch.autocast("cuda", torch.bfloat16):
            found["autocast"] = [db(layer(x.float()), wanted(x)) for x in odd]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(odd[0])
        odd[0].copy_(drawn(2, 3, 1024))
        graph.replay()
        found["graph"] = [db(y, wanted(odd[0]))]
        fresh = Linear.from_linear(layer, only_faster=False)
        fresh(odd[0])
        with kept_weights(fresh), torch.cuda.graph(torch.cuda.CUDAGraph()):
            fresh(odd[0])  # nothing that a replay alone makes is kept
            found["kept in no graph"] = [0.0 if fresh._kept.version == layer.weight._version else 1e3]
        layer.weight.mul_(2)
        found["changed"] = [db(layer(odd[0]), wanted(odd[0]))]
        with torch.enable_grad():
            found["gradient"] = [db(layer(x := drawn(128, 1024)).detach(), wanted(x))]
            found["gradient"].append(1e3 if layer(x).requires_grad else 0.0)
    return found


def storm() -> dict[str, Any]:
    """Calls from 8 threads on 4 streams, one the default: every result has the bits of the same call alone.

    With and without a gradient are calls apart: other kernels serve them, which add the steps of K in another order.
    """
    from tilewright_library import gemm_fp8_blockwise

    def inferred(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return (gemm_fp8_blockwise(x, w),)

    calls, threads = int(os.environ.get("CALLS", "10000")), 8
    ways = {"train": functools.partial(step, gemm_fp8_blockwise), "infer": inferred}
    cases = []
    for number, shape in enumerate(SHAPES[1:]):
        given = operands(*shape, seed=number)
        cases += [(f"{name} {shape}", way, given, way(*given)) for name, way in ways.items()]
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
    torch.cuda.synchronize()
    wrong, errors = [], []
    marks = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for number in range(calls // threads):
                name, way, given, wanted = cases[rng.randrange(len(cases))]
                with torch.cuda.stream(streams[rng.randrange(4)]):
                    if not all(torch.equal(a, b) for a, b in zip(way(*given), wanted, strict=True)):
                        wrong.append(f"{name}, call {number} of thread {seed}")
        except Exception as error:  # noqa: BLE001 - reported
            errors.append(repr(error)[:300])

    began = time.perf_counter()
    for turn in range(2):
        pool = [threading.Thread(target=work, args=(turn * threads + n,)) for n in range(threads)]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()
        torch.cuda.synchronize()
        held = []  # autograd's thread holds the gradients of its last call a moment after it has given them
        for _ in range(20):
            time.sleep(0.01)
            held.append(torch.cuda.memory_allocated())
        with open("/proc/self/statm", encoding="utf-8") as file:
            resident = int(file.read().split()[1]) * 4096
        marks.append((resident, min(held)))
    return {
        "wrong": wrong[:: len(wrong) // 8 + 1],
        "errors": errors[:3],
        "calls": 2 * (calls // threads) * threads,
        "seconds": time.perf_counter() - began,
        "growth_bytes": [b - a for a, b in zip(*marks, strict=True)],
    }


def loaded() -> dict[str, Any]:
    """Every promoted torch operator by ``load``, against its reference."""
    from tilewright_library import load, operators, torch_contract

    found = {}
    for name in sorted(set(operators()) & set(torch_contract.REFERENCES)):
        operand_shapes = load(name).operands
        dims = operand_shapes.named((256, 512, 1024) if len(operand_shapes.dimensions) == 3 else (256, 1024))
        inputs = []
        for operand in operand_shapes.inputs:
            sizes = operand.sizes(dims)
            if operand.dtype == "float32":
                inputs.append(torch.rand(sizes, device="cuda") * 0.01 + 0.001)
            else:
                inputs.append(torch.randn(sizes, device="cuda").to(getattr(torch, operand.dtype)))
        got = load(name)(*inputs)
        got = got if isinstance(got, tuple) else (got,)
        names = [operand.name for operand in operand_shapes.inputs]
        wanted = torch_contract.REFERENCES[name](dict(zip(names, inputs, strict=True)))
        found[name] = [min(db(a.float(), b.float()), 999.0) for a, b in zip(got, wanted, strict=True)]
    return found


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--package":
        sys.modules["tilewright_library"] = importlib.import_module(sys.argv[2])
        del sys.argv[1:3]
    sys.stdout.write(json.dumps({name: globals()[name]() for name in sys.argv[1:]}) + "\n")
