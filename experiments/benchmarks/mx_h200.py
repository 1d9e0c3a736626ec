"""mx_cast, gridquant and gemm_mxfp8_out on one GPU, side by side with a device copy and with compiled peers.

    python -m experiments.benchmarks.mx_h200 --out results --parts cast turned grid few-rows squares normal grouped

Every point of ``mx_points`` is first compiled by many processes without the GPU. Then one child runs the parts, shape
by shape: each of our kernels, baselines included, picks its point in a short comparison, and the picks, the seeds' own
points and the peers are timed on the same random data in rounds of reversed order with a flushed L2
(``fp8_step.Bench``). What is timed was held to the operator's gates on a sample. A child that is silent for a minute is
killed and started again after what it was at. Everything printed is measured on the device named in the result.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from experiments.benchmarks.mx_points import Entry, Point, compiled_ahead
from seeds.catalogue import load_operator
from seeds.operator import Operator, SeedKernel, Workload
from seeds.sampled import TABLE

Call = Callable[[], Any]

SILENCE_SECONDS = 60.0
"""After so long without a line the child is taken to hang."""

GROUPED = (4, 8, 48)

PARTS: Mapping[str, tuple[tuple[str, str, int], ...]] = {
    "cast": (("mx_cast/mxfp8_floor", "cast", 2),),
    "turned": (("mx_cast/mxfp8_both", "cast", 2),),
    "grid": (("gridquant/quant_256", "published", 7),),
    "few-rows": (("gridquant/gemm_256", "few-rows", 8),),
    "squares": (("gridquant/gemm_256", "squares", 3),),
    "normal": (("gemm_mxfp8_out/normal", "motif-normal", 6),),
    "grouped": tuple((f"gemm_mxfp8_out/grouped{n}", "motif-grouped", 2) for n in GROUPED),
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
        kernels = ("persistent", "splitk") if part == "few-rows" else ("persistent",)
        found = [Entry(f"{k} {e}", f"gridquant/gemm_{e}", k) for e in (256, 128) for k in kernels]
        own = [Entry(f"splitk {e}, own", f"gridquant/gemm_{e}", "splitk", tuned=False) for e in (256, 128)]
        return [*found, *(own if part == "few-rows" else [])]
    return [Entry(kernel, operator, kernel) for kernel in ("fused", "unfused", "fused_ws", "unfused_ws")]


class Held:
    """Elements of tensors on the device, for ``Sampled.sample``."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors

    def at(self, operand: str, *axes: np.ndarray) -> np.ndarray:
        """The elements where these indices along each axis cross."""
        import torch

        from workers.runners.triton_common import bits_of, to_numpy

        tensor = self._tensors[operand]
        raw = tensor.view(bits_of(tensor))
        for axis, index in enumerate(axes):
            raw = raw.index_select(axis, torch.from_numpy(index.astype(np.int64)).to(raw.device))
        return to_numpy(raw.contiguous().view(tensor.dtype))


def operands(operator: Operator, workload: Workload) -> dict[str, Any]:
    """Random operands on the device, drawn from the operator's own tables; groups in order, as sorted tokens are."""
    import torch

    from workers.runners.triton_common import bits_of, to_torch

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
        import torch

        from experiments.benchmarks.fp8_step import Bench

        torch.set_default_device("cuda")
        flush = torch.empty(64 << 20, dtype=torch.int32)
        self.bench, self._short = Bench(args.rounds, args.calls, flush), Bench(2, 2, flush)
        self._skipped = set(args.skip or [])
        self._modules: dict[str, ModuleType] = {}
        self._seed = int(time.time())

    def module(self, kernel: SeedKernel) -> ModuleType:
        """The kernel as a module, loaded once."""
        if kernel.source not in self._modules:
            path = Path(tempfile.mkdtemp()) / f"{kernel.name}.py"
            path.write_text(kernel.source, encoding="utf-8")
            spec = importlib.util.spec_from_file_location(f"seed_{len(self._modules)}", path)
            assert spec is not None and spec.loader is not None
            self._modules[kernel.source] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self._modules[kernel.source])
        return self._modules[kernel.source]

    def best(self, entry: Entry, workload: Workload, held: dict[str, Any]) -> tuple[Call, Point, dict] | None:
        """The fastest point that starts and whose sample passes the gates, and what was read of them; or None."""
        import torch

        operator, kernel = entry.loaded
        module = self.module(kernel)
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
        from fitness.gates import failure, read_gates

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
        import torch

        from fitness.gates import read_gates
        from workers.runners.triton_common import to_numpy, to_torch

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
                got = self.module(kernel).launch(given, points[0])
                outputs = {s.name: to_numpy(t) for s, t in zip(operator.outputs(workload), got, strict=True)}
                readings = read_gates(operator.gates, outputs, operator.oracle(workload, made), kind)
                found |= {f"{workload.id} {kind} {r.gate}": r.value for r in readings}
        return found


def checks_of(operator: Operator) -> list[Workload]:
    """The operator's small shapes, and one without tails for kernels that know none."""
    dims = {"M": 256, "K": 256, **({"N": 256} if "gemm" in operator.name else {})}
    (suite, *_) = operator.suites.values()
    return [*suite.check, Workload("check/256", dims)]


def calc_diff(operator: Operator, sample: Any, seen: Mapping[str, np.ndarray]) -> float:
    """1 - 2 <x, y> / (<x, x> + <y, y>) of dequantised outputs and the oracle's, in float64."""

    def values(found: Mapping[str, np.ndarray]) -> np.ndarray:
        scale = np.exp2(found["d_s"].astype(np.float64) - 127)
        return found["d"].astype(np.float64) * np.repeat(scale, 32, axis=1)

    x, y = values(seen), values(sample.references["mx"])
    return float(1 - 2 * (x * y).sum() / ((x * x).sum() + (y * y).sum()))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def guarded(what: str, make: Callable[[], Any]) -> Any:
    """What ``make`` gives, or None and a line when a peer cannot be made."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - a peer that does not work here is left out and said
        say(f"  no {what}: {type(error).__name__} {str(error).splitlines()[0][:140]}")
        return None


def peers_of(
    part: str, shop: Shop, workload: Workload, picks: Mapping[str, Any], held: dict
) -> dict[str, Call]:
    """Peers on the same data, by label."""
    from experiments.benchmarks import mx_peers as peers

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
                found[f"{label} product + compiled quantise"] = unfused(shop, picks[label], held, cast)
        vendor = found.get("cuBLAS 128 x 128, bf16 out")
        if cast is not None and vendor is not None:
            found["cuBLAS + compiled quantise"] = lambda: cast(vendor())
    return found


def unfused(shop: Shop, pick: tuple[SeedKernel, Point], held: dict, cast: Callable[[Any], Any]) -> Call:
    """The bf16 product at the picked point, then the compiled quantiser."""
    kernel, point = pick
    module = shop.module(kernel)
    extra = (held["a_q"].new_empty(0),) if "fused_ws" in kernel.name or kernel.name == "unfused_ws" else ()
    return lambda: cast(module.product(dict(held), point, *extra))


RATIOS = {
    "two launches over one read": (("dim0 floor", "dim1"), "dim0 + dim1"),
    "cast + swizzle over the cast": (("dim0 + swizzle",), "dim0 floor"),
    "torchao over ours, dim0": (("torchao to_mx floor, compiled",), "dim0 floor"),
    "whole over the best, 256": (("whole 256",), "best 256"),
    "split-K own over persistent, 256": (("splitk 256, own",), "persistent 256"),
    "split-K over persistent, 256": (("splitk 256",), "persistent 256"),
    "cuBLAS over persistent, 128": (("cuBLAS 128 x 128, bf16 out",), "persistent 128"),
    "unfused over fused": (("unfused",), "fused"),
    "unfused, compiled quantise over fused": (("unfused product + compiled quantise",), "fused"),
    "unfused_ws over fused_ws": (("unfused_ws",), "fused_ws"),
    "unfused_ws, compiled quantise over fused_ws": (("unfused_ws product + compiled quantise",), "fused_ws"),
}
"""Sums of seconds over seconds; a name of several kernels is the fastest of them."""

ALIASES = {
    "dim1": ("dim1, cast8", "dim1, cast8_tma"),
    "dim0 + dim1": ("dim0 + dim1, one read, cast8", "dim0 + dim1, one read, cast8_tma"),
    "best 256": ("two_pass 256", "held 256"),
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


def measured(part: str, operator_name: str, workload: Workload, shop: Shop) -> dict[str, Any]:
    """One shape: every contender's time, rate and point."""
    import torch

    calls: dict[str, Call] = {}
    picks, notes, chosen = {}, {}, {}
    shared: dict[str, Any] = {}
    for entry in entries_of(part, operator_name):
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
    calls |= peers_of(part, shop, workload, chosen, shared)
    times = shop.bench.compare(calls)
    by_label = {entry.label: entry.loaded[0] for entry in entries_of(part, operator_name)}
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
    import torch
    import triton

    shop = Shop(args)
    stamp = {
        "kind": "measured",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": "python -m experiments.benchmarks.mx_h200 " + " ".join(args.parts),
    }
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
            path.write_text(json.dumps({"part": part, **stamp, "edges": edges, "entries": entries}, indent=1))
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


def supervise(args: argparse.Namespace, command: Sequence[str]) -> None:
    """Runs the child, and again after a hang without the point that hung or, where none was tried, without the part."""
    parts, skip = list(args.parts), []
    while parts and time.time() < args.deadline:
        called = [*command, "--child", "--parts", *parts, *(a for s in skip for a in ("--skip", s))]
        process = subprocess.Popen(called, stdout=subprocess.PIPE, text=True, bufsize=1)
        at, hung = watch(process, args.deadline + SILENCE_SECONDS)
        if not hung and process.returncode == 0:
            return
        say(f"  child {'hung' if hung else 'died'} at: {at}")
        if at.startswith("@ ") and at[2:] not in skip and len(skip) < 6:
            skip.append(at[2:])
        else:
            parts = parts[1:]


def watch(process: subprocess.Popen[str], until: float) -> tuple[str, bool]:
    """Prints the child's lines but those of what it tries; its last line, and whether it was killed for silence."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for text in process.stdout:
            lines.put(text)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    at = ""
    while True:
        try:
            text = lines.get(timeout=max(0.0, min(SILENCE_SECONDS, until - time.time())))
        except queue.Empty:
            process.kill()
            process.wait()
            return at, True
        if not text:
            process.wait()
            return at, False
        if text.startswith("@ "):
            at = text.strip()
        else:
            at = "" if "(measured)" in text else at
            say(text.rstrip("\n"))


def warmed(parts: Sequence[str]) -> None:
    """Compiles what ``torch.compile`` will be asked for, so that the measuring child finds it in Inductor's cache."""
    import torch

    from experiments.benchmarks import mx_peers as peers

    torch.set_default_device("cuda")
    for part in parts:
        for _, workload in shapes_of(part):
            dims = workload.dims
            if part in FORMS:
                x = torch.zeros(dims["M"], dims["K"], dtype=torch.bfloat16)
                guarded("torchao", lambda x=x, part=part: peers.compiled_mx(x, FORMS[part]))
            elif part in ("normal", "grouped"):
                guarded("quantise", lambda d=dims: peers.compiled_quantise(d["M"], d["N"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=245.0, help="start no shape after so long")
    parser.add_argument("--processes", type=int, default=max(2, (os.cpu_count() or 4) - 2))
    parser.add_argument("--compile-only", action="store_true", help="compile every point and run nothing")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--skip", action="append", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.child or args.warm:
        (child(args) if args.child else warmed(args.parts))
        return
    args.deadline = time.time() + args.seconds
    cache = os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp(prefix="mx_h200_"))
    here = [sys.executable, "-m", "experiments.benchmarks.mx_h200"]
    warming = [p for p in args.parts if p in (*FORMS, "normal", "grouped")]
    warm = None
    if warming and not args.compile_only:
        warm = subprocess.Popen([*here, "--warm", "--out", str(args.out), "--parts", *warming])
    pairs = [
        (entry, workload)
        for part in args.parts
        for operator, workload in shapes_of(part)
        for entry in entries_of(part, operator)
    ]
    pairs += [
        (replace(e, tuned=False), w)
        for e in dict.fromkeys(e for e, _ in pairs)
        for w in checks_of(e.loaded[0])
    ]
    ahead = compiled_ahead(pairs, cache, args.processes, 0.45 * args.seconds)
    (args.out / "h200_mx_compiled.json").write_text(json.dumps(ahead, indent=1))
    say(f"compiled ahead: {ahead['points']} points, {len(ahead['failed'])} failed, {ahead['seconds']} s")
    if not args.compile_only:
        options = ("out", "rounds", "calls", "deadline")
        given = [text for name in options for text in (f"--{name}", str(getattr(args, name)))]
        if warm is not None:
            try:
                warm.wait(timeout=max(1.0, 0.5 * args.seconds - ahead["seconds"]))
            except subprocess.TimeoutExpired:
                warm.kill()
        supervise(args, [*here, *given])


if __name__ == "__main__":
    main()
