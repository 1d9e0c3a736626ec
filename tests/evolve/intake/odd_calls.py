"""Wrappers whose winners are compared with them on odd calls, and the program that compares.

``python odd_calls.py make FOLDER`` writes the winners' modules, ``python odd_calls.py compare FOLDER`` prints a row for
each function and call: what differs, and whether the winner served it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl


@triton.jit
def rows_kernel(x, w, y, m, flags, cols, eps, R: tl.constexpr, R2: tl.constexpr, reduction: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=0.0).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(v * v) / cols + eps)
    if reduction == 3:
        r = r * R2 / R
    tl.store(y + row * cols + at, v * r * tl.load(w + at, mask=at < cols, other=0.0), mask=at < cols)
    tl.store(m + row, r)
    tl.store(flags + row, r > 0)


@triton.jit
def scale_kernel(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)


def _scaled(x, y, factor):
    scale_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), factor, BLOCK=64)
    return y


def rows(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6, *, mode="plain"):
    """Rows by their root mean square, and its inverse."""
    assert x.dim() == 2 and x.shape[1] == w.shape[0], "rows"
    if x.shape[1] > 80:
        raise ValueError("too long")
    R = 2
    y, m = torch.empty_like(x), torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    flags = torch.empty(x.shape[0], dtype=torch.bool, device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    rows_kernel[(x.shape[0],)](x, w, y, m, flags, x.shape[1], eps, R, R * 2, 3, block)
    torch._assert_async(flags.all())
    return y, m


def scale_(x, factor=2.0):
    return _scaled(x, x, factor)


def into(x, out, factor=3.0):
    _scaled(x, out, factor)


def described(x, /, *others, names=("a", "b"), **options):
    y = torch.empty_like(x)
    return {"y": _scaled(x, y, 2.0 + len(others)), "rows": x.shape[0], "none": None, "kept": [x]}


def turned(x):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _scaled(x, y, 2.0).t()


def summed(tensors, factor=2):
    return [_scaled(t, torch.empty_like(t), factor) for t in tensors]


def branched(x):
    factor = 2.0 if x.shape[0] <= 16 else 3.0
    for _ in range(x.shape[1] // 32):
        factor += 1.0
    return _scaled(x, torch.empty_like(x), factor)


def guarded(x, chunk=2):
    if x.numel() % 3:
        raise RuntimeError("whole thirds")
    return _scaled(x, torch.empty(x.shape, dtype=torch.float32, device=x.device), chunk)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.factor = factor
        return _scaled(x, torch.empty_like(x), factor)

    @staticmethod
    def backward(ctx, dy):
        return _scaled(dy.contiguous(), torch.empty_like(dy), ctx.factor), None


@triton.jit
def product_kernel(a, b, y, m, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left, right = tl.load(a + at, mask=at < n), tl.load(b + at, mask=at < n)
    tl.store(y + at, left * right, mask=at < n)
    tl.store(m + at, left > right, mask=at < n)


@triton.jit
def product_back_kernel(dy, a, b, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g, left = tl.load(dy + at, mask=at < n), tl.load(a + at, mask=at < n)
    right = tl.load(b + at, mask=at < n)
    tl.store(a + at, g * right, mask=at < n)
    tl.store(b + at, g * left, mask=at < n)


def _parts(n):
    return (triton.cdiv(n, 64),)


class Product(torch.autograd.Function):
    """Its second output has no gradient."""

    @staticmethod
    def forward(ctx, a, b):
        y, m = torch.empty_like(a), torch.empty(a.shape, dtype=torch.bool, device=a.device)
        product_kernel[_parts(a.numel())](a, b, y, m, a.numel(), BLOCK=64)
        ctx.mark_non_differentiable(m)
        ctx.save_for_backward(a, b)
        return y, m

    @staticmethod
    def backward(ctx, dy, _):
        a, b = ctx.saved_tensors
        a, b = a.clone(), b.clone()
        product_back_kernel[_parts(a.numel())](dy.contiguous(), a, b, a.numel(), BLOCK=64)
        return a, b


class Twisted(torch.autograd.Function):
    """Two outputs, one transposed, a saved output, and a ``setup_context``."""

    @staticmethod
    def forward(x, w, factor=2.0):
        y = _scaled(x, torch.empty_like(x), factor)
        return y.t(), _scaled(w, torch.empty_like(w), 3.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[1])
        ctx.factor = inputs[2] if len(inputs) > 2 else 2.0

    @staticmethod
    def backward(ctx, dy, dz):
        (z,) = ctx.saved_tensors
        if ctx.needs_input_grad[0] and dy.shape[0] > 16:
            dx = _scaled(dy.t().contiguous(), torch.empty(dy.shape[::-1], dtype=dy.dtype), ctx.factor)
        else:
            dx = torch.zeros(dy.shape[1], dy.shape[0])
        dw = torch.empty_like(z)
        product_kernel[_parts(z.numel())](dz.contiguous(), z, dw, torch.empty_like(z), z.numel(), BLOCK=64)
        return dx, dw, None


class Overwriting(torch.autograd.Function):
    """Its backward writes into what its forward kept."""

    @staticmethod
    def forward(ctx, x):
        kept = _scaled(x, torch.empty_like(x), 3.0)
        ctx.save_for_backward(kept)
        return _scaled(x, torch.empty_like(x), 2.0)

    @staticmethod
    def backward(ctx, dy):
        (kept,) = ctx.saved_tensors
        product_back_kernel[_parts(kept.numel())](
            dy.contiguous(), kept, torch.ones_like(kept), kept.numel(), BLOCK=64
        )
        return kept


class Lonely(torch.autograd.Function):
    """A gradient may be missing in its backward: no pair."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return _scaled(x, torch.empty_like(x), 2.0), _scaled(x, torch.empty_like(x), 3.0)

    @staticmethod
    def backward(ctx, dy, dz):
        return None if dy is None else _scaled(dy.contiguous(), torch.empty_like(dy), 2.0)


CALLS = {
    "rows": "f32[24, 60], f32[60]", "scale_": "f32[24, 30]", "into": "f32[24, 30], f32[24, 30]",
    "described": "f32[24, 30], f32[8]", "turned": "f32[24, 30]", "summed": "[f32[12], f32[12, 3]]",
    "branched": "f32[24, 40]", "guarded": "f32[24, 31]", "Doubled.apply": "f32[24, 30]",
    "Product.apply": "f32[24, 30], f32[24, 30]", "Twisted.apply": "f32[24, 30], f32[24]", "Lonely.apply": "f32[24, 30]",
    "Overwriting.apply": "f32[24, 30]",
}  # fmt: skip


def _odd(arguments):
    """Calls beside the recorded one, as (name, positional arguments, keywords)."""

    def each(change):
        return [[change(t) for t in a] if isinstance(a, list) else change(a) for a in arguments]

    first = [a[:7] if not isinstance(a, list) else [t[:7] for t in a] for a in arguments]
    yield "as recorded", each(torch.clone), {}
    yield "smaller", first, {}
    yield "other dtype", each(torch.Tensor.double), {}
    yield "half", each(torch.Tensor.half), {}
    yield "rank", each(lambda t: t[None]), {}
    yield "empty", each(lambda t: t[:0]), {}
    yield "larger", each(lambda t: torch.cat([t, t])), {}
    yield "with gaps", each(lambda t: torch.stack([t, t], -1)[..., 0]), {}
    yield "needs a gradient", each(lambda t: t.clone().requires_grad_()), {}
    yield "gradient of a view", each(lambda t: t.clone().requires_grad_().view(t.shape)), {}
    yield "other device", each(lambda t: t.to("meta")), {}
    yield "other option", each(torch.clone), {"factor": 5.0}
    yield "unknown option", each(torch.clone), {"nobody": 1}
    yield "too few", [], {}
    yield "no tensor", [None, *arguments[1:]], {}
    yield "parameter", each(lambda t: torch.nn.Parameter(t.clone(), requires_grad=False)), {}
    yield "one storage", [arguments[0]] * len(arguments), {}
    yield "one gradient", [t.clone().requires_grad_() if n == 0 and not isinstance(t, list) else t
                           for n, t in enumerate(arguments)], {}  # fmt: skip
    yield "a leaf", each(lambda t: t.clone().requires_grad_()), {"_backward": "twice"}
    yield "half in use", each(lambda t: t.clone().requires_grad_()), {"_backward": "last"}


def _outcome(function, arguments, keywords):
    """All that a caller can see of a call: what is returned, with gradients, and what became of the arguments."""
    leaves = [
        t for a in arguments for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor)
    ]
    way = keywords.pop("_backward", "once")
    try:
        returned = function(*arguments, **keywords)
        seen = _seen(returned)
        outs = [t for t in _tensors(returned) if t.requires_grad and t.device.type != "meta"]
        for turn in range(2 if way == "twice" else 1) if outs else ():
            used = outs[-1:] if way == "last" else outs
            loss = sum((n + 1) * (t.double() ** 2).sum() for n, t in enumerate(used))
            torch.autograd.backward(loss, retain_graph=turn == 0)
        grads = [None if not t.is_leaf or t.grad is None else t.grad.tolist() for t in leaves]
        same = [[t is leaf for leaf in leaves] for t in _tensors(returned)]
    except Exception as error:  # noqa: BLE001 - both sides must raise the same
        return [type(error).__name__, [] if isinstance(error, TypeError) else str(error).splitlines()[:1]]
    return [seen, grads, same, [_seen(t) for t in leaves]]


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [t for part in parts for t in _tensors(part)]


def _seen(value):
    if isinstance(value, torch.Tensor):
        plain = value.detach().double().flatten() if value.device.type != "meta" else torch.empty(0)
        said = [str(value.dtype), list(value.shape), value.stride(), value.requires_grad, str(value.device)]
        return [*said, [round(v, 4) for v in plain.tolist()]]
    if isinstance(value, dict):
        return {key: _seen(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(_seen, value)]
    return repr(value)


def make(folder: Path) -> None:
    from dataclasses import asdict

    from tilewright.evolve.intake import tune, winner
    from tilewright.evolve.intake.child import part_of
    from tilewright.fitness.targets import load_target
    from tilewright.workers.intake.calls.dimensions import argument_at
    from tilewright.workers.intake.judge.self_reference import SELF
    from tilewright.workers.intake.operator import operand_row
    from tilewright.workers.intake.triton import program

    part, facts = part_of(load_target("interpreter")), {}
    for name, call in CALLS.items():
        request = tune.Request(Path(__file__), name, SELF, (call,))
        asked = {"path": __file__, "function": name, "reference": SELF, "calls": [call], "part": part}
        try:
            site, text = program.recorded(asked)
            paired = site.pair is not None and not program.violations(text, __file__)
        except program.Unpaired:
            paired = False
        if name.endswith(".apply") and not paired:
            site, text = program.recorded(asked, paired=False)
        answer = {
            "operands": [operand_row(o) for o in site.operands], "wrapper": asdict(text.wrapper),
            "orders": [argument_at(site.calls[0], place).order for place in site.places],
        }  # fmt: skip
        defaults = {knob.name: knob.default for knob in text.knobs}
        module = winner.winner_module(text.with_space({}, {}), defaults, request, answer, "A winner.")
        (folder / f"{request.name}.py").write_text(module)
        facts[name] = {"knobs": sorted(defaults), "left_out": text.left_out, "pair": paired}
    sys.stdout.write(json.dumps(facts))


class Random:
    """``Random()[4, 8]`` is a tensor of that shape."""

    def __getitem__(self, shape):
        return torch.randn(shape)


def compare(folder: Path) -> None:
    from tilewright.evolve.intake.winner import loaded_module

    found = []
    for name, call in CALLS.items():
        original = globals()[name.removesuffix(".apply")]
        original = original.apply if name.endswith(".apply") else original
        path = folder / f"{name.lower().removesuffix('.apply').strip('_')}.py"
        module = loaded_module(path)
        gone = []
        vars(module)["tilewright_original"] = lambda served, original=original, gone=gone: (
            gone.append(1) or original
        )
        function = getattr(module, path.stem)
        torch.manual_seed(0)
        shapes = eval(call.replace("f32[", "random["), {"random": Random()})
        shapes = list(shapes) if isinstance(shapes, tuple) else [shapes]
        for number in range(len(list(_odd(shapes)))):
            gone.clear()
            sides = []
            # the last one finds what was decided of the call before
            for side in (original, function, function):
                torch.manual_seed(1)
                case, arguments, keywords = list(_odd([[t.clone() for t in a] if isinstance(a, list) else a.clone()
                                                       for a in shapes]))[number]  # fmt: skip
                sides.append(_outcome(side, arguments, keywords))
            alike = sides == sides[:1] * 3
            found.append([name, case, [] if alike else sides, not gone and len(sides[0]) > 2])
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
