"""Wrappers whose winners are compared with them on odd calls, and the program that compares.

``python odd_calls.py FOLDER`` writes the winners' modules and prints a row for each function and call: what differs,
and whether the winner served it.
"""

import dataclasses
import json
import math
import sys
from pathlib import Path
from unittest import mock

import torch
import triton
import triton.language as tl

from testkit.odd_calls import AMBIENT, compared, odd_calls
from testkit.winners import triton_winner
from tilewright.workers.intake.calls.call_text import parse
from tilewright.workers.intake.child_program import loaded_module
from tilewright.workers.intake.winner_trial import _call_error
from tilewright.workers.runners.triton.interpreter_rounding import repair


@triton.jit
def rows_kernel(
    x, w, y, m, flags, cols, eps, R: tl.constexpr, R2: tl.constexpr, reduction: tl.constexpr, BLOCK: tl.constexpr
):
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
    scale_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), factor, BLOCK=256)
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
    return _scaled(x, x, factor).view_as(x)


def into(x, out, factor=3.0):
    assert x.shape == out.shape
    _scaled(x, out, factor)


@triton.jit
def halves_kernel(x, y, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    a = tl.load(x + row * 2 * n + at, mask=at < n, other=0.0)
    b = tl.load(x + row * 2 * n + n + at, mask=at < n, other=0.0)
    tl.store(y + row * n + at, a * b, mask=at < n)


def launch(out, x):
    """The width of what is written is that of the argument, which no other argument has."""
    assert out.shape[0] <= x.shape[0]
    halves_kernel[(out.shape[0],)](x, out, out.shape[1], BLOCK=triton.next_power_of_2(out.shape[1]))


def described(x, /, *others, names=("a", "b"), **options):
    y = torch.empty_like(x)
    return {"y": _scaled(x, y, 2.0 + len(others)), "rows": x.shape[0], "none": None, "kept": [x]}


def turned(self):
    y = torch.empty(self.shape, dtype=self.dtype, device=self.device)
    return _scaled(self, y, 2.0).t()


def summed(tensors, factor=2):
    return [_scaled(t, torch.empty_like(t), factor) for t in tensors]


@dataclasses.dataclass
class Factor:
    value: float
    of: str = "all"


def held(x, factor):
    y = _scaled(x, torch.empty_like(x), factor.value if factor.of == "all" else 1.0)
    return y, math.ceil(x.shape[0] / 4)


def branched(x):
    factor = 2.0 if x.shape[0] <= 16 else 3.0
    for _ in range(x.shape[1] // 32):
        factor += 1.0
    return _scaled(x, torch.empty_like(x), factor)


def guarded(x, chunk=2):
    if x.numel() % 3:
        raise RuntimeError("whole thirds")
    return _scaled(x, torch.empty(x.shape, dtype=torch.float32, device=x.device), chunk)


SIGN = 1.0


def signed(x):
    """It asks a value of its module and a switch of torch."""
    return _scaled(x, torch.empty_like(x), -SIGN if torch.are_deterministic_algorithms_enabled() else SIGN)


def careful(x):
    """It asks whether a gradient is needed, by no word of this file."""
    return _scaled(x, torch.empty_like(x), 2.0 if getattr(x, "requires" + "_grad") else 3.0)


AMBIENT["another sign"] = lambda: mock.patch.dict(globals(), SIGN=3.0)


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
    return (triton.cdiv(n, 256),)


class Product(torch.autograd.Function):
    """Its second output has no gradient."""

    @staticmethod
    def forward(ctx, a, b):
        assert a.shape == b.shape
        y, m = torch.empty_like(a), torch.empty(a.shape, dtype=torch.bool, device=a.device)
        product_kernel[_parts(a.numel())](a, b, y, m, a.numel(), BLOCK=256)
        ctx.mark_non_differentiable(m)
        ctx.save_for_backward(a, b)
        return y, m

    @staticmethod
    def backward(ctx, dy, _):
        a, b = ctx.saved_tensors
        a, b = a.view(a.shape).clone(), b.clone()  # a view is read, too
        product_back_kernel[_parts(a.numel())](dy.contiguous(), a, b, a.numel(), BLOCK=256)
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
        product_kernel[_parts(z.numel())](dz.contiguous(), z, dw, torch.empty_like(z), z.numel(), BLOCK=256)
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
        product_back_kernel[_parts(kept.numel())](dy.contiguous(), kept, torch.ones_like(kept), kept.numel(), BLOCK=256)
        return kept


class Reusing(torch.autograd.Function):
    """Its backward writes into the gradient that it is given, which its kernel takes as two arguments."""

    @staticmethod
    def forward(ctx, x):
        return _scaled(x, torch.empty_like(x), 2.0)

    @staticmethod
    def backward(ctx, dy):
        flat = dy.contiguous().view(-1)
        return _scaled(flat, flat, 2.0).view(*dy.shape)


class Consuming(torch.autograd.Function):
    """Its backward writes into the gradient that it is given, which its kernel takes as one argument."""

    @staticmethod
    def forward(ctx, x):
        return _scaled(x, torch.empty_like(x), 2.0)

    @staticmethod
    def backward(ctx, dy):
        dy, twice = dy.contiguous(), torch.full_like(dy, 2.0)
        product_back_kernel[_parts(dy.numel())](twice, twice, dy, dy.numel(), BLOCK=256)
        return dy


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
    "rows": "f32[8, 60], f32[60]",
    "scale_": "f32[24, 10]",
    "into": "f32[24, 10], f32[24, 10]",
    "launch": "f32[9, 30], f32[9, 60]",
    "described": "f32[24, 10], f32[8]",
    "turned": "f32[24, 10]",
    "summed": "[f32[12], f32[12, 3]]",
    "held": "f32[24, 10], odd_calls.Factor(2.0)",
    "signed": "f32[24, 10]",
    "careful": "f32[24, 10]",
    "branched": "f32[24, 40]",
    "guarded": "f32[24, 31]",
    "Doubled.apply": "f32[24, 10]",
    "Product.apply": "f32[24, 10], f32[24, 10]",
    "Twisted.apply": "f32[24, 10], f32[24]",
    "Lonely.apply": "f32[24, 10]",
    "Overwriting.apply": "f32[24, 10]",
    "Reusing.apply": "f32[24, 10]",
    "Consuming.apply": "f32[24, 10]",
}


def main(folder: Path) -> None:
    repair()
    facts, found = {}, []
    for name, call in CALLS.items():
        text, own_name, made, facts[name] = triton_winner(Path(__file__), name, call)
        path = folder / f"{own_name}.py"
        path.write_text(text)
        original = globals()[name.removesuffix(".apply")]
        original = original.apply if name.endswith(".apply") else original
        called = (parse(call), facts[name]["operands"], facts[name]["dims"], None, lambda served, of=original: of)
        module = loaded_module(path)
        facts[name]["why"] = _call_error(module, own_name, *called)
        cases = odd_calls(original, made)
        found += [[name, *row] for row in compared(module, own_name, original, cases)]
    sys.stdout.write(json.dumps([facts, found], default=repr))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
