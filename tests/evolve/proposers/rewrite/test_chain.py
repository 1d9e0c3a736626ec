"""Two products of one loop in Gluon: every parameter keeps the meaning, planted faults are found, what is refused."""

import functools
import re

import pytest

from testkit.compile_ahead import compiled_ahead
from testkit.rewriting import Case, Trial, load_cases, rewritten, run_checks
from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported
from tilewright.evolve.proposers.rewrite.gluon.chain.write import LowerChain
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.dialect import check

pytest.importorskip("triton")

(CASE,) = load_cases(["triton/attention_causal.py"])


lowered = functools.partial(rewritten, LowerChain)


def changed(*pairs, source=CASE.source):
    for old, new in pairs:
        assert old in source, old
        source = source.replace(old, new)
    return source


def trial(name, source, **point):
    params = {k: CASE.params.get(k, v) for k, v in read_declarations(source).defaults.items()}
    return Trial(CASE.name, name, "", source, {**params, "columns": 64, "residents": 1, **point})


BOUND = "tl.minimum((start_m + 1) * BLOCK_M, N_K)"
KEEP = "(offs_m[:, None] >= start_n + offs_n[None, :]) & ((start_n + offs_n)[None, :] < N_K)"
BASES = "        k_ptrs += BLOCK_N * stride_kn\n        v_ptrs += BLOCK_N * stride_vn\n"
LOOP = CASE.source[CASE.source.index("    for start_n") : CASE.source.index("    acc = acc / l_i")]
LOAD_K, LOAD_V = (
    f"tl.load({n}_ptrs, mask=(start_n + offs_n)[{at}] < N_K, other=0.0)"
    for n, at in (("k", "None, :"), ("v", ":, None"))
)
LATE = "        acc += tl.dot(p.to(v.dtype), v)\n        m_i = m_ij\n"

WRITTEN = {
    "full": [(BOUND, "N_K"), (KEEP, "(start_n + offs_n)[None, :] < N_K")],
    "a window of keys": [
        ('float("-inf"))\n        m_ij', "-1.0e30)\n        m_ij"),
        ("range(0, tl", "range(tl.maximum(start_m * BLOCK_M - 48, 0) // BLOCK_N * BLOCK_N, tl"),
        (
            "offs_n = tl.arange(0, BLOCK_N)",
            "offs_n = tl.arange(0, BLOCK_N)\n    low = tl.maximum(start_m * BLOCK_M - 48, 0) // BLOCK_N * BLOCK_N",
        ),
        (BASES, ""),
        ("k_ptrs, mask", "k_ptrs + start_n * stride_kn, mask"),
        ("v_ptrs, mask", "v_ptrs + start_n * stride_vn, mask"),
        (
            "        qk = tl.where(keep",
            "        keep = keep & (offs_m[:, None] - start_n - offs_n[None, :] < 48)\n        qk = tl.where(keep",
        ),
    ],
    "a cap on scores, a bias of distance": [
        (
            "qk *= sm_scale",
            "qk = 20.0 * (1.0 - 2.0 / (1.0 + tl.exp(qk * (sm_scale * 0.1))))\n        qk += (start_n + offs_n[None, :] - offs_m[:, None]).to(tl.float32) * 0.01",  # noqa: E501
        )
    ],
    "sums added in one expression, weights as a sum": [
        ("acc = acc * tl.exp(m_i - m_ij)[:, None]\n        l_i", "l_i"),
        (LATE, "        acc = tl.dot(p.to(v.dtype), v) + acc * tl.exp(m_i - m_ij)[:, None]\n        m_i = m_ij\n"),
    ],
    "scores masked by a number, in base two": [
        ('qk = tl.where(keep, qk, float("-inf"))', "qk = qk * 1.4426950408889634 + tl.where(keep, 0, -1.0e6)"),
        ("tl.exp(", "tl.exp2("),
    ],
    "no weights, as of linear attention": [
        ("m_ij = tl.maximum(m_i, tl.max(qk, 1))", "m_ij = m_i"),
        ('tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")', "tl.zeros([BLOCK_M], dtype=tl.float32)"),
        ('float("-inf"))', "0.0)"),
        ("p = tl.exp(qk - m_ij[:, None])", "p = qk"),
    ],
    "scores that are copied, bound anew and read a step later": [
        ("qk *= sm_scale\n", "qk *= sm_scale\n        raw = qk\n        qk = raw + 0.25 * old\n"),
        ("        k = tl.load", "        old = last * 1.0\n        k = tl.load"),
        ("    for start_n", "    last = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)\n    for start_n"),
        ("        m_i = m_ij\n", "        last = raw\n        m_i = m_ij\n"),
    ],
    "scores of which a rounding is more than an exponent": [("q.shape[2] ** -0.5", "q.shape[2] ** -0.5 * 1.7e17")],
    "a row's largest score that is read behind the loop": [
        ("acc = acc / l_i[:, None]", "acc = acc / l_i[:, None] + 0.1 * (m_i + tl.log(l_i))[:, None]")
    ],
    "offsets computed anew behind the loop": [
        (
            "    acc = acc / l_i",
            "    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)\n    offs_d = tl.arange(0, HEAD)\n    acc = acc / l_i",  # noqa: E501
        )
    ],
    "programs numbered along one axis, rows first": [
        (
            "start_m = tl.program_id(0)",
            "pid = tl.program_id(0)\n    count = tl.cdiv(N_Q, BLOCK_M)\n    start_m = pid % count",
        ),
        ("head = tl.program_id(1)", "head = pid // count"),
        ('params["BLOCK_M"]), q.shape[1])', 'params["BLOCK_M"]) * q.shape[1],)'),
    ],
    "programs numbered along one axis, heads first": [
        ("start_m = tl.program_id(0)", "start_m = tl.program_id(0) // heads"),
        ("head = tl.program_id(1)", "head = tl.program_id(0) % heads"),
        ("shared, N_Q", "heads, shared, N_Q"),
        ("q.shape[1] // key_heads, q.shape[0]", "q.shape[1], q.shape[1] // key_heads, q.shape[0]"),
        ('params["BLOCK_M"]), q.shape[1])', 'params["BLOCK_M"]) * q.shape[1],)'),
    ],
    "rows that are below their largest": [
        ("m_ij = tl.maximum(m_i, tl.max(qk, 1))", "m_ij = tl.maximum(m_i, tl.max(qk, 1) - 3.0)")
    ],
    "a factor below zero, which no row's largest score outlives": [("q.shape[2] ** -0.5", "-(q.shape[2] ** -0.5)")],
    "keys and values behind block pointers that a loop advances": [
        (
            "    m_i = tl.zeros",
            "    kb = tl.make_block_ptr(K + (head // shared) * stride_kh, (HEAD, N_K), (1, stride_kn), (0, 0), (HEAD, BLOCK_N), (0, 1))\n    vb = tl.make_block_ptr(V + (head // shared) * stride_vh, (N_K, HEAD), (stride_vn, 1), (0, 0), (BLOCK_N, HEAD), (1, 0))\n    m_i = tl.zeros",  # noqa: E501
        ),
        (LOAD_K, "tl.load(kb, boundary_check=(1,), padding_option='zero')"),
        (LOAD_V, "tl.load(vb, boundary_check=(0,), padding_option='zero')"),
        (BASES, "        kb = tl.advance(kb, (0, BLOCK_N))\n        vb = tl.advance(vb, (BLOCK_N, 0))\n"),
    ],
    "keys and values behind descriptors, the first transposed": [
        (
            "    m_i = tl.zeros",
            "    kd = tl.make_tensor_descriptor(K + (head // shared) * stride_kh, [N_K, HEAD], [stride_kn, 1], [BLOCK_N, HEAD])\n    vd = tl.make_tensor_descriptor(V + (head // shared) * stride_vh, [N_K, HEAD], [stride_vn, 1], [BLOCK_N, HEAD])\n    m_i = tl.zeros",  # noqa: E501
        ),
        (LOAD_K, "kd.load([start_n, 0]).T"),
        (LOAD_V, "vd.load([start_n, 0])"),
        (BASES, ""),
    ],
    "a factor that is a product, in base two": [("qk *= sm_scale", "qk *= sm_scale * 1.5"), ("tl.exp(", "tl.exp2(")],
    "a left operand that is scaled before the loop": [
        ("qk *= sm_scale\n", "qk *= 1.0\n"),
        ("    for start_n", "    scaled = (q * (sm_scale * 1.5)).to(tl.float16)\n    for start_n"),
        ("tl.dot(q, k)", "tl.dot(scaled, k)"),
    ],
    "a program's numbers and weights by helpers": [
        ("start_m = tl.program_id(0)", "part, start_m = parted(tl.cdiv(HEAD, HEAD))\n    one: tl.constexpr = 1.0"),
        (
            "@triton.jit\n",
            "@triton.jit\ndef parted(X: tl.constexpr, Y: tl.constexpr = None):\n    pid = tl.program_id(0).to(tl.int64)\n    if Y is None:\n        return pid % X, pid // X\n    else:\n        return pid % X, pid // X % Y\n\n\n@triton.jit\ndef weight(x):\n    return tl.exp(x.to(tl.float32))\n\n\n@triton.jit\n",  # noqa: E501
        ),
        ("m_ij = tl.maximum(m_i, tl.max(qk, 1))", "last = m_i\n        m_i = tl.maximum(m_i, tl.max(qk, 1))"),
        ("tl.exp(m_i - m_ij)", "weight(last - m_i)"),
        ("tl.exp(qk - m_ij[:, None])", "weight(qk - m_i[:, None]) * one"),
        ("        m_i = m_ij\n", ""),
        ("head * stride_oh", "(part + head) * stride_oh"),
    ],
    "heads in two dimensions, a row beside a tile, scores that are cast": [
        ('inputs["q"], inputs["k"]', 'inputs["q"].reshape(136, 2, 2, 64), inputs["k"]'),
        ("q.stride(1)", "q.stride(2)"),
        ("out.stride(1), ", "out.stride(2), "),
        ("q.shape[2]", "q.shape[3]"),
        ("        v = tl.load", "        vs = tl.load"),
        ("tl.dot(p.to(v.dtype), v)", "tl.dot(p.to(vs.dtype), v)"),
        ("        acc += tl", "        vt = tl.trans(vs)\n        v = tl.trans(vt)\n        acc += tl"),
        ("q.shape[1]", "4"),
        ("stride_qm + offs_d[None, :]", "stride_qm + offs_d"),
        ("qk += tl.dot(q, k)", "qk = tl.dot(q, k).to(tl.float32)"),
    ],
    "columns' numbers that the loop advances, in the mask": [
        ("    for start_n", "    cols = tl.arange(0, BLOCK_N)\n    for start_n"),
        (KEEP, "(offs_m[:, None] >= cols[None, :]) & (cols[None, :] < N_K)"),
        (BASES, BASES + "        cols += BLOCK_N\n"),
    ],
    "a helper that holds the loop, called twice": [
        (
            LOOP,
            "".join(
                f"    acc, l_i, m_i = walk(acc, l_i, m_i, q, k_ptrs, v_ptrs, offs_m, offs_n, sm_scale, {low}, {high}, stride_kn, stride_vn, N_K, BLOCK_M, BLOCK_N, {stage})\n"  # noqa: E501
                for low, high, stage in (
                    ("0", "start_m * BLOCK_M // BLOCK_N * BLOCK_N", "4 - 3"),
                    ("start_m * BLOCK_M // BLOCK_N * BLOCK_N", BOUND, "2"),
                )
            ),
        ),
        (
            "@triton.jit\n",
            "@triton.jit\ndef walk(acc, l_i, m_i, q, k_ptrs, v_ptrs, offs_m, offs_n, sm_scale, lo, hi, stride_kn, stride_vn, N_K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr):\n"  # noqa: E501
            + LOOP.replace(BASES, "")
            .replace(f"range(0, {BOUND}", "range(lo, hi")
            .replace("k_ptrs, mask", "k_ptrs + start_n * stride_kn, mask")
            .replace("v_ptrs, mask", "v_ptrs + start_n * stride_vn, mask")
            .replace(
                f"keep = {KEEP}",
                "keep = (start_n + offs_n)[None, :] < N_K\n        if STAGE == 2:\n            keep = keep & (offs_m[:, None] >= start_n + offs_n[None, :])",  # noqa: E501
            )
            + "    return acc, l_i, m_i\n\n\n@triton.jit\n",
        ),
    ],
}
"""The kernel as others write it."""

POINTS = [
    {"consumers": 1, "stages": 3, "laps": 4, "residents": 2},
    {"consumers": 3, "columns": 32},
    {"overlap": False},
    {"rows": 128, "columns": 128, "stages": 1, "consumers": 1},
]


QUICK = (
    "full",
    "a program's numbers and weights by helpers",
    "columns' numbers that the loop advances, in the mask",
    "a helper that holds the loop, called twice",
)


@pytest.mark.parametrize(
    ("points", "written"), [(POINTS[:1], QUICK), pytest.param(POINTS, WRITTEN, marks=pytest.mark.slow)]
)
def test_every_parameter_and_way_of_writing_keeps_the_meaning(points, written):
    source = lowered(CASE.source)
    assert check(source, entry="launch") == []
    assert "whole = min(whole, max(1 + BLOCK_M * program_0" in source, "tiles below the diagonal are masked"
    assert "exp2((m_i_unscaled - m_ij_unscaled) * (sm_scale *" in source
    assert "tma.async_copy_shared_to_global(o_desc" in source
    cases, trials = [CASE], [trial(str(point), source, **point) for point in points]
    for name in written:
        parent = changed(*WRITTEN[name])
        child = trial(name, lowered(parent))
        assert check(child.source, entry="launch") == [], name
        child.kernel = f"triton/{name}"
        cases.append(Case(child.kernel, parent, CASE.params, CASE.inputs))
        trials.append(child)
    # scores of 2 ** 17 that differ by ones: a bound that is off by its roundings is off by a weight's tenth
    near = [[*entry[:3], entry[3] if entry[0] == "v" else f"leading:{2**10}"] for entry in CASE.inputs]
    cases.append(Case("triton/scores far from zero", CASE.source, CASE.params, near))
    trials.append(trial("scores far from zero", source, columns=32))
    trials[-1].kernel = cases[-1].name
    one = [[n, [size[0], 1, size[2]] if n in "kv" else size, *rest] for n, size, *rest in CASE.inputs]
    strides = ("k.stride(1)", "k.shape[0] * 0 + k.shape[2]"), ("k.stride(0)", "k.shape[1] * k.shape[2]")
    for name, parent in (("one head of keys", CASE.source), ("one head, strides as products", changed(*strides))):
        cases.append(Case(f"triton/{name}", parent, CASE.params, one))
        trials.append(trial(name, lowered(parent)))
        trials[-1].kernel = cases[-1].name
    run_checks(cases, trials)
    assert [(t.rule, t.reason) for t in trials if not t.ok] == []


PACKED = changed(
    (
        "head = tl.program_id(1)\n",
        "head = tl.program_id(1)\n    seq = tl.program_id(2)\n    begin = tl.load(Cu + seq)\n    size = tl.load(Cu + seq + 1) - begin\n    if start_m * BLOCK_M >= size:\n        return\n",  # noqa: E501
    ),
    ("N_Q, N_K, BLOCK_M", "Cu, BLOCK_M"),
    ("q.shape[0], keys,", 'inputs["cu"],'),
    ("N_K", "size"),
    ("N_Q", "size"),
    ("offs_m[:, None] * stride", "(begin + offs_m)[:, None] * stride"),
    ("offs_n[None, :] * s", "(begin + offs_n)[None, :] * s"),
    ("offs_n[:, None] * s", "(begin + offs_n)[:, None] * s"),
    ("empty_like", "zeros_like"),
    (
        'triton.cdiv(q.shape[0], params["BLOCK_M"]), q.shape[1])',
        '(q.shape[0] + 63) >> 6, q.shape[1], inputs["cu"].shape[0] - 1)',
    ),
)
"""Sequences one behind the other, their beginnings on the device."""
BEHIND = [[*e[:3], "nan-from:120"] for e in CASE.inputs] + [["cu", [4], "int32", "values:0,70,75,120"]]
SEQUENCES = Case("triton/sequences", PACKED, CASE.params, BEHIND)


def packed(name, source, **point):
    made = trial(name, source, **point)
    made.kernel = SEQUENCES.name
    return made


def test_sequences_end_where_the_device_says():
    cut = lowered(PACKED)
    trials = [packed(str(point), cut, **point) for point in ({}, {"consumers": 3, "columns": 32}, {"overlap": False})]
    run_checks([SEQUENCES], trials)
    assert check(cut, entry="launch") == [] and [(t.rule, t.reason) for t in trials if not t.ok] == []


def put(source, line, new):
    """``new`` in front of every such line."""
    return re.sub(rf"(?m)^( *){re.escape(line)}$", lambda found: f"{found[1]}{new}\n{found[0]}", source)


def without(line, source):
    return source.replace(line, "pass")


GIVEN_BACK = "mbarrier.arrive(v_empty.index(held), count=1)"
RELEASE = "mbarrier.arrive(q_empty.index(GROUP), count=1)"
UNWRITTEN = "a product by .* that (a copy .* may still write|nothing has written)"
READ, WRITTEN_TO = "over shared memory that a product may still read", "that a copy .* may still write"


def faults_of_scores():
    """Sources with a planted fault by its name, and what is said of it."""
    right, cut = lowered(CASE.source), lowered(PACKED)
    alone = right.replace("min(tiles * others, 132 * several)", "1")  # one program for all tiles
    return {
        "a stage is read before its copy has landed": (
            without("mbarrier.wait(k_ready.index(stage), phase)", right),
            f"{UNWRITTEN}|deadlock|arrivals",
        ),
        "values are read before their copy has landed": (
            without("mbarrier.wait(v_ready.index(held), held_phase)", right),
            UNWRITTEN,
        ),
        "a stage is overwritten while products read it": (
            without("mbarrier.wait(v_empty.index(stage), phase)", right),
            "over shared memory that a (product|copy .*may still (read|write))|arrivals",
        ),
        "values are given back while the second product still reads them": (
            put(right.replace(f"{GIVEN_BACK}\n{' ' * 28}operand =", "operand ="), "qk = partial", GIVEN_BACK),
            READ,
        ),
        "scores are used before their product is waited for": (
            right.replace("num_outstanding=1, deps=(partial,)", "num_outstanding=2, deps=(partial,)"),
            "used before it is waited for",
        ),
        "the left operand is overwritten for the next tile": (
            without("mbarrier.wait(q_empty.index(each), q_phase)", alone),
            f"{READ}|arrivals|by a copy|{WRITTEN_TO}",
        ),
        "the left operand is given back before the last product that reads it": (
            put(without(RELEASE, alone), "start_n_first = own_first", RELEASE),
            f"{READ}|{WRITTEN_TO}",
        ),
        "the left operand is given back while its last product runs": (
            put(
                alone.replace("if turn == own - 1:", "if turn == own + 9:"),
                "partial = warpgroup_mma_wait(num_outstanding=1, deps=(partial,))",
                f"if turn == own - 1: {RELEASE}",
            ),
            f"{READ}|{WRITTEN_TO}",
        ),
        "sums overwrite those that are still being stored": (
            without("tma.store_wait(0)", alone),
            "over shared memory that a copy .*may still read",
        ),
        "a sequence's last values are cleared while they land": (
            without("mbarrier.wait(v_ready.index(STAGES), v_landed)", cut),
            WRITTEN_TO,
        ),
        "products read what is cleared before they may": (
            re.sub(r"fence_async_shared\(\)(?=\n *mbarrier.arrive)", "pass", cut),
            "without fen",
        ),
        "values of another sequence are multiplied by zero": (
            cut.replace("v_bar = gl.where(v_rows", "v_bar = gl.where(512 + v_rows"),
            "dB",
        ),
        "answers are stored over those of another sequence": (re.sub("if .* >= BLOCK_M:", "if True:", cut), "dB"),
        "sums are stored before the copy engine sees them": (
            re.sub(r"fence_async_shared\(\)(?=\n *tma)", "pass", right),
            "wrote, without fen",
        ),
    }


GRADIENTS = """
import torch
import triton
import triton.language as tl

SPACE = {"BM": (32, 64), "BN": (64,)}
DEFAULTS = {"BM": 64, "BN": 64}
CONSTRAINTS = {}


@triton.jit
def of_keys(q, k, v, g, lse, delta, dk, dv, T, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    base = tl.program_id(1) * T * D
    d = tl.arange(0, D)
    kt = tl.load(k + base + j[:, None] * D + d[None, :], mask=j[:, None] < T, other=0.0)
    vt = tl.load(v + base + j[:, None] * D + d[None, :], mask=j[:, None] < T, other=0.0)
    gk = tl.zeros((BN, D), tl.float32)
    gv = tl.zeros((BN, D), tl.float32)
    for i0 in range(tl.program_id(0) * BN // BM * BM, T, BM):
        i = i0 + tl.arange(0, BM)
        qt = tl.load(q + base + i[:, None] * D + d[None, :], mask=i[:, None] < T, other=0.0)
        gt = tl.load(g + base + i[:, None] * D + d[None, :], mask=i[:, None] < T, other=0.0)
        m = tl.load(lse + tl.program_id(1) * T + i, mask=i < T, other=0.0)
        s = tl.dot(qt, tl.trans(kt)) * scale
        p = tl.exp(s - m[:, None])
        p = tl.where((j[None, :] <= i[:, None]) & (i[:, None] < T), p, 0.0)
        gv += tl.dot(tl.trans(p.to(q.dtype.element_ty)), gt)
        dp = tl.dot(gt, tl.trans(vt))
        dl = tl.load(delta + tl.program_id(1) * T + i, mask=i < T, other=0.0)
        ds = p * (dp - dl[:, None])
        gk += tl.dot(tl.trans(ds.to(q.dtype.element_ty)), qt)
    tl.store(dk + base + j[:, None] * D + d[None, :], gk * scale, mask=j[:, None] < T)
    tl.store(dv + base + j[:, None] * D + d[None, :], gv, mask=j[:, None] < T)


@triton.jit
def of_queries(q, k, v, g, lse, delta, dq, T, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    base = tl.program_id(1) * T * D
    d = tl.arange(0, D)
    qt = tl.load(q + base + i[:, None] * D + d[None, :], mask=i[:, None] < T, other=0.0)
    gt = tl.load(g + base + i[:, None] * D + d[None, :], mask=i[:, None] < T, other=0.0)
    m = tl.load(lse + tl.program_id(1) * T + i, mask=i < T, other=0.0)
    dl = tl.load(delta + tl.program_id(1) * T + i, mask=i < T, other=0.0)
    gq = tl.zeros((BM, D), tl.float32)
    for j0 in range(0, (tl.program_id(0) + 1) * BM, BN):
        j = j0 + tl.arange(0, BN)
        kt = tl.load(k + base + j[None, :] * D + d[:, None], mask=j[None, :] < T, other=0.0)
        vt = tl.load(v + base + j[None, :] * D + d[:, None], mask=j[None, :] < T, other=0.0)
        p = tl.exp(tl.dot(qt, kt) * scale - m[:, None])
        p = tl.where((j[None, :] <= i[:, None]) & (j[None, :] < T), p, 0.0)
        ds = p * (tl.dot(gt, vt) - dl[:, None])
        gq = tl.dot(ds.to(q.dtype.element_ty), tl.trans(kt), gq)
    tl.store(dq + base + i[:, None] * D + d[None, :], gq * scale, mask=i[:, None] < T)


def launch(inputs, params):
    q, k, v, g, lse, delta = (inputs[n] for n in ("q", "k", "v", "g", "lse", "delta"))
    h, t, d = q.shape
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    of_keys[triton.cdiv(t, params["BN"]), h](q, k, v, g, lse, delta, dk, dv, t, 0.1, d, params["BM"], params["BN"])
    of_queries[triton.cdiv(t, params["BN"]), h](q, k, v, g, lse, delta, dq, t, 0.1, d, params["BN"], params["BN"])
    return dq, dk, dv
"""
INPUTS = ("q", "k", "v", "g", "lse", "delta")
BACKWARD = Case(
    "triton/gradients",
    GRADIENTS,
    dict(read_declarations(GRADIENTS).defaults),
    [[n, [2, 200, 64] if len(n) == 1 else [2, 200], "float16" if len(n) == 1 else "float32", "normal"] for n in INPUTS],
)


@functools.cache
def all_lowered(source):
    """A source of several loops: one rewrite lowers them all, also of a reading that was lowered before."""
    kernel = KernelSource(source)
    first, _ = [LowerChain().apply(kernel, site, None) for site in LowerChain().sites(kernel)]
    return first.source


def gradient(name, source, **point):
    return Trial(BACKWARD.name, name, "", source, {**read_declarations(source).defaults, **point})


def test_gradients_of_attention_keep_their_meaning():
    """As most write it; the other way, in two loops; with a transposed tile under a name of its own."""
    begin, end = GRADIENTS.index("    for i0"), GRADIENTS.index("    tl.store(dk")
    part = GRADIENTS[begin:end].replace("tl.dot(qt, tl.trans(kt))", "tl.dot(kt, tl.trans(qt))")
    part = part.replace("tl.dot(gt, tl.trans(vt))", "tl.dot(vt, tl.trans(gt))").replace(
        "j[None, :] <=", "j[:, None] <="
    )
    part = re.sub(r"(- m|- dl|<= i|\(i)\[:, None\]", r"\1[None, :]", part)
    part = re.sub(r"tl\.trans\(((?:p|ds)\.to\([\w.]*\))\)", r"\1", part)
    low, high = "tl.program_id(0) * BN // BM * BM", "(tl.program_id(0) + 1) * BN"
    whole = part.replace(low, high).replace("(j[:, None] <= i[None, :]) & (i[None, :] < T)", "i[None, :] < T")
    own = "gv += tl.dot(tl.trans(p.to(q.dtype.element_ty)), gt)"
    masked = part.replace(", T, BM", f", tl.minimum({high}, T), BM")
    written = {
        "the other way": GRADIENTS[:begin] + masked + whole + GRADIENTS[end:],
        "named": GRADIENTS.replace(own, "pt = tl.trans(p).to(gt.dtype)\n        gv += tl.dot(pt, gt)"),
    }
    points = ({"consumers": 3, "columns": 32}, {"laps": 2, "stages_2": 3})
    back = all_lowered(GRADIENTS)
    cases, trials = [BACKWARD], [gradient(str(p), back, **p) for p in points]
    for name, parent in written.items():
        cases.append(Case(f"triton/{name}", parent, BACKWARD.params, BACKWARD.inputs))
        trials.append(gradient(name, all_lowered(parent)))
        trials[-1].kernel = cases[-1].name
    run_checks(cases, trials)
    assert "(t) % 4 == 0" in back  # else numbers of rows begin where no copy may
    assert check(back, entry="launch") == [] and back.count("gl.warp_specialize") == 6
    assert [(t.rule, t.reason) for t in trials if not t.ok] == []


def faults_of_gradients():
    """The same of the gradients."""
    back = all_lowered(GRADIENTS)
    one = re.sub(r"min\((tiles\w*) \* others\w*, 132 \* several\w*\)", "1", back)
    return {
        "a tile is given back while its sums still read it": (
            back.replace("num_outstanding=0, deps=(gv, gk", "num_outstanding=1, deps=(gv, gk"),
            f"{READ}|before it is waited for",
        ),
        "rows are read before their copy has landed": (
            without("mbarrier.wait(v_ready.index(stage), phase)", back),
            f"{UNWRITTEN}|deadlock|arrivals",
        ),
        "numbers of rows are those of another step": (
            back.replace("numbers_1.index(stage).load", "numbers_1.index((stage + 1) % STAGES).load"),
            f"{UNWRITTEN}|copy",
        ),
        "a product is used before it is waited for": (
            back.replace("num_outstanding=1, deps=(partial_0,)", "num_outstanding=2, deps=(partial_0,)"),
            "before it is waited for",
        ),
        "tiles that stay are overwritten for the next ones": (
            without("mbarrier.wait(q_empty.index(each), q_phase)", one),
            f"{READ}|arrivals|by a copy|{WRITTEN_TO}",
        ),
        "the second sums are put where the first are stored from": (
            back.replace(
                "tma.async_copy_shared_to_global(o_desc, [program_1, BN * program_0, 0], o_stages.index(GROUP))\n            tma.store_wait(0)",  # noqa: E501
                "tma.async_copy_shared_to_global(o_desc, [program_1, BN * program_0, 0], o_stages.index(GROUP))",
            ),
            "over shared memory that a copy .*may still read",
        ),
    }


def test_planted_faults_are_found():
    made = {"": trial, "packed": packed, "gradient": gradient}
    tables = {"": faults_of_scores(), "gradient": faults_of_gradients()}
    found = [
        (made["packed" if "cleared" in source else kind](name, source), reason)
        for kind, planted in tables.items()
        for name, (source, reason) in planted.items()
    ]
    run_checks([CASE, SEQUENCES, BACKWARD], [fault for fault, _ in found])
    right = {lowered(CASE.source), lowered(PACKED), all_lowered(GRADIENTS)}
    assert not right & {fault.source for fault, _ in found}
    missed = [(f.rule, f.ok, f.reason) for f, why in found if f.ok or not re.search(why, f.reason)]
    assert missed == []


def test_a_number_of_rows_is_replaced_where_it_divides_and_no_step_is_wider_than_these():
    """Two loops end at a multiple of the rows, so that a wider step of the first would run into the second's."""
    written = changed(*WRITTEN["a helper that holds the loop, called twice"], ('params["BLOCK_M"]', "128"))
    depth = "triton.cdiv(q.shape[2], min(128, 256))"
    source = lowered(changed(("triton.cdiv(q.shape[0]", f"{depth} * triton.cdiv(q.shape[0]"), source=written))
    assert read_declarations(source).space["columns"] == (32, 64)
    assert f'{depth} * triton.cdiv(q.shape[0], params["rows"])' in source


@pytest.mark.slow  # quicker: that of a product in test_lowering
def test_the_schedule_is_hoppers_and_spills_nothing(tmp_path):
    heads = (("q", 4), ("k", 2), ("v", 2), ("c", 4))
    *tensors, out = [{"name": n, "shape": [512, h, 128], "dtype": "float16"} for n, h in heads]
    shapes, right = [{"id": "one", "inputs": tensors, "outputs": [out]}], lowered(CASE.source)
    point = read_declarations(right).defaults
    found = compiled_ahead([(right, dict(point), shapes)], str(tmp_path), processes=1, seconds=280.0)
    assert not found["failed"] and not found["late"], found
    (code,) = tmp_path.rglob("*.ptx")
    text = code.read_text()
    assert "wgmma.mma_async" in text and "cp.async.bulk.tensor" in text and "setmaxnreg" in text
    assert ".local" not in text


def test_the_grid_counts_the_new_tiles_however_it_is_quoted():
    source = lowered(changed(('params["BLOCK_M"]), q', "params['BLOCK_M']), q")))
    assert 'last = (triton.cdiv(q.shape[0], params["rows"])) - 1' in source


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("        qk *= sm_scale\n", "        qk *= sm_scale\n        tl.atomic_add(Out, 1.0)\n", "atomics"),
        ("< N_K, other=0.0)\n        qk =", "< N_K, other=1.0)\n        qk =", "padded with something"),
        ("tl.dot(q, k)", "tl.dot(q, k * 2)", "an operand computed by k \\* 2"),
        ("tl.dot(q, k)", "tl.dot(q, k) + tl.sum(acc)", "needs the second's sums"),
        ("K + (head // shared) * stride_kh", "K + start_m * stride_kh", "no axis of the grid"),
        ("        m_i = m_ij\n", "        m_i = m_ij + tl.sum(acc, 1)\n", "sums of the step before"),
    ],
)
def test_refusals(old, new, reason):
    with pytest.raises(Unsupported, match=reason):
        lowered(changed((old, new)))
