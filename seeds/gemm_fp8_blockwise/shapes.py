"""Workloads of the family: 84 training shapes by their rule, a core of 12, and decode; points that were fast on some.

Points of seed kernels, for campaigns to begin with, were the fastest of serving shapes on an H200 (measured; by number
of rows in ``experiments/records/h200_sizes/h200_sizes.md``).
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from tilewright.seeds.operator import Suite, Workload
from tilewright.seeds.shaped import matrix, suites_of

HEAD_DIM = 128

MODELS = (
    # (model, tokens per sequence, hidden, intermediate, query heads, key/value heads)
    ("llama2-7b", 4096, 4096, 11008, 32, 32),
    ("llama2-70b", 4096, 8192, 28672, 64, 8),
    ("llama3.1-8b", 8192, 4096, 14336, 32, 8),
    ("llama3.1-405b", 8192, 16384, 53248, 128, 8),
    ("qwen2.5-7b", 8192, 3584, 18944, 28, 4),
    ("qwen2.5-72b", 8192, 8192, 29568, 64, 8),
    ("mistral-7b", 4096, 4096, 14336, 32, 8),
)
"""Models of the published benchmark (Primus-Turbo at db7882da), in its order."""

BATCHES = (1, 2, 4)

CORE = (1, 4, 13, 25, 26, 27, 34, 38, 50, 52, 63, 64)
"""TestIDs that span the 84: M 4096 .. 32768, N 3584 .. 59136, K 3584 .. 29568, K/128 odd and even."""

DECODE = ((1, 7168, 2048), (16, 4096, 7168), (64, 7168, 2048), (128, 7168, 2048), (128, 4096, 4096))
"""(tokens, N, K) of serving shapes; M is padded to a multiple of 4."""


SERVING_ROWS = (1, 8, 16, 32, 64, 128, 160, 256)
"""Tokens of a serving step."""

SERVING_WEIGHTS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
"""(N, K) of DeepSeek-V3's projections; 2112 is no multiple of 128."""


OTHER_WEIGHTS = ((2176, 7168), (5120, 5120), (28672, 4096), (4096, 14336))
"""(N, K) of DeepSeek-V3's and other layers, for tiles of more sizes."""


def serving(
    rows: Iterable[int] = SERVING_ROWS, weights: Iterable[tuple[int, int]] = SERVING_WEIGHTS
) -> tuple[Workload, ...]:
    """Every projection with so many rows."""
    return tuple(_gemm(f"serving/{m}x{n}x{k}", m, n, k) for n, k in weights for m in rows)


def primus84() -> tuple[Workload, ...]:
    """84 workloads ``model/TestID`` with M, N, K; 69 of the triples are distinct.

    Per model and batch: the projections qkv, out, gate and up, down. TestID = 12 model + 4 batch index + column + 1.
    """
    found: list[Workload] = []
    for model, tokens, hidden, inner, heads, kv_heads in MODELS:
        layers = (((heads + 2 * kv_heads) * HEAD_DIM, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner))
        for batch in BATCHES:
            for n, k in layers:
                dims = {"M": tokens * batch, "N": n, "K": k}
                found.append(Workload(f"{model}/{len(found) + 1}", dims))
    return tuple(found)


def core() -> tuple[Workload, ...]:
    """The 12 workloads of ``primus-core``."""
    return tuple(primus84()[test - 1] for test in CORE)


def gemm_suites() -> Mapping[str, Suite]:
    """Suites of the forward product. The checks have tails: M and N not multiples of a tile, K/128 odd."""
    check = (_gemm("check/tails", 200, 384, 640), _gemm("check/even", 512, 512, 1024))
    decode = tuple(_gemm(f"decode/{m}x{n}x{k}", -(-m // 4) * 4, n, k) for m, n, k in DECODE)
    ragged = (_gemm("check/ragged", 37, 320, 640), _gemm("check/one", 1, 576, 1152))
    ten = (*SERVING_WEIGHTS, *OTHER_WEIGHTS)
    some, tens = serving((128, 256, 512), ten), serving((32, 64), ten)
    others = {"few-rows": serving((1, 16, 64)), "serving": serving()}
    # tiles of ``fp8_small`` take rows by fours, so that TMA may copy their scales
    fours = (_gemm("check/ragged", 36, 320, 640), _gemm("check/few", 4, 576, 1152))
    return MappingProxyType(
        {
            **_suites(check, tuple, decode=decode, **{"some-rows": some}),
            "tens-of-rows": Suite("tens-of-rows", tens, fours),
            **{name: Suite(name, workloads, ragged) for name, workloads in others.items()},
        }
    )


def wgrad_suites() -> Mapping[str, Suite]:
    """Suites of the weight gradient dw [N, K] = dy^T . x: contracted over the tokens."""
    check = (_gemm("check/tails", 200, 384, 640), _gemm("check/even", 512, 512, 1024))

    def turned(workloads: Iterable[Workload]) -> tuple[Workload, ...]:
        return tuple(_gemm(f"{w.id}/wgrad", w.dims["N"], w.dims["K"], w.dims["M"]) for w in workloads)

    return _suites(check, turned)


def matrix_suites(*, few_rows: bool = False) -> Mapping[str, Suite]:
    """Suites of the quantisers: the activations x [M, K] of the same layers, each shape once.

    ``few_rows``: with ``decode``, the activations of serving; blocks of 128 rows need more of them.
    """

    def matrices(workloads: Iterable[Workload]) -> tuple[Workload, ...]:
        seen = {(w.dims["M"], w.dims["K"]) for w in workloads}
        return tuple(matrix(m, k) for m, k in sorted(seen))

    check = _matrix("check", 384, 640)
    suites = _suites((check,), matrices)
    if not few_rows:
        return suites
    decode = Suite("decode", matrices(gemm_suites()["decode"].workloads), (_matrix("check/few", 20, 640), check))
    return MappingProxyType({**suites, "decode": decode})


def _gemm(name: str, m: int, n: int, k: int) -> Workload:
    return Workload(name, {"M": m, "N": n, "K": k})


def _matrix(name: str, m: int, k: int) -> Workload:
    return Workload(name, {"M": m, "K": k})


def _suites(
    check: tuple[Workload, ...],
    shaped: Callable[[Iterable[Workload]], tuple[Workload, ...]],
    **others: tuple[Workload, ...],
) -> Mapping[str, Suite]:
    """The training suites, their workloads as ``shaped`` makes them of the forward product's, and ``others``."""
    training = {"primus84": primus84(), "primus-core": core()}
    suites = {**{name: shaped(workloads) for name, workloads in training.items()}, **others}
    return suites_of(suites, check)


def _rows(most: int, wgs: int, kb: int, split: int, cn: int = 1, ctas: int = 1) -> Mapping[str, object]:
    return {"MOST": most, "WGS": wgs, "KB": kb, "SPLIT": split, "CN": cn, "CTAS": ctas}


FP8_ROWS: tuple[Mapping[str, object], ...] = (
    _rows(32, 1, 4, 1),
    _rows(64, 1, 2, 1, ctas=2),
    _rows(64, 1, 2, 2),
    _rows(64, 1, 2, 4),
    _rows(128, 1, 1, 2, ctas=2),
    _rows(128, 1, 2, 4, cn=2),
    _rows(128, 2, 2, 4),
    _rows(256, 1, 1, 4),
    _rows(256, 2, 1, 2),
)


def _tile(wgs: int, wn: int, stages: int, share: str = "none") -> Mapping[str, object]:
    creg, preg = (232, 40) if wgs == 1 else (240, 24)
    return {"WGS": wgs, "WAVES": "one", "WN": wn, "STAGES": stages, "SHARE": share, "CREG": creg, "PREG": preg}


FP8_SMALL: tuple[Mapping[str, object], ...] = (
    _tile(1, 128, 8),
    _tile(1, 160, 7),
    _tile(2, 128, 6),
    _tile(2, 160, 5),
    _tile(2, 192, 5),
    _tile(1, 64, 13),
    _tile(1, 96, 10),
)
"""Of ``fp8_block``: tiles for each multiprocessor, however few rows and columns there are."""

FP8_GROUPED: tuple[Mapping[str, object], ...] = (
    {**_tile(2, 128, 3), "WAVES": "across", "UNR": 1, "GROUP": 16, "OUTCS": 1},
    {**_tile(2, 192, 5), "UNR": 2, "GROUP": 4},
    _tile(1, 128, 8),
    _tile(1, 160, 7),
)
"""Of ``fp8_block``, for groups of many rows and of few."""
