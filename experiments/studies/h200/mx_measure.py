"""The measuring child of ``h200.mx``: picks contenders' points, times a shape's side by side, writes the records."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from experiments.studies.h200 import mx_peers as peers
from experiments.studies.h200.fp8_contenders import loaded
from experiments.studies.h200.fp8_step import Bench
from experiments.studies.h200.mx_parts import FORMS, checks_of, entries_of, ratios, shapes_of
from experiments.studies.h200.mx_points import Entry, Point
from experiments.studies.h200.stamp import stamp
from experiments.studies.records.say import say
from tilewright.fitness.gates import failure, read_gates
from tilewright.seeds.operator import Operator, SeedKernel, Workload
from tilewright.seeds.sampled import TABLE
from tilewright.workers.runners.triton.tensors import bits_of, to_numpy, to_torch

Call = Callable[[], Any]


def guarded(what: str, make: Callable[[], Any]) -> Any:
    """What ``make`` gives, or None and a line when a peer cannot be made."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - a peer that does not work here is left out and said
        say(f"  no {what}: {type(error).__name__} {str(error).splitlines()[0][:140]}")
        return None


class Held:
    """Elements of tensors on the device, for ``Sampled.sample``."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors

    def at(self, operand: str, *axes: np.ndarray) -> np.ndarray:
        """The elements where these indices along each axis cross."""
        tensor = self._tensors[operand]
        raw = tensor.view(bits_of(tensor))
        for axis, index in enumerate(axes):
            raw = raw.index_select(axis, torch.from_numpy(index.astype(np.int64)).to(raw.device))
        return to_numpy(raw.contiguous().view(tensor.dtype))


def operands(operator: Operator, workload: Workload) -> dict[str, Any]:
    """Random operands on the device, drawn from the operator's own tables; groups in order, as sorted tokens are."""
    tables: Mapping[str, np.ndarray] = operator.tables()  # type: ignore[attr-defined]
    found = {}
    for spec in operator.inputs(workload):
        values = to_torch(tables[spec.name], str(torch.get_default_device()))
        index = torch.randint(TABLE, spec.shape, dtype=torch.int32)
        if spec.name == "group":
            index = index.sort().values
        found[spec.name] = values.view(bits_of(values))[index].view(values.dtype)
    return found


class Shop:
    """Everything one child needs to time contenders."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.set_default_device("cuda")
        flush = torch.empty(64 << 20, dtype=torch.int32)
        self.bench, self._short = Bench(args.rounds, args.calls, flush), Bench(2, 2, flush)
        self._skipped = set(args.skip or [])
        self._seed = int(time.time())

    def best(self, entry: Entry, workload: Workload, held: dict[str, Any]) -> tuple[Call, Point, dict] | None:
        """The fastest point that starts and whose sample passes the gates, and what was read of them; or None."""
        operator, kernel = entry.loaded
        module = loaded(kernel.source)
        calls: dict[str, Call] = {}
        points: dict[str, Point] = {}
        for point in entry.points(workload):
            at = f"{entry.label} | {workload.id} | {json.dumps(point)}"
            if at in self._skipped:
                continue
            say(f"@ {at}")
            call = lambda point=point: module.launch(dict(held), point)  # noqa: E731
            try:
                call()
                torch.cuda.synchronize()
            except Exception as error:
                said = f"{type(error).__name__} {(str(error).splitlines() or [''])[0][:140]}"
                if "CUDA error" in said or "illegal" in said:
                    raise SystemExit(
                        3
                    ) from error  # the context is spoiled: the next child goes on without it
                say(f"  left out: {at}: {said}")
                continue
            calls[at], points[at] = call, point
        if not calls:
            return None
        times = self._short.compare(calls)
        for at in sorted(times, key=lambda name: times[name]["seconds"]):
            passed, read = self.checked(operator, workload, held, calls[at])
            if passed or kernel.baseline:
                read["tried"] = {json.dumps(points[n]): t["seconds"] for n, t in times.items()}
                return calls[at], points[at], read
            say(f"  wrong: {at}: {read}")
        return None

    def checked(self, operator: Operator, workload: Workload, held: dict, call: Call) -> tuple[bool, dict]:
        """Whether one call passes the operator's gates on a sample, and what the gates read."""
        rng = np.random.default_rng(self._seed)
        sample = operator.sample(workload, Held(held), rng)  # type: ignore[attr-defined]
        names = [spec.name for spec in operator.outputs(workload)]
        outputs = Held(dict(zip(names, call(), strict=True)))
        seen = {name: outputs.at(name, *where) for name, where in sample.where.items()}
        readings = read_gates(operator.gates, seen, sample.references, "a sample")
        found = {reading.gate: reading.value for reading in readings}
        if "d" in seen:
            found |= {"calc_diff": calc_diff(operator, sample, seen)}
        return failure(readings, operator.gates) is None, found

    def on_edges(self, entry: Entry, seed: int = 11) -> dict[str, float | None]:
        """What the gates read on whole small outputs of a seed's own point, hard inputs included."""
        operator, kernel = entry.loaded
        found: dict[str, float | None] = {}
        for workload in checks_of(operator):
            for kind in operator.input_kinds:
                points = replace(entry, tuned=False).points(workload)
                if not points:
                    continue
                made = operator.make_inputs(workload, seed, kind)
                device = str(torch.get_default_device())
                given = {name: to_torch(array, device) for name, array in made.items()}
                got = loaded(kernel.source).launch(given, points[0])
                outputs = {s.name: to_numpy(t) for s, t in zip(operator.outputs(workload), got, strict=True)}
                readings = read_gates(operator.gates, outputs, operator.oracle(workload, made), kind)
                found |= {f"{workload.id} {kind} {r.gate}": r.value for r in readings}
        return found


def calc_diff(operator: Operator, sample: Any, seen: Mapping[str, np.ndarray]) -> float:
    """1 - 2 <x, y> / (<x, x> + <y, y>) of dequantised outputs and the oracle's, in float64; 0 for zeros."""

    def values(found: Mapping[str, np.ndarray]) -> np.ndarray:
        scale = np.exp2(found["d_s"].astype(np.float64) - 127)
        return found["d"].astype(np.float64) * np.repeat(scale, 32, axis=-1)

    x, y = values(seen), values(sample.references["mx"])
    both = (x * x).sum() + (y * y).sum()
    return float(1 - 2 * (x * y).sum() / both) if both else 0.0


def peers_of(part: str, workload: Workload, picks: Mapping[str, Any], held: dict) -> dict[str, Call]:
    """Peers on the same data, by label."""
    dims = workload.dims
    found: dict[str, Call] = {}
    if part in ("cast", "turned", "grid"):
        found["copy"] = peers.copied(dims["M"], dims["K"])[0]
    if part in FORMS:
        made = guarded("torchao", lambda: peers.compiled_mx(held["x"], FORMS[part])) or {}
        found |= {f"torchao to_mx {name}, compiled": call for name, call in made.items()}
    if part in ("few-rows", "squares", "normal") and dims["M"] % 4 == 0:
        product = peers.vendor_product(dims["M"], dims["N"], dims["K"])
        if guarded("cuBLAS", lambda: product() is not None):
            found["cuBLAS 128 x 128, bf16 out"] = product
    if part in ("normal", "grouped"):
        cast = guarded("compiled quantise", lambda: peers.compiled_quantise(dims["M"], dims["N"]))
        for label in ("unfused", "unfused_ws"):
            if cast is not None and label in picks:
                found[f"{label} product + compiled quantise"] = unfused(picks[label], held, cast)
        vendor = found.get("cuBLAS 128 x 128, bf16 out")
        if cast is not None and vendor is not None:
            found["cuBLAS + compiled quantise"] = lambda: cast(vendor())
    return found


def unfused(pick: tuple[SeedKernel, Point], held: dict, cast: Callable[[Any], Any]) -> Call:
    """The bf16 product at the picked point, then the compiled quantiser."""
    kernel, point = pick
    module = loaded(kernel.source)
    exponents = held["a_q"].new_empty(0)  # which this product does not make
    return lambda: cast(module.product(dict(held), point, exponents))


def measured(part: str, operator_name: str, workload: Workload, shop: Shop) -> dict[str, Any]:
    """One shape: every contender's time, rate and point."""
    calls: dict[str, Call] = {}
    picks, notes, chosen = {}, {}, {}
    shared: dict[str, Any] = {}
    entries = entries_of(part, operator_name)
    for entry in entries:
        operator, kernel = entry.loaded
        missing = {s.name for s in operator.inputs(workload)} - shared.keys()
        edge = operator.constants.get("block") if "gridquant" in operator.name else None
        if missing or edge != shared.get("edge"):
            kept = {"edge": edge, **operands(operator, workload)}
            shared = kept if edge is not None else {**kept, **shared}
        held = {s.name: shared[s.name] for s in operator.inputs(workload)}
        if (found := shop.best(entry, workload, held)) is not None:
            calls[entry.label], picks[entry.label], notes[entry.label] = found
            chosen[entry.label] = (kernel, found[1])
    calls |= peers_of(part, workload, chosen, shared)
    times = shop.bench.compare(calls)
    by_label = {entry.label: entry.loaded[0] for entry in entries}
    for label, entry_times in times.items():
        known = by_label.get(label)
        if known is not None:
            entry_times["gbytes_per_s"] = known.bytes(workload) / entry_times["seconds"] * 1e-9
            entry_times["tflops"] = known.flops(workload) / entry_times["seconds"] * 1e-12
    if "copy" in times:
        rate = 4e-9 * workload.dims["M"] * workload.dims["K"] / times["copy"]["seconds"]
        for entry_times in times.values():
            if "gbytes_per_s" in entry_times:
                entry_times["of_copy"] = entry_times["gbytes_per_s"] / rate
    torch.cuda.empty_cache()
    return {
        "operator": operator_name,
        "workload": workload.id,
        "dims": dict(workload.dims),
        "contenders": times,
        "ratios": ratios(times),
        "points": picks,
        "gates": notes,
    }


def child(args: argparse.Namespace) -> None:
    """The parts, in this process."""
    shop = Shop(args)
    told = stamp("python -m experiments.studies.h200.mx " + " ".join(args.parts))
    for part in args.parts:
        path = args.out / f"h200_mx_{part}.json"
        entries = json.loads(path.read_text())["entries"] if path.is_file() else []
        edges = {}
        for name in dict.fromkeys(operator for operator, _ in shapes_of(part)):
            for entry in entries_of(part, name):
                edges[entry.label] = guarded(f"edges of {entry.label}", lambda e=entry: shop.on_edges(e))
        say(f"{part} gates on small inputs, worst: {worst(edges)}")
        for operator, workload in shapes_of(part):
            if any(e["workload"] == workload.id and e["operator"] == operator for e in entries):
                continue
            if time.time() > args.deadline:
                say(f"{part} {workload.id}: not reached in time")
                continue
            entries.append(measured(part, operator, workload, shop))
            path.write_text(json.dumps({"part": part, **told, "edges": edges, "entries": entries}, indent=1))
            say(line(part, workload, entries[-1]))


def worst(edges: Mapping[str, Mapping[str, float | None] | None]) -> str:
    """Per kernel the lowest reading of agreement, the most mismatches, or the lowest SNR in dB."""
    shown = []
    for label, found in edges.items():
        values = [v for v in (found or {}).values() if v is not None]
        exact = any(name.endswith(" bits") for name in found or {})
        shown.append(f"{label} {max(values) if exact else min(values):.6g}" if values else f"{label} none")
    return "; ".join(shown)


def line(part: str, workload: Workload, entry: Mapping[str, Any]) -> str:
    """One shape in words."""
    shown = [
        f"{name} {found['seconds'] * 1e6:.1f} us"
        + (f" ({found['of_copy']:.3f} of copy)" if "of_copy" in found else "")
        for name, found in entry["contenders"].items()
    ]
    ratio = [f"{name} {value:.3f}" for name, value in entry["ratios"].items()]
    return f"{part} {workload.id} (measured): " + ", ".join(shown) + " | " + ", ".join(ratio)


def warmed(parts: Sequence[str]) -> None:
    """Compiles what ``torch.compile`` will be asked for, so that the measuring child finds it in Inductor's cache."""
    torch.set_default_device("cuda")
    for part in parts:
        for _, workload in shapes_of(part):
            dims = workload.dims
            if part in FORMS:
                x = torch.zeros(dims["M"], dims["K"], dtype=torch.bfloat16)
                guarded("torchao", lambda x=x, part=part: peers.compiled_mx(x, FORMS[part]))
            elif part in ("normal", "grouped"):
                guarded("quantise", lambda d=dims: peers.compiled_quantise(d["M"], d["N"]))
