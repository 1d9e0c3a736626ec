"""Ragged paged decode: one query a sequence attends to all keys of its own, which lie in pages (TPU).

Operands, in call order:
    q        [B, H, D]         bfloat16   one token of each sequence
    k_pages  [P, KV, R, D]     bfloat16   pages of R tokens; query head h reads key head h // (H / KV)
    v_pages  [P, KV, R, D]     bfloat16
    lengths  [B]               int32      tokens of each sequence, 1 to L * R
    tables   [B, L]            int32      pages of each sequence in order; those beyond its length name any page
Result:
    out      [B, H, D]         bfloat16

The contract: out[b, h] = softmax(q k^T / sqrt(D)) v over the first ``lengths[b]`` tokens of the sequence's pages. What
lies behind them, in a last page or in pages that are nobody's, is finite and may be anything. Scores, what they are
below the largest and sums are in float32; weights may be rounded to bfloat16 before they meet the values; ``out`` is
rounded once. Kernels are *timed* with the lengths and tables that ``known`` says: drawn once, evenly between one token
and all.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import ml_dtypes
import numpy as np

from tilewright.seeds.flash_attention.operator import attention, exact_scores, lone_references, small_weights
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, Suite, TensorSpec, Workload
from tilewright.seeds.shaped import ATTENTION_GATES

INPUT_KINDS = ("randn", "short", "full", "peaked")

STALE = 3000.0
"""What tokens hold that no sequence owns: large enough to show where one is not left out."""

_KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class PagedDecode:
    """The family's operator; see the module's docstring for the contract."""

    name: str
    gates: tuple[Gate, ...] = ATTENTION_GATES
    input_kinds: tuple[str, ...] = INPUT_KINDS
    constants: Mapping[str, int] = field(default_factory=dict)
    memory_bound: bool = True
    """Ranked by GB/s of the keys and values that must be read."""

    @cached_property
    def suites(self) -> Mapping[str, Suite]:
        """``quick``: 8 sequences of up to 1024 tokens of Llama-3.1-8B, ends at 32 of up to 2048."""
        check = (_workload(5, 8, 2, 128, 16, 8), _workload(3, 12, 1, 128, 16, 16))
        quick = Suite("quick", (_workload(8, 32, 8, 128, 16, 64),), check, (_workload(32, 32, 8, 128, 16, 128),))
        return {"quick": quick, "tiny": Suite("tiny", check[:1], check[1:])}

    @cached_property
    def kernels(self) -> Mapping[str, SeedKernel]:
        """A page a step of the grid; and several pages, all heads in one product."""
        source = (_KERNELS / "pages.py").read_text(encoding="utf-8")
        wide = {"pages": 16, "heads": "all"}
        return {"plain": SeedKernel("plain", source), "wide": SeedKernel("wide", source, wide)}

    def inputs(self, workload: Workload, variant: str | None = None) -> tuple[TensorSpec, ...]:
        """Operands in call order. Raises ValueError for a variant, or a shape the operator does not have."""
        if variant is not None:
            raise ValueError(f"{self.name} has no inputs variant {variant!r}")
        d = workload.dims
        if not d["KV"] or d["H"] % d["KV"]:
            raise ValueError(f"workload {workload.id}: {self.name} needs H a multiple of KV")
        pages = (_pages(workload), d["KV"], d["R"], d["D"])
        return (
            TensorSpec("q", (d["B"], d["H"], d["D"]), "bfloat16"),
            TensorSpec("k_pages", pages, "bfloat16"),
            TensorSpec("v_pages", pages, "bfloat16"),
            TensorSpec("lengths", (d["B"],), "int32"),
            TensorSpec("tables", (d["B"], d["L"]), "int32"),
        )

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """``out`` [B, H, D] in bfloat16."""
        d = workload.dims
        return (TensorSpec("out", (d["B"], d["H"], d["D"]), "bfloat16"),)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands.

        ``randn``: standard normal, lengths between one token and all, one of them whole pages. ``short``: a few tokens,
        one at least of one. ``full``: every page of every sequence, and ``small_weights``, or all keys that have values
        are 8 below the first. ``peaked``: scores spread over 60 and more, or ``exact_scores``. Which of two takes turns
        by seed and pages. Raises ValueError for another kind.
        """
        if kind not in INPUT_KINDS:
            raise ValueError(f"{self.name} has no input kind {kind!r}; it has {', '.join(INPUT_KINDS)}")
        rng = np.random.default_rng([seed, INPUT_KINDS.index(kind)])
        q, k, v = (rng.standard_normal(s.shape, dtype=np.float32) for s in self.inputs(workload)[:3])
        lengths, tables = draw(rng, workload, kind)
        page, most = workload.dims["R"], workload.dims["L"]
        turn = (seed + most.bit_length()) % 2
        if kind == "randn":
            lengths[rng.integers(len(lengths))] = page * rng.integers(1, max(2, most))
        owned = np.zeros((k.shape[0], page), bool)
        for length, table in zip(lengths, tables, strict=True):
            place = np.arange(length)
            owned[table[place // page], place % page] = True
        for pages in (k, v):
            pages.swapaxes(1, 2)[~owned] = STALE
        if kind == "peaked" and turn:
            exact_scores(q, keys := k.transpose(1, 0, 2, 3).reshape(k.shape[1], -1, k.shape[3]), v, rng)
            k = keys.reshape(k.shape[1], k.shape[0], page, -1).transpose(1, 0, 2, 3)
        elif kind == "peaked":
            q *= np.float32(16.0)
        elif kind == "full" and turn:
            for (b, table), head in itertools.product(enumerate(tables), range(k.shape[1])):
                keys, values = (pages[table, head].reshape(-1, q.shape[2]) for pages in (k, v))
                mine = slice(head * (q.shape[1] // k.shape[1]), (head + 1) * (q.shape[1] // k.shape[1]))
                small_weights(q[b, mine], keys, values, page, rng)
                k[table, head], v[table, head] = (x.reshape(-1, page, q.shape[2]) for x in (keys, values))
        elif kind == "full":
            q[..., -1], k[..., -1] = 8.0, 0.0
            k[tables[:, 0], :, 0, -1], v[tables[:, 0], :, 0] = q.shape[2] ** 0.5, 0.0
        return {
            **{n: x.astype(ml_dtypes.bfloat16) for n, x in (("q", q), ("k_pages", k), ("v_pages", v))},
            "lengths": lengths,
            "tables": tables,
        }

    def known(self, workload: Workload) -> Arrays:
        """The lengths and tables a workload is timed with: one draw of the kind ``randn``."""
        lengths, tables = draw(np.random.default_rng(1), workload, "randn")
        return {"lengths": lengths, "tables": tables}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """The float64 reference ``exact``; ``lone`` and ``alone`` of the gate."""
        d = workload.dims
        out, others = np.empty((d["B"], d["H"], d["D"])), np.empty((d["B"], d["H"]))
        for b, (length, table) in enumerate(zip(inputs["lengths"], inputs["tables"], strict=True)):
            used = table[: -(-int(length) // d["R"])]
            k, v = (
                inputs[name][used].astype(np.float64).swapaxes(0, 1).reshape(d["KV"], -1, d["D"])[:, :length]
                for name in ("k_pages", "v_pages")
            )
            one, rest = attention(inputs["q"][b][:, None], k, v, causal=False)
            out[b], others[b] = one[:, 0], rest[:, 0]
        return {"exact": {"out": out}, **lone_references(out, others)}

    def flops(self, workload: Workload) -> int:
        """Two products of 2 D a score."""
        return 4 * workload.dims["D"] * self._scores(workload)

    def bytes(self, workload: Workload) -> int:
        """Keys and values of the tokens there are, queries and results once, lengths and the tables in use."""
        d, tokens = workload.dims, int(self.known(workload)["lengths"].sum())
        return 4 * (d["B"] * d["H"] * d["D"] + tokens * d["KV"] * d["D"] + d["B"] + tokens // d["R"])

    def lane_work(self, workload: Workload) -> Mapping[str, float]:
        """Element operations no schedule avoids, by unit: a score is compared, its maximum taken off; one power."""
        scores = self._scores(workload)
        return {"valu": 2.0 * scores, "eup": float(scores)}

    def _scores(self, workload: Workload) -> int:
        return int(workload.dims["H"]) * int(self.known(workload)["lengths"].sum())


def draw(rng: np.random.Generator, workload: Workload, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Lengths [B] and tables [B, L], int32: no page is two sequences', in no order."""
    d = workload.dims
    most = d["L"] * d["R"]
    lengths = rng.integers(1, most + 1, d["B"])
    if kind == "short":
        lengths = rng.integers(1, 2 * d["R"] + 2, d["B"])
        lengths[rng.integers(d["B"])] = 1
    elif kind == "full":
        lengths[:] = most
    tables = rng.permutation(_pages(workload))[: d["B"] * d["L"]].reshape(d["B"], d["L"])
    return lengths.astype(np.int32), tables.astype(np.int32)


def _pages(workload: Workload) -> int:
    return int(workload.dims["B"] * workload.dims["L"]) + 1


def _workload(batch: int, heads: int, shared: int, size: int, page: int, pages: int) -> Workload:
    dims = {"B": batch, "H": heads, "KV": shared, "D": size, "R": page, "L": pages}
    return Workload(f"{batch}x{heads}:{shared}x{size}/{pages}x{page}", dims)


def operators() -> dict[str, PagedDecode]:
    """The family's operator."""
    return {"decode": PagedDecode("paged_attention/decode")}
