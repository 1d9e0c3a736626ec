"""Shapes of the family: M rows, G groups, matrices K x N; ``ragged`` seeds a fixed ragged distribution of groups."""

from __future__ import annotations

from tilewright.seeds.operator import Suite, Workload


def _workload(phase: str, prefix: str, sizes: tuple[int, int, int, int], ragged: int = 0) -> Workload:
    """``sizes``: M, N, K, G. C is what the phase contracts over, F the free dimension of its matrices."""
    m, n, k, groups = sizes
    contracted = {"fwd": (k, n), "dlhs": (n, k), "tgmm": (m, n)}[phase]
    dims = {"M": m, "N": n, "K": k, "G": groups, "C": contracted[0], "F": contracted[1]}
    tail = "/ragged" if ragged else ""
    return Workload(f"{prefix}{m}x{n}x{k}/{groups}{tail}", {**dims, "ragged": ragged} if ragged else dims)


def suites(phase: str) -> dict[str, Suite]:
    """``gmm-antpretrain``: the gate/up and down projections of an MoE layer, 256 rows a group, 32 groups.

    ``quick`` has a quarter of its rows and groups, so the same blocks and the same rows a group, and ends at the whole.
    ``gmm-large`` is for reports: what the simulator costs in an hour or more; ``gmm-large-slice`` is one part in 64 of
    its rows and groups, at the same 1024 rows a group. ``worst-case`` is many groups, few rows, and one group.

    Check shapes take several row and column blocks of the kernels' block sizes; ``make_inputs`` draws the groups.
    """

    def made(m: int, n: int, k: int, groups: int, prefix: str = "", ragged: int = 0) -> Workload:
        return _workload(phase, prefix, (m, n, k, groups), ragged)

    check = (made(1024, 1024, 1024, 5), made(2048, 512, 512, 6))
    layers = ((512, 2048, "gate_up/"), (2048, 512, "down/"))
    whole = tuple(made(8192, n, k, 32, f"antpretrain/{name}") for n, k, name in layers)
    part = tuple(made(2048, n, k, 8, f"quick/{name}") for n, k, name in layers)
    ragged = tuple(made(8192, n, k, 32, f"antpretrain/{name}", 7) for n, k, name in layers)
    large = (made(262144, 1024, 7168, 256, "large/"), made(131072, 1024, 7168, 256, "large/"))
    slices = (made(4096, 1024, 7168, 4, "large-slice/"),)
    hard = (made(1024, 512, 512, 64), made(1024, 512, 1024, 1), made(2048, 1024, 512, 3))
    return {
        "quick": Suite("quick", part, check, whole),
        "gmm-antpretrain": Suite("gmm-antpretrain", whole, check, (*whole, *ragged)),
        "gmm-ragged": Suite("gmm-ragged", ragged, check),
        "gmm-large": Suite("gmm-large", large, check),
        "gmm-large-slice": Suite("gmm-large-slice", slices, check),
        "worst-case": Suite("worst-case", part, hard),
    }
