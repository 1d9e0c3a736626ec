"""The most that each source of gain could give to a step, before anything is searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LEAST_SECONDS = 1.5e-6
"""Least that a kernel takes on a current GPU."""

WORTH = 0.002
"""Shares of the step below this are not worth a search."""

LINEAR = ("aten::mm", "aten::addmm", "aten::linear")

GEMM, GEMM_ROWS = "gemm_fp8_blockwise/gemm_nt", "gemm_fp8_blockwise/gemm_nt_rows"
QUANT_ROWS, QUANT_WEIGHT = "gemm_fp8_blockwise/quant_dual", "gemm_fp8_blockwise/quant_128x128_dual"


@dataclass(frozen=True)
class Source:
    """A source of gain: what it takes of the step today, and at its floor. Seconds of one step."""

    name: str
    seconds: float
    floor: float
    note: str = ""
    numerics: bool = False
    """Whether it changes the results beyond rounding."""

    @property
    def saving(self) -> float:
        return max(0.0, self.seconds - self.floor)


@dataclass
class Ceiling:
    """Sources of gain by what they could save, and a step's time by kind. ``wall``: seconds of a step."""

    wall: float
    busy: float
    sources: list[Source]
    shares: dict[str, float]
    kernels: list[dict[str, Any]] = field(default_factory=list)
    """Triton kernels: name, seconds, floor, calls, arguments, whether they multiply."""

    def factor(self, source: Source) -> float:
        """How many times faster the step would be with this source at its floor."""
        return self.wall / max(self.wall - source.saving, 1e-12)

    def of(self, *names: str) -> float:
        """The same for several sources together."""
        saved = sum(s.saving for s in self.sources if s.name in names)
        return self.wall / max(self.wall - saved, 1e-12)


TRITON, GENERATED, FP8, GAPS = (
    "Triton kernels",
    "Inductor's kernels",
    "linear layers in FP8",
    "gaps between kernels",
)


def ceiling(record: Mapping[str, Any]) -> Ceiling:
    """Of a record (``workers.program.record``).

    A Triton kernel's floor is the time that a copy takes for the bytes of its tensors, each read or written once; of a
    kernel with products that is a bound it may not reach, because its operations are not counted.
    """
    rows: Sequence[Mapping[str, Any]] = record["rows"]
    copy = float(record["device"]["copy"])
    wall, busy = float(record["wall_seconds"]), float(record["busy_seconds"])
    shares: dict[str, float] = {}
    kernels = []
    for row in rows:
        shares[row["kind"]] = shares.get(row["kind"], 0.0) + row["seconds"] / max(busy, 1e-12)
        if row["kind"] not in ("triton", "inductor"):
            continue
        launch = record["launches"][row["launch"]] if row["launch"] is not None else {}
        floor = row["calls"] * max(LEAST_SECONDS, row["bytes"] / copy) if copy else 0.0
        known = row["bytes"] > 0
        kernels.append({
            "kind": row["kind"], "name": row["name"], "launch": row["launch"], "calls": row["calls"],
            "seconds": row["seconds"], "floor": min(floor, row["seconds"]) if known else row["seconds"],
            "products": bool(launch.get("products")), "known": known,
            "arguments": launch.get("arguments") or row.get("arguments", ""),
            "place": launch.get("place") or row.get("place", ""),
            "module": launch.get("module", ""), "attribute": launch.get("name", ""),
        })  # fmt: skip
    sources = []
    for name, kind in ((TRITON, "triton"), (GENERATED, "inductor")):
        found = [k for k in kernels if k["kind"] == kind]
        if not found:
            continue
        note = "floors by bytes"
        if any(k["products"] for k in found):
            note += "; kernels with products may not reach theirs"
        missing = sum(k["seconds"] for k in found if not k["known"])
        if missing:
            note += f"; {1e3 * missing:.3f} ms of launches with unknown arguments left as they are"
        sources.append(Source(name, sum(k["seconds"] for k in found), sum(k["floor"] for k in found), note))
    sources += filter(None, [_linear_layers(record)])
    if busy and not record["graph"]:
        sources.append(Source(GAPS, max(0.0, wall - busy), 0.0, "a CUDA graph of the step could remove them"))
    sources.sort(key=lambda s: -s.saving)
    return Ceiling(wall, busy, sources, dict(sorted(shares.items(), key=lambda s: -s[1])), kernels)


def _linear_layers(record: Mapping[str, Any]) -> Source | None:
    """Linear layers in FP8 at the rates of the library's table; their bf16 time at the rate of a large bf16 product."""
    device = record["device"]
    rate = float(device["bf16"])
    if not rate or not record["linears"]:
        return None
    now = then = 0.0
    unserved = set()
    for rows, out, into, trains, count in record["linears"]:
        products = 3 if trains else 1
        took = _measured(record, rows, out, into) or 2.0 * products * rows * out * into / rate
        faster = fp8_seconds(device, rows, out, into, trains)
        now += count * took
        if faster is None:
            unserved.add((rows, out, into))
        then += count * min(took, took if faster is None else faster)
    note = "by the library's table; changes numerics"
    if unserved:
        note += f"; {len(unserved)} shape(s) it does not serve"
    return Source(FP8, now, then, note, numerics=True)


def _measured(record: Mapping[str, Any], rows: int, out: int, into: int) -> float | None:
    """Seconds that torch's products of one layer took together, where the profile shows all of its products."""
    wanted = {
        "forward": (rows, into, out), "input": (rows, out, into), "weight": (out, rows, into),
    }  # fmt: skip
    found: dict[str, float] = {}
    for operator in record["operators"]:
        if operator["name"] not in LINEAR:
            continue
        sizes = [s for s in _shapes(operator["shapes"]) if len(s) == 2]
        if len(sizes) < 2 or sizes[-2][1] != sizes[-1][0]:
            continue
        shape = (sizes[-2][0], sizes[-2][1], sizes[-1][1])
        for name, dims in wanted.items():
            if shape == dims and name not in found:
                found[name] = operator["seconds"] / operator["calls"]
    return sum(found.values()) if len(found) == len(wanted) else None


def _shapes(text: str) -> list[list[int]]:
    import ast

    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [s for s in found if isinstance(s, list) and all(isinstance(n, int) for n in s)]


def fp8_seconds(device: Mapping[str, Any], rows: int, out: int, into: int, trains: bool) -> float | None:
    """Seconds of one layer in FP8 by the library's receipts, forward and both gradients with every quantisation; None
    where it serves no such layer."""
    capability = int(device["capability"])
    where = f"cuda:{capability // 10}.{capability % 10}"
    parts = [(GEMM, (rows, out, into)), (QUANT_ROWS, (rows, into)), (QUANT_WEIGHT, (out, into))]
    if trains:
        parts += [(GEMM, (rows, into, out)), (GEMM_ROWS, (out, into, rows)), (QUANT_ROWS, (rows, out))]
    found = [_table_seconds(operator, where, dims) for operator, dims in parts]
    return None if None in found else sum(filter(None, found))


def _table_seconds(operator: str, where: str, dims: tuple[int, ...]) -> float | None:
    """Seconds at a shape: of the verified shape whose kernel serves it, in proportion to the elements multiplied or
    moved."""
    from tilewright.library import store
    from tilewright.library.serving import served

    service = served(operator, where, dims)
    if service.kernel is None or service.seconds is None:
        return None
    region = store.load_table(operator, where).choose(dims)
    share = 1.0
    for size, verified in zip(dims, region.dims, strict=True):
        share *= size / verified
    return service.seconds * share
