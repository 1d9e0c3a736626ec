"""mx_cast, gridquant and gemm_mxfp8_out on one GPU, side by side with a device copy and with compiled peers.

    python -m experiments.benchmarks.mx_h200 --out results --what cast grid product mxout

Per shape every contender runs in the same process on the same random data, in rounds of reversed order with a flushed
L2 (``fp8_step.Bench``); each of our kernels first picks its parameters in a short comparison of its own. Outputs are
held to the operator's gates on a sample before anything is timed; what fails is left out and said. Everything printed
is measured on the device named in the result.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton

from evolve.space import Space
from experiments.benchmarks.fp8_step import Bench, say
from fitness.gates import failure, read_gates
from seeds.catalogue import load_operator
from seeds.operator import Operator, SeedKernel, Workload
from seeds.sampled import TABLE
from workers.runners.triton_common import bits_of, to_numpy, to_torch

Call = Callable[[], Any]
Tensors = dict[str, torch.Tensor]

GENES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "cast8": {"block_m": (32, 64, 128), "block_k": (64, 128, 256), "num_warps": (4, 8)},
    "two_pass": {"sub_m": (32, 64), "sub_k": (128, 256), "num_warps": (8, 16)},
    "whole": {"num_warps": (16, 32)},
    "persistent": {"block_m": (64, 128), "scaling": ("step", "boundary", "ratio"), "num_stages": (3, 4)},
    "splitk": {"block_m": (16, 64), "split": (2, 4, 8), "num_stages": (3, 4)},
    "fused": {"block_m": (64, 128), "skew": (False, True), "num_stages": (3, 4)},
    "unfused": {"block_m": (64, 128), "skew": (False, True), "num_stages": (3, 4)},
}
"""What each kernel picks from, per shape."""


class Held:
    """Elements of tensors on the device, for ``Sampled.sample``."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def at(self, operand: str, *axes: np.ndarray) -> np.ndarray:
        """The elements where these indices along each axis cross."""
        tensor = self._tensors[operand]
        raw = tensor.view(bits_of(tensor))
        for axis, index in enumerate(axes):
            raw = raw.index_select(axis, torch.from_numpy(index.copy()).to(raw.device))
        return to_numpy(raw.contiguous().view(tensor.dtype))


def operands(operator: Operator, workload: Workload) -> Tensors:
    """Random operands on the device, drawn from the operator's own tables."""
    tables: Mapping[str, np.ndarray] = operator.tables()  # type: ignore[attr-defined]
    found = {}
    for spec in operator.inputs(workload):
        values = to_torch(tables[spec.name], "cuda")
        index = torch.randint(TABLE, spec.shape, device="cuda", dtype=torch.int32)
        found[spec.name] = values.view(bits_of(values))[index].view(values.dtype)
    return found


def module_of(kernel: SeedKernel, modules: dict[str, ModuleType]) -> ModuleType:
    """The kernel as a module, loaded once."""
    if kernel.source not in modules:
        path = Path(tempfile.mkdtemp()) / f"{kernel.name}.py"
        path.write_text(kernel.source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"seed_{len(modules)}", path)
        assert spec is not None and spec.loader is not None
        modules[kernel.source] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[kernel.source])
    return modules[kernel.source]


def objection(operator: Operator, workload: Workload, held: Tensors, call: Call, seed: int) -> str | None:
    """Why the outputs of one call do not pass the operator's gates on a sample; None if they do."""
    sample = operator.sample(workload, Held(held), np.random.default_rng(seed))  # type: ignore[attr-defined]
    try:
        names = [spec.name for spec in operator.outputs(workload)]
        outputs = Held(dict(zip(names, call(), strict=True)))
    except RuntimeError as error:
        return str(error).splitlines()[0][:120]
    seen = {name: outputs.at(name, *where) for name, where in sample.where.items()}
    return failure(read_gates(operator.gates, seen, sample.references, "a sample"), operator.gates)


class Picker:
    """Chooses parameters of seed kernels per shape, among those that pass."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self._short = Bench(2, 2, bench.flush)
        self._seed = seed
        self._modules: dict[str, ModuleType] = {}

    def best(
        self, operator: Operator, name: str, workload: Workload, held: Tensors
    ) -> tuple[Call, dict] | None:
        """The fastest legal point of ``GENES`` whose sample passes the gates (a baseline's is not asked), or None."""
        kernel = operator.kernels[name]
        names = {**operator.constants, **workload.dims, "smem_bytes": 232448, "multiprocessors": 132}
        space = Space.from_source(kernel.source, [names])
        start = {**space.defaults, **kernel.overrides}
        genes = GENES[name]
        calls: dict[str, Call] = {}
        points: dict[str, dict] = {}
        for values in itertools.product(*genes.values()):
            point = {**start, **dict(zip(genes, values, strict=True))}
            if space.violations(point):
                continue
            module = module_of(kernel, self._modules)
            call = lambda module=module, point=point: module.launch(dict(held), point)  # noqa: E731
            wrong = None if kernel.baseline else objection(operator, workload, held, call, self._seed)
            if wrong is None:
                calls[str(values)], points[str(values)] = call, point
            else:
                say(f"  {operator.name} {name} {values} is left out: {wrong}")
        if not calls:
            return None
        found = self._short.compare(calls)
        fastest = min(found, key=lambda key: found[key]["seconds"])
        return calls[fastest], points[fastest]


def compared(
    bench: Bench,
    picker: Picker,
    entries: Sequence[tuple[str, str, str]],
    workload: Workload,
    extra: Mapping[str, Call],
) -> dict[str, Any]:
    """Contenders (label, operator, kernel) on one shape and on the same data, with ``extra`` calls beside them."""
    calls: dict[str, Call] = dict(extra)
    picks, rates = {}, {}
    shared: Tensors = {}
    for label, operator_name, kernel in entries:
        operator = load_operator(operator_name)
        held = {n: shared.setdefault(n, t) for n, t in operands(operator, workload).items()}
        if (found := picker.best(operator, kernel, workload, held)) is not None:
            calls[label], picks[label] = found
            rates[label] = {"bytes": operator.bytes(workload), "flops": operator.flops(workload)}
    times = bench.compare(calls)
    for label, entry in times.items():
        if label in rates:
            entry["gbytes_per_s"] = rates[label]["bytes"] / entry["seconds"] * 1e-9
            entry["tflops"] = rates[label]["flops"] / entry["seconds"] * 1e-12
    return {"workload": workload.id, "dims": dict(workload.dims), "contenders": times, "points": picks}


def copied(m: int, k: int) -> tuple[Call, int]:
    """A device copy of a bf16 matrix, and the bytes it moves."""
    x, y = torch.empty(m, k, dtype=torch.bfloat16), torch.empty(m, k, dtype=torch.bfloat16)
    return (lambda: y.copy_(x)), 4 * m * k


def compiled_mx(m: int, k: int) -> dict[str, Call]:
    """torchao's cast, compiled, where it is installed."""
    if importlib.util.find_spec("torchao") is None:
        return {}
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    x = torch.randn(m, k, dtype=torch.bfloat16)
    cast = torch.compile(lambda t: to_mx(t, torch.float8_e4m3fn, 32), fullgraph=True)
    cast(x)
    return {"torchao to_mx, compiled": lambda: cast(x)}


def matrix(bench: Bench, picker: Picker, workload: Workload, what: str) -> dict[str, Any]:
    """Casts or 2D quantisers beside a copy: every rate as a share of the copy's."""
    m, k = workload.dims["M"], workload.dims["K"]
    copy, moved = copied(m, k)
    entries = {
        "cast": [
            *((f"dim0 {rule}", f"mx_cast/mxfp8_{rule}", "cast8") for rule in ("floor", "rceil")),
            ("dim1", "mx_cast/mxfp8_dim1", "cast8"),
            ("dim0 + dim1, one read", "mx_cast/mxfp8_both", "cast8"),
            ("dim0 + swizzle", "mx_cast/mxfp8_swizzled", "cast8"),
        ],
        "grid": [
            (f"{kernel} {edge}", f"gridquant/quant_{edge}", kernel)
            for edge in (256, 128)
            for kernel in ("two_pass", "whole")
        ],
    }[what]
    found = compared(
        bench, picker, entries, workload, {"copy": copy, **(compiled_mx(m, k) if what == "cast" else {})}
    )
    times = found["contenders"]
    rate = moved / times["copy"]["seconds"]
    for entry in times.values():
        if "gbytes_per_s" in entry:
            entry["of_copy"] = entry["gbytes_per_s"] * 1e9 / rate
    ratios = {
        "two launches over one read": (("dim0 floor", "dim1"), "dim0 + dim1, one read"),
        "cast + swizzle over the cast": (("dim0 + swizzle",), "dim0 floor"),
        "whole over two_pass, 256": (("whole 256",), "two_pass 256"),
    }
    for name, (above, below) in ratios.items():
        if all(label in times for label in (*above, below)):
            found[name] = sum(times[label]["seconds"] for label in above) / times[below]["seconds"]
    return found


def product(bench: Bench, picker: Picker, workload: Workload, what: str) -> dict[str, Any]:
    """Products: persistent beside split-K, or fused beside unfused quantisation of the output."""
    if what == "product":
        entries = [
            (f"{k} {e}", f"gridquant/gemm_{e}", k) for e in (256, 128) for k in ("persistent", "splitk")
        ]
    else:
        groups = int(workload.id.split("g/")[0]) if "g/" in workload.id else 0
        name = f"gemm_mxfp8_out/grouped{groups}" if groups else "gemm_mxfp8_out/normal"
        entries = [(kernel, name, kernel) for kernel in ("fused", "unfused")]
    return compared(bench, picker, entries, workload, {})


def workloads_of(what: str, sizes: int | None) -> list[Workload]:
    """The published shapes of a part, the first ``sizes`` of each suite."""
    suites = {
        "cast": [("mx_cast/mxfp8_floor", "cast")],
        "grid": [("gridquant/quant_256", "published")],
        "product": [("gridquant/gemm_256", "few-rows"), ("gridquant/gemm_256", "squares")],
        "mxout": [
            ("gemm_mxfp8_out/normal", "motif-normal"),
            *((f"gemm_mxfp8_out/grouped{n}", "motif-grouped") for n in (4, 8, 48)),
        ],
    }[what]
    return [w for name, suite in suites for w in load_operator(name).suites[suite].workloads[:sizes]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--what", nargs="+", choices=["cast", "grid", "product", "mxout"], default=["cast"])
    parser.add_argument("--sizes", type=int, help="only the first so many shapes of each suite")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--calls", type=int, default=3)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_default_device("cuda")
    bench = Bench(args.rounds, args.calls, torch.empty(64 << 20, dtype=torch.int32))
    picker = Picker(bench, int(datetime.now(UTC).timestamp()))
    for what in args.what:
        stamp = {
            "what": what,
            "kind": "measured",
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "command": " ".join(["python -m experiments.benchmarks.mx_h200", *sys.argv[1:]]),
        }
        entries = []
        for workload in workloads_of(what, args.sizes):
            entries.append((matrix if what in ("cast", "grid") else product)(bench, picker, workload, what))
            torch.cuda.empty_cache()
            shown = ", ".join(
                f"{name} {entry['seconds'] * 1e6:.1f} us"
                + (f" ({100 * entry['of_copy']:.0f} % of copy)" if "of_copy" in entry else "")
                for name, entry in entries[-1]["contenders"].items()
            )
            say(f"{what} {workload.id} (measured): {shown}")
            text = json.dumps({**stamp, "entries": entries}, indent=1)
            (args.out / f"h200_mx_{what}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
