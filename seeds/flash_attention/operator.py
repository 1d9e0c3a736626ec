"""Attention forward over whole sequences, with shared key heads (TPU).

Operands, in call order, all bfloat16; a batch is more heads:
    q    [H, S, D]    queries
    k    [KV, T, D]   keys; query head h reads key head h // (H / KV)
    v    [KV, T, D]   values
Result:
    out  [H, S, D]    bfloat16

The contract: with s[h, i, j] = q[h, i] . k[., j] / sqrt(D) over the keys that query i sees (``causal``: j <= i + T - S,
so that the last query sees all of them; ``full``: all), out[h, i] = sum_j softmax(s)[j] v[., j].
Scores, what they are below the largest and sums are in float32; the weights may be rounded to bfloat16 before they meet
the values, and ``out`` is rounded once. Rounding q / sqrt(D) to bfloat16 is right only where 1 / sqrt(D) is a power of
two: elsewhere the inputs ``peaked``, whose scores reach 60 and more, show it. Against float64 a right kernel reads 53
dB: both roundings cost 56.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import ml_dtypes
import numpy as np

from tilewright.seeds.inlined import inlined
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, Suite, TensorSpec, Workload
from tilewright.seeds.shaped import ATTENTION_GATES, Shaped, integers

ALONE = 2.0**-60
"""Where all other keys have less weight together, no sum in float32 sees them."""

INPUT_KINDS = ("randn", "peaked", "rising", "shifted")

_KERNELS = Path(__file__).parent / "kernels"


def lone_references(out: np.ndarray, others: np.ndarray) -> dict[str, Arrays]:
    """References of answers [..., D], where all keys but the first have so much weight [...] together."""
    return {"lone": {"out": out.astype(ml_dtypes.bfloat16)}, "alone": {"out": others < ALONE}}


def exact_scores(q: np.ndarray, k: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> None:
    """In place, q [..., D], k and v [..., T, D]: scores up to 2^97, and values around 2^110. Scores are powers of two,
    which scaling leaves exact, whether or not what follows is contracted with it; the largest is mostly one key's."""
    q[...], k[...] = 0.0, 0.0
    q[..., 0] = np.exp2(rng.integers(80, 99, q.shape[:-1]))
    k[..., 0] = np.exp2(np.minimum(2 * rng.geometric(0.5, k.shape[:-1]), 40) - 40)
    v *= np.float32(2.0**110)


def small_weights(q: np.ndarray, k: np.ndarray, v: np.ndarray, tokens: int, rng: np.random.Generator) -> None:
    """In place, of one key head: the first key has nearly all the weight, the others no value, and so many of them
    together add less weight than bfloat16 keeps beside it."""
    away = math.log(tokens) + math.log(2.0) * rng.uniform(8.1, 9.0)
    q[...], k[...], v[1:] = 0.0, 0.0, 0.0
    q[..., 0], k[1:, 0] = 8.0, -away * math.sqrt(q.shape[-1]) / 8.0


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """[H, S, D], [KV, T, D], [KV, T, D] -> [H, S, D], and [H, S], the weight of all keys but the first, in float64."""
    shared = q.shape[0] // k.shape[0]
    rows, keys = q.shape[1], k.shape[1]
    hidden = np.arange(keys)[None, :] > np.arange(rows)[:, None] + keys - rows
    out, others = np.empty((*q.shape[:2], v.shape[2])), np.empty(q.shape[:2])
    for head in range(q.shape[0]):
        scores = q[head].astype(np.float64) @ k[head // shared].astype(np.float64).T / math.sqrt(q.shape[2])
        if causal:
            scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        total = weights.sum(axis=1, keepdims=True)
        out[head] = (weights / total) @ v[head // shared].astype(np.float64)
        others[head] = total[:, 0] - 1.0
    return out, others


@dataclass(frozen=True)
class FlashAttention(Shaped):
    """One recipe of the family; see the module's docstring for the contract."""

    name: str
    causal: bool
    gates: tuple[Gate, ...] = ATTENTION_GATES
    input_kinds: tuple[str, ...] = INPUT_KINDS
    constants: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def suites(self) -> Mapping[str, Suite]:
        """``quick``: 4 heads of Llama-3.1-8B at 2048 tokens, ends at all 32. ``models``: head sizes and sharing."""
        return _suites()

    @cached_property
    def kernels(self) -> Mapping[str, SeedKernel]:
        """The plain walk over blocks in two sources, and what one tunes it to by hand."""
        schedule = self._source("schedule")
        whole = {"walk": "whole", "block_q": 2048, "sub_q": 512, "sub_k": 512, "mask": "edge"}
        loop = {"walk": "loop", "block_q": 512, "sub_q": 512, "sub_k": 512, "mask": "edge"}
        return {
            "plain": SeedKernel("plain", self._source("plain")),
            "schedule": SeedKernel("schedule", schedule),
            "whole": SeedKernel("whole", schedule, whole),
            "loop": SeedKernel("loop", schedule, loop),
        }

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``q``, ``k``, ``v``."""
        heads, shared, rows, keys, size = dims
        return (
            TensorSpec("q", (heads, rows, size), "bfloat16"),
            TensorSpec("k", (shared, keys, size), "bfloat16"),
            TensorSpec("v", (shared, keys, size), "bfloat16"),
        )

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``out`` [H, S, D] in bfloat16."""
        heads, _, rows, _, size = dims
        return (TensorSpec("out", (heads, rows, size), "bfloat16"),)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands.

        ``randn``: standard normal. ``peaked``: scores spread over 60 and more, so few keys count, or ``exact_scores``.
        ``rising``: the largest score grows from block to block of keys, by 40 in all, so that sums that are not scaled
        anew show, or all keys that have values are 8 below the first, where a difference in bfloat16 costs 41 dB.
        ``shifted``: scores near 200, so that exponentials overflow unless a maximum is taken off; all are the same,
        with values of the first half of the keys that are ``shaped.integers`` and of the others zeros, or
        ``small_weights``: sums of fewer bits than float32 show. Which of two takes turns by seed and rows. Raises
        ValueError for another kind.
        """
        if kind not in INPUT_KINDS:
            raise ValueError(f"{self.name} has no input kind {kind!r}; it has {', '.join(INPUT_KINDS)}")
        rng = np.random.default_rng([seed, INPUT_KINDS.index(kind)])
        q, k, v = (rng.standard_normal(spec.shape, dtype=np.float32) for spec in self.inputs(workload))
        size, turn, paired = q.shape[2], (seed + q.shape[1].bit_length()) % 2, v.shape[1] // 512 * 256
        if kind == "peaked" and turn:
            exact_scores(q, k, v, rng)
        elif kind == "peaked":
            q *= np.float32(16.0)
        elif kind == "shifted" and turn and paired:
            q[...] = v[:, paired:] = 0.0
            v[:, :paired] = integers(rng, (v.shape[0], paired, size), 1, seed, mirror=True)
        elif kind == "shifted":
            for mine, keys, values in zip(q.reshape(len(v), -1, size), k, v, strict=True):
                small_weights(mine, keys, values, 128, rng)
        if kind in ("rising", "shifted"):
            # one direction of all queries and keys carries what is added to every score
            lift = np.linspace(0.0, 40.0, k.shape[1]) if kind == "rising" else np.full(k.shape[1], 200.0)
            if kind == "rising" and not turn:
                lift, v[:, 0] = np.where(np.arange(k.shape[1]), 0.0, 8.0), 0.0
            q[:, :, -1] = 8.0
            k[:, :, -1] = lift * math.sqrt(size) / 8.0
        return {name: x.astype(ml_dtypes.bfloat16) for name, x in zip("qkv", (q, k, v), strict=True)}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """The float64 reference ``exact``; ``lone`` and ``alone`` of the gate."""
        del workload
        out, others = attention(inputs["q"], inputs["k"], inputs["v"], causal=self.causal)
        return {"exact": {"out": out}, **lone_references(out, others)}

    def visible(self, workload: Workload) -> int:
        """Scores of one head that count: pairs of a query and a key that it sees."""
        _, _, rows, keys, _ = self.dims(workload)
        return rows * keys - (rows * (rows - 1) // 2 if self.causal else 0)

    def flops(self, workload: Workload) -> int:
        """Two products of 2 D a visible score and head; the exponentials are overhead, not work."""
        heads, _, _, _, size = self.dims(workload)
        return 4 * heads * size * self.visible(workload)

    def lane_work(self, workload: Workload) -> Mapping[str, float]:
        """Element operations that no schedule avoids, by unit: a score is compared, and its maximum taken off.

        The row sums may be left to the matrix units, and the exponential is one on the transcendental unit.
        """
        scores = workload.dims["H"] * self.visible(workload)
        return {"valu": 2.0 * scores, "eup": float(scores)}

    def _source(self, name: str) -> str:
        text = inlined(_KERNELS / f"{name}.py")
        body, count = re.subn(r"^CAUSAL = .*$", f"CAUSAL = {self.causal}", text, flags=re.MULTILINE)
        assert count == 1, f"{name}.py has no CAUSAL"
        return body

    def dims(self, workload: Workload) -> tuple[int, ...]:
        """H, KV, S, T, D. Raises ValueError for heads or keys that the operator does not have."""
        heads, shared, rows, keys, size = (workload.dims[name] for name in ("H", "KV", "S", "T", "D"))
        if not shared or heads % shared or (self.causal and keys < rows):
            raise ValueError(
                f"workload {workload.id}: {self.name} needs H a multiple of KV"
                + (" and as many keys as queries" if self.causal else "")
            )
        return heads, shared, rows, keys, size


def _workload(heads: int, shared: int, rows: int, keys: int, size: int, prefix: str = "") -> Workload:
    dims = {"H": heads, "KV": shared, "S": rows, "T": keys, "D": size}
    return Workload(f"{prefix}{heads}:{shared}x{rows}x{keys}x{size}", dims)


def _suites() -> dict[str, Suite]:
    """Check shapes take several blocks of queries and keys, share key heads, and have more keys than queries."""
    check = (_workload(2, 2, 1024, 1024, 128), _workload(4, 2, 512, 1024, 128))
    quick = Suite(
        "quick", workloads=(_workload(4, 4, 2048, 2048, 128),), check=check, final=(_workload(32, 32, 2048, 2048, 128),)
    )
    models = (
        _workload(8, 2, 4096, 4096, 128, "llama3.1-8b/"),
        _workload(8, 8, 4096, 4096, 64, "gpt2/"),
        _workload(4, 2, 4096, 4096, 256, "gemma2/"),
        _workload(8, 1, 1024, 8192, 128, "chunk/"),
    )
    small = (_workload(2, 1, 512, 512, 64), _workload(2, 1, 256, 512, 256))
    tiny = Suite("tiny", (_workload(2, 1, 256, 256, 128),), (_workload(2, 1, 256, 512, 128),))
    return {"quick": quick, "models": Suite("models", models, (*check, *small)), "tiny": tiny}


def operators() -> dict[str, FlashAttention]:
    """The family's operators by recipe name."""
    return {
        name: FlashAttention(f"flash_attention/{name}", causal) for name, causal in (("causal", True), ("full", False))
    }
