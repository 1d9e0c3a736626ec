"""What ``h200.mx`` compares: shapes and our contenders by part, and the ratios that are asked for."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.studies.h200.mx_points import Entry
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Operator, Workload

GROUPED = (4, 8, 48)

PARTS: Mapping[str, tuple[tuple[str, str, int], ...]] = {
    "cast": (("mx_cast/mxfp8_floor", "cast", 2),),
    "turned": (("mx_cast/mxfp8_both", "cast", 2),),
    "grid": (("gridquant/quant_256", "published", 7),),
    "few-rows": (("gridquant/gemm_256", "few-rows", 8),),
    "squares": (("gridquant/gemm_256", "squares", 3),),
    "normal": (("gemm_mxfp8_out/normal", "motif-normal", 6),),
    "grouped": tuple((f"gemm_mxfp8_out/grouped{n}", "motif-grouped", 2) for n in GROUPED),
    "masked": tuple(
        (f"gemm_mxfp8_out/masked{n}", "deepgemm-masked", 2) for n in ("32x192", "6x1024", "6x20")
    ),
    "k-grouped": tuple((f"gemm_mxfp8_out/kgrouped{n}", "k-grouped", 2) for n in (4, 8, 16)),
}
"""Operator, suite and how many of its shapes, by part."""

SIZES_SKIPPED = ("2048x2048", "4096x4096", "32768x32768", "2048x2048x2048", "2x8192x8192", "4x8192x8192")
"""Too small to fill the GPU, or too slow for what they add."""

FORMS = {"cast": ("floor", "rceil", "swizzled"), "turned": ("floor", "dim1")}
"""torchao's casts by part."""


def shapes_of(part: str) -> list[tuple[str, Workload]]:
    """(operator, workload) of a part."""
    return [
        (name, workload)
        for name, suite, most in PARTS[part]
        for workload in load_operator(name).suites[suite].workloads[:most]
        if workload.id not in SIZES_SKIPPED
    ]


def entries_of(part: str, operator: str) -> list[Entry]:
    """Our contenders of a part; a label that ends in ``own`` is a seed at its own point."""
    if part == "cast":
        rules = [Entry(f"dim0 {rule}", f"mx_cast/mxfp8_{rule}", "cast8") for rule in ("floor", "rceil")]
        return [*rules, Entry("dim0 + swizzle", "mx_cast/mxfp8_swizzled", "cast8")]
    if part == "turned":
        plain = Entry("dim0 floor", "mx_cast/mxfp8_floor", "cast8")
        names = (("dim1", "mxfp8_dim1"), ("dim0 + dim1, one read", "mxfp8_both"))
        return [
            plain,
            *(Entry(f"{n}, {k}", f"mx_cast/{r}", k) for n, r in names for k in ("cast8", "cast8_tma")),
        ]
    if part == "grid":
        found = [
            Entry(f"{kernel} {edge}", f"gridquant/quant_{edge}", kernel)
            for edge in (256, 128)
            for kernel in ("two_pass", "held", "whole")
        ]
        return [*found, Entry("whole 256, own", "gridquant/quant_256", "whole", tuned=False)]
    if part in ("few-rows", "squares"):
        kernels = ("persistent", "splitk" if part == "few-rows" else "persistent_ws")
        found = [Entry(f"{k} {e}", f"gridquant/gemm_{e}", k) for e in (256, 128) for k in kernels]
        own = [Entry(f"splitk {e}, own", f"gridquant/gemm_{e}", "splitk", tuned=False) for e in (256, 128)]
        return [*found, *(own if part == "few-rows" else [])]
    if part in ("masked", "k-grouped"):
        return [Entry(kernel, operator, kernel) for kernel in load_operator(operator).kernels]
    return [Entry(kernel, operator, kernel) for kernel in ("fused", "unfused", "fused_ws", "unfused_ws")]


def checks_of(operator: Operator) -> list[Workload]:
    """The operator's small shapes, and one without tails for kernels that know none."""
    dims = {"M": 256, "K": 256, **({"N": 256} if "gemm" in operator.name else {})}
    (suite, *_) = operator.suites.values()
    return [*suite.check, Workload("check/256", dims)]


RATIOS = {
    "two launches over one read": (("dim0 floor", "dim1"), "dim0 + dim1"),
    "cast + swizzle over the cast": (("dim0 + swizzle",), "dim0 floor"),
    "torchao over ours, dim0": (("torchao to_mx floor, compiled",), "dim0 floor"),
    "whole over the best, 256": (("whole 256",), "best 256"),
    "split-K own over persistent, 256": (("splitk 256, own",), "persistent 256"),
    "split-K over persistent, 256": (("splitk 256",), "persistent 256"),
    "cuBLAS over the best persistent, 128": (("cuBLAS 128 x 128, bf16 out",), "any persistent 128"),
    "cuBLAS over the best persistent, 256": (("cuBLAS 128 x 128, bf16 out",), "any persistent 256"),
    "unfused over fused": (("unfused",), "fused"),
    "unfused over masked": (("unfused",), "masked"),
    "unfused over k_grouped": (("unfused",), "k_grouped"),
    "best unfused over best fused": (("any unfused",), "any fused"),
    "unfused, compiled quantise over fused": (("unfused product + compiled quantise",), "fused"),
    "unfused_ws over fused_ws": (("unfused_ws",), "fused_ws"),
    "unfused_ws, compiled quantise over fused_ws": (("unfused_ws product + compiled quantise",), "fused_ws"),
}
"""Sums of seconds over seconds; a name of several kernels is the fastest of them."""

ALIASES = {
    "dim1": ("dim1, cast8", "dim1, cast8_tma"),
    "dim0 + dim1": ("dim0 + dim1, one read, cast8", "dim0 + dim1, one read, cast8_tma"),
    "best 256": ("two_pass 256", "held 256"),
    "any persistent 128": ("persistent 128", "persistent_ws 128"),
    "any persistent 256": ("persistent 256", "persistent_ws 256"),
    "any fused": ("fused", "fused_ws"),
    "any unfused": (
        "unfused",
        "unfused_ws",
        "unfused product + compiled quantise",
        "unfused_ws product + compiled quantise",
        "cuBLAS + compiled quantise",
    ),
}


def ratios(times: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """``RATIOS`` as far as their contenders were timed."""

    def seconds(label: str) -> float | None:
        found = [times[name]["seconds"] for name in ALIASES.get(label, (label,)) if name in times]
        return min(found) if found else None

    shown = {}
    for name, (above, below) in RATIOS.items():
        parts, base = [seconds(label) for label in above], seconds(below)
        if base is not None and all(part is not None for part in parts):
            shown[name] = sum(part for part in parts if part is not None) / base
    return shown
