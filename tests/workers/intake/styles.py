"""Functions in the styles of public code, one kind of difficulty each. Taken in by ``test_styles``, never imported."""

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _divided(x_ptr, y_ptr, n, share, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * share, mask=at < n)


def shared(x, labels):
    kept = labels != 3
    count = kept.sum().item()
    assert labels.max() < 100, "labels are below 100"
    y = torch.empty_like(x)
    _divided[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 1.0 / count, BLOCK=256)
    return y


def kept_rows(x, labels):
    count = labels.sum().item()
    y = torch.empty((count, x.shape[1]), device=x.device)
    _divided[(count,)](x, y, x.numel(), 1.0, BLOCK=256)
    return y


def first_rows(labels):
    y = torch.empty_like(labels)
    _divided[(triton.cdiv(y.numel(), 256),)](labels, y, y.numel(), 1.0, BLOCK=256)
    return y[: y[-1].item() + 1]


def plain_first_rows(labels):
    return labels[:2]


@triton.jit
def _biased(x_ptr, bias_ptr, y_ptr, n, LARGE: tl.constexpr, BLOCK: tl.constexpr = 512):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if LARGE:
        at = at.to(tl.int64)
    x = tl.load(x_ptr + at, mask=at < n)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + column, mask=at < n)  # noqa: F821 - as its authors left it
    if tl.constexpr(torch.version.hip is not None):
        x = tl.extra.hip.libdevice.log(x)
    tl.store(y_ptr + at, libdevice.pow(x, 3), mask=not ~(at < n) and at >= 0)


def cubed(x, bias=None):
    y = torch.empty_like(x)
    _biased[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, bias, y, x.numel(), LARGE=x.numel() > 2**31)
    return y


library = torch.library.Library("tilewright_styles", "FRAGMENT")


def _halved(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    _divided[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), 0.5, BLOCK=128)
    return y


library.define("halved(Tensor x) -> Tensor")
library.impl("halved", _halved, "CUDA")
torch._decomp.register_decomposition([torch.ops.tilewright_styles.halved])(_halved)


def halved(x):
    return torch.ops.tilewright_styles.halved(x)


@triton.jit
def _filled(x_ptr, slot_ptr, cache_ptr, cols, BLOCK: tl.constexpr):
    at, slot = tl.arange(0, BLOCK), tl.load(slot_ptr + tl.program_id(0))
    x = tl.load(x_ptr + tl.program_id(0) * cols + at, mask=at < cols)
    at, x = x, at
    x, place = x + 0, x
    tl.store(cache_ptr + slot * cols + place, at, mask=x < cols)


def filled(x, slots, cache):
    _filled[(x.shape[0],)](x, slots, cache, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))


def _ready(arguments):
    arguments["y_ptr"].zero_()


class _Kernels:
    SCALE = 3

    @staticmethod
    @triton.autotune(
        [triton.Config({"BLOCK": b}, num_warps=2, pre_hook=_ready) for b in (64, 128)],
        key=["n"],
        prune_configs_by={"early_config_prune": lambda configs, arguments, **more: configs[:1]},
        reset_to_zero=["y_ptr"],
    )
    @triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
    @triton.jit
    def _tripled(x_ptr, y_ptr, n, scale: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at) if EVEN else tl.load(x_ptr + at, mask=at < n)
        tl.atomic_add(y_ptr + at, x * scale, mask=at < n, sem="relaxed")

    @classmethod
    def tripled(cls, x):
        y = torch.zeros_like(x)
        cls._tripled[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), scale=cls.SCALE)
        return y


def tripled(x):
    return _Kernels.tripled(x)


def plain_shared(x, labels):
    return x / (labels != 3).sum()


def plain_cubed(x):
    return x**3


def plain_halved(x):
    return x / 2


def plain_kept_rows(x, labels):
    return x


def plain_filled(x, slots, cache):
    cache = cache.clone()
    cache[slots] = x
    return cache


def plain_tripled(x):
    return 3 * x


def maker(factor=2):
    """Makes the kernel and its wrapper, as code does that is imported where no Triton is."""

    @triton.jit
    def _scaled(x_ptr, y_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        bits = ~tl.zeros((BLOCK,), dtype=tl.uint32)
        x = tl.load(x_ptr + at, mask=at < n).to(tl.uint32, bitcast=True) & bits
        tl.store(y_ptr + at, x.to(tl.float32, bitcast=True) * FACTOR, mask=at < n)

    def scaled(x):
        y = torch.empty_like(x)
        _scaled[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), factor, BLOCK=256)
        return y

    return {"tripled": scaled}


def plain_maker(x):
    return 3 * x


@triton.jit
def _scaled_by(x_ptr, s_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * tl.load(s_ptr), mask=at < n)


def scaled_by(x, s):
    y = torch.empty_like(x)
    _scaled_by[(triton.cdiv(x.numel(), 256),)](x, s, y, x.numel(), BLOCK=256)
    return y


def plain_scaled_by(x, s):
    return x * s


def into(x, s, out):
    out.copy_(scaled_by(x, s).add_(1))
    x.copy_(x)


def plain_into(x, s, out):
    return x * s + 1


@triton.jit
def _lower(a_ptr, b_ptr, y_ptr, n, WIDTH: tl.constexpr, TILE: tl.constexpr):
    i, d = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, WIDTH)
    a = tl.load(a_ptr + i[:, None] * WIDTH + d[None, :])
    for first in range(0, (tl.program_id(0) + 1) * TILE, TILE):
        j = first + tl.arange(0, TILE)
        product = tl.dot(a, tl.load(b_ptr + j[None, :] * WIDTH + d[:, None]), input_precision="ieee")
        tl.store(y_ptr + i[:, None] * n + j[None, :], tl.where(j[None, :] <= i[:, None], product, 0.0))


def lower(a, b):
    y = torch.zeros((a.shape[0], b.shape[0]), device=a.device)
    _lower[(a.shape[0] // 16,)](a, b, y, b.shape[0], WIDTH=32, TILE=16)
    return y


def plain_lower(a, b):
    return torch.tril(a @ b.T)


@triton.jit
def _offsets(part, BLOCK: tl.constexpr):
    return part.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _in_parts(x_ptr, y_ptr, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 1, f"a block of {BLOCK}")
    for part in range(0, PARTS, 1, num_stages=3):
        at = part.to(tl.int64) * 0 + _offsets(part, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


def in_parts(x):
    """A loop's counter as a tensor; torch's largest along an axis, and its running sum, beside the kernel."""
    above = (x - x.max(dim=1, keepdim=True).values).cumsum_(0).clamp_(max=1e9)
    y = torch.empty_like(x)
    _in_parts[(1,)](above, y, x.numel(), triton.cdiv(x.numel(), 64), BLOCK=64)
    return y


def plain_in_parts(x):
    return 2 * (x - x.amax(1, keepdim=True)).cumsum(0)


def some_rows(x, rows):
    y, n = torch.empty((rows, x.shape[1]), device=x.device), rows * x.shape[1]
    block = 64 if x.shape[1] > 16 else 32
    _divided[(triton.cdiv(n, block),)](x, y, n, 2.0, BLOCK=block)
    return y


def plain_some_rows(x, rows):
    return 2 * x[:rows]


@triton.jit
def _magnitudes(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y_ptr + at // 2, tl.abs(tl.load(x_ptr + at, mask=at < n)), mask=at < n)


def magnitudes(x):
    y = torch.zeros((x.numel() // 2,), dtype=x.dtype, device=x.device)
    _magnitudes[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y


def plain_magnitudes(x):
    return x.abs().reshape(-1, 2).sum(1)


@triton.jit
def _ranked(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=1.0)
    tl.store(y_ptr + at, libdevice.add_rn(libdevice.ilogb(x).to(tl.float32), libdevice.mul_rn(x, 0.5)), mask=at < n)


def ranked(x):
    y = torch.empty_like(x)
    _ranked[(triton.cdiv(x.numel(), 256),)](torch.nn.functional.logsigmoid(x), y, x.numel(), BLOCK=256)
    return y


def plain_ranked(x):
    x = torch.nn.functional.logsigmoid(x)
    return torch.frexp(x)[1] - 1 + 0.5 * x


def _together(x, factor):
    if torch.ne(factor, torch.tensor(1.0, device=x.device)):
        x = x * factor
    wide, factor = torch.broadcast_tensors(torch.cat([x, x.clamp(min=0)], dim=1), factor)
    return torch.stack([wide, factor.masked_fill(wide > 0, 2.0)], -1)


@functools.cache
def _half(device, dtype):
    return torch.tensor([[0.25, 0.5]], dtype=dtype, device=device)[0, 1:]


@triton.jit
def _scaled(x_ptr, by_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * tl.load(by_ptr), mask=~(at >= n))


def together(x, factor):
    both = _together(x, factor)
    y = torch.empty_like(both)
    _scaled[(triton.cdiv(both.numel(), 256),)](both, _half("cuda", x.dtype), y, both.numel(), BLOCK=256)
    return y


def plain_together(x, factor):
    return 0.5 * _together(x, factor)


@triton.jit
def _moved(x_ptr, y_ptr, row, COLUMNS: tl.constexpr):
    at = tl.arange(0, COLUMNS)
    places = x_ptr + tl.program_id(0) * row + at
    doubled = tl.load(places) * 2
    places = y_ptr + tl.program_id(0) * COLUMNS + at
    tl.store(places, doubled)


def moved(x):
    y = x.new_empty(x.shape[0], 32)
    _moved[(x.shape[0],)](x, y, x.stride(0), 32)
    return y


def plain_moved(x):
    return x * 2


_ELU = tl.constexpr(
    ".reg .pred p; .reg .f32 t; setp.lt.f32 p, $1, 0.0; mul.f32 t, $1, 0f3FB8AA3B; ex2.approx.ftz.f32 t, t;"
    "@p sub.f32 $0, t, 1.; @!p mov.f32 $0, $1;"
)


@triton.jit
def _by_assembly(x_ptr, y_ptr, n, CLOCK: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    if CLOCK:
        x = tl.inline_asm_elementwise("mov.u32 $0, %clock;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    y = tl.inline_asm_elementwise(_ELU, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y_ptr + at, y, mask=at < n)


def by_assembly(x, clock=False):
    y = torch.empty_like(x)
    _by_assembly[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), CLOCK=clock, BLOCK=256)
    return y


def plain_by_assembly(x, clock=False):
    return torch.nn.functional.elu(x)


def clocked(x):
    return by_assembly(x, True)


plain_clocked = plain_by_assembly


@triton.jit
def _heads(q, k, o, T, group, D: tl.constexpr, BM: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    at = i[:, None] * D + tl.arange(0, D)[None, :]
    head, keep = tl.program_id(1), i[:, None] < T
    keys = tl.load(k + head // group * T * D + at, mask=keep, other=0.0)
    tl.store(o + head * T * D + at, tl.load(q + head * T * D + at, mask=keep, other=0.0) * keys, mask=keep)


def heads(q, k):
    assert q.shape[2] == 16
    o = torch.empty_like(q)
    _heads[(triton.cdiv(q.shape[1], 32), q.shape[0])](q, k, o, q.shape[1], q.shape[0] // k.shape[0], 16, BM=32)
    return o


def plain_heads(q, k):
    return q * k.repeat_interleave(q.shape[0] // k.shape[0], 0)[:, : q.shape[1]]


@triton.jit
def _scores(q, k, s, M, N, D: tl.constexpr, num_warps: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j, d = tl.program_id(1) * 16 + tl.arange(0, 16), tl.arange(0, D)
    left = tl.load(q + i[:, None] * D + d[None, :], mask=i[:, None] < M, other=0.0)
    right = tl.load(k + j[None, :] * D + d[:, None], mask=j[None, :] < N, other=0.0)
    tl.store(s + i[:, None] * N + j[None, :], tl.dot(left, right), mask=(i[:, None] < M) & (j[None, :] < N))


def scores(q, k):
    s = torch.empty((q.shape[0], k.shape[0]), device=q.device, dtype=torch.float32)
    _scores[(triton.cdiv(q.shape[0], 16), triton.cdiv(k.shape[0], 16))](
        q, k, s, *s.shape, triton.next_power_of_2(q.shape[1]), 8
    )
    return s


def plain_scores(q, k):
    return q @ k.T


@triton.jit
def _ended(q, k, lengths, s, D: tl.constexpr):
    i, d, part = tl.program_id(0) * 16 + tl.arange(0, 16), tl.arange(0, D), tl.program_id(1)
    left = tl.load(q + part * 32 * D + i[:, None] * D + d[None, :])
    for start in range(0, tl.load(lengths + part), 16):
        j = start + tl.arange(0, 16)
        right = tl.load(k + part * 64 * D + j[None, :] * D + d[:, None])
        kept = (j < tl.load(lengths + part))[None, :] & (i[:, None] < 32)
        tl.store(s + part * 32 * 64 + i[:, None] * 64 + j[None, :], tl.dot(left, right), mask=kept)


def ended(q, k, lengths):
    s = torch.zeros((q.shape[0], 32, 64), device=q.device, dtype=torch.float32)
    _ended[(2, q.shape[0])](q, k, lengths, s, 16)
    return s


def plain_ended(q, k, lengths):
    return (q @ k.transpose(1, 2)) * (torch.arange(64, device=q.device) < lengths[:, None])[:, None, :]
