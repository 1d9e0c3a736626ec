"""The library on a GPU: promote what campaigns found, run the generated tests, measure what using it costs and gives.

    python -m experiments.studies.h200.library --out results --library library [--recorded gemm_nt HOME CAMPAIGN]

Parts, each recorded in ``library_h200.json`` as soon as it is done, failures included:
    promote   campaigns of the six blockwise operators (short ones, but for those named by --recorded), promoted
    verify    ``tilewright library verify --files`` and every generated test on the GPU
    overhead  host time of the look-up, of a call of the op, and of the kernels it launches
    compile   torch.compile(fullgraph=True), forward and backward, against eager
    graphs    a CUDA graph of forward and backward, against eager, and its time
    mlp       ``examples/mlp_fp8_torch.py``: loss curves and step times of FP8 and bf16
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from experiments.studies.records.say import say
from testkit import ROOT

FAMILY = "gemm_fp8_blockwise"
CAMPAIGNS: dict[str, tuple[tuple[str, ...], int]] = {
    "gemm_nt": (("gluon_ws", "gluon_skew"), 24),
    "gemm_nt_rows": (("gluon_skew", "gluon_ws"), 12),
    "quant_dual": (("quant_dual_tma", "quant_dual"), 8),
    "quant_128x128_dual": (("quant_blocks_dual",), 6),
    "quant_1x128": (("quant_rows",), 6),
    "quant_128x128": (("quant_blocks",), 4),
}
"""Recipe to the seeds of its short campaign and the evaluations it may spend."""

SHAPE = (8192, 4096, 4096)
"""M, N, K of the calls that are timed."""

MLP = ("--device", "cuda", "--width", "4096", "--hidden", "11008", "--tokens", "8192", "--steps", "40")


def command(arguments: list[str], seconds: float, **environment: str) -> dict[str, Any]:
    """Run a program of this checkout; its exit code, wall seconds and the end of what it said."""
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, said = 124, f"took longer than {seconds:.0f} s"
    return {"code": code, "seconds": time.perf_counter() - began, "said": said[-20_000:]}


# -- promote and verify ------------------------------------------------------------------------------


def promote(args: argparse.Namespace) -> dict[str, Any]:
    """One campaign and one promotion for each recipe that the library does not have yet."""
    found = {}
    recorded = {recipe: (Path(home), campaign) for recipe, home, campaign in args.recorded}
    for recipe in args.recipes:
        seeds, evaluations = CAMPAIGNS[recipe]
        home, campaign = args.out / "home", f"{recipe.replace('_', '-')}-001"
        entry: dict[str, Any] = {}
        if recipe in recorded:
            home, campaign = recorded[recipe]
        else:
            file = args.out / f"{campaign}.yaml"
            file.write_text(yaml.safe_dump(short_campaign(recipe, seeds, evaluations)))
            entry["campaign"] = command(
                ["-m", "tilewright.evolve.cli", "--home", str(home), "run", str(file)], args.campaign_seconds
            )
        options = ["--home", str(home), "promote", campaign, "--library", str(args.library)]
        if len(seeds) == 1:  # there may be nothing faster, and the library needs one
            options += ["--force-reason", "the only kernel of its operator"]
        entry["promotion"] = command(["-m", "tilewright.evolve.cli", *options], args.promote_seconds)
        last = entry["promotion"]["said"].strip().splitlines()[-3:]
        say(f"{recipe}: " + " | ".join(last))
        found[recipe] = entry
    return found


def short_campaign(recipe: str, seeds: tuple[str, ...], evaluations: int) -> dict[str, Any]:
    return {
        "name": recipe.replace("_", "-"),
        "operator": f"{FAMILY}/{recipe}",
        "target": "h200",
        "suite": "primus-core",
        "seeds": list(seeds),
        "budget": {"evaluations": evaluations, "wall_seconds": 120},
        "search": {"proposers": ["surrogate", "parameters"], "lag": 12},
        "workers": {"count": 6, "check_seconds": 60, "measure_seconds": 90},
        "mlflow": {"enabled": False},
    }


def verify(args: argparse.Namespace) -> dict[str, Any]:
    """Files against receipts, then every generated test with the GPU in sight."""
    found = {
        "files": command(
            ["-m", "tilewright.evolve.cli", "library", "verify", "--files", "--library", str(args.library)],
            120,
        )
    }
    for index in sorted((args.library / "tilewright_library" / "kernels").glob("*/*/index.json")):
        current = json.loads(index.read_text())["current"]
        test = index.parent / "versions" / str(current) / "test_promoted.py"
        name = "/".join(index.parent.parts[-2:])
        found[name] = command([str(test)], 300)
        say(f"{name}: exit code {found[name]['code']}; {found[name]['said'].strip().splitlines()[-1:]}")
    return found


# -- using it ----------------------------------------------------------------------------------------


def operands() -> tuple[Any, Any, Any]:
    import torch

    m, n, k = SHAPE
    return tuple(torch.randn(*s, dtype=torch.bfloat16, device="cuda") for s in ((m, k), (n, k), (m, n)))


def step(function: Callable[..., Any], x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    import torch

    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = function(x, w)
    return (y.detach(), *torch.autograd.grad(y, (x, w), dy))


def host_seconds(call: Callable[[], Any], count: int = 50) -> float:
    """Median seconds the host spends on a call while the device is busy with something else."""
    import torch

    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    return statistics.median(times)


def device_seconds(call: Callable[[], Any], count: int = 30) -> float:
    """Median seconds between device events around a call, launches hidden behind a spinning kernel."""
    import torch

    times = []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(4_000_000)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of host time, median: look-up alone, the op (three kernels), the same kernels without it."""
    import torch
    from tilewright_library import gemm_fp8_blockwise, store, torch_ops

    x, w, _ = operands()
    m, n, k = SHAPE
    with torch.no_grad():
        gemm_fp8_blockwise(x, w)
        whole = host_seconds(lambda: gemm_fp8_blockwise(x, w))
        chosen = {name: torch_ops._CHOSEN[name, dims, x.device] for name, dims in direct_dims()}

        def direct() -> Any:
            a, b = chosen["quant_1x128"]({"x": x}), chosen["quant_128x128"]({"x": w})
            return chosen["gemm_nt"]({"a_q": a[0], "a_s": a[1], "b_q": b[0], "b_s": b[1]})

        alone = host_seconds(direct)
    torch_ops._CHOSEN["nothing", SHAPE, x.device] = lambda inputs: ()
    inputs, count = {"x": x}, 100_000
    began = time.perf_counter()
    for _ in range(count):
        torch_ops.run("nothing", SHAPE, inputs)
    lookup = (time.perf_counter() - began) / count
    key = torch_ops.device_key(x.device)
    served = {name: store.served(f"{FAMILY}/{name}", key, dims) for name, dims in direct_dims()}
    served["gemm_nt_rows"] = store.served(f"{FAMILY}/gemm_nt_rows", key, (n, k, m))
    served["quant_dual"] = store.served(f"{FAMILY}/quant_dual", key, (m, k))
    served["quant_128x128_dual"] = store.served(f"{FAMILY}/quant_128x128_dual", key, (n, k))
    return {
        "lookup": lookup,
        "op": whole,
        "kernels": alone,
        "op_less_kernels": whole - alone,
        "served": served,
    }


def direct_dims() -> list[tuple[str, tuple[int, ...]]]:
    m, n, k = SHAPE
    return [("gemm_nt", (m, n, k)), ("quant_1x128", (m, k)), ("quant_128x128", (n, k))]


def compiled(args: argparse.Namespace) -> dict[str, Any]:
    """Whether a compiled layer gives eager's bits, forward and backward, in one graph, and both device times."""
    import torch
    import torch.nn.functional as F
    from tilewright_library import gemm_fp8_blockwise

    x, w, dy = operands()

    def layer(x: Any, w: Any) -> Any:
        return F.silu(gemm_fp8_blockwise(x, w))

    fast = torch.compile(layer, fullgraph=True)
    eager, traced = step(layer, x, w, dy), step(fast, x, w, dy)
    close = [
        float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(traced, eager, strict=True)
    ]
    return {
        "relative_difference": dict(zip(("y", "dx", "dw"), close, strict=True)),
        "eager_seconds": device_seconds(lambda: step(layer, x, w, dy)),
        "compiled_seconds": device_seconds(lambda: step(fast, x, w, dy)),
        "kind": "measured",
    }


def graphs(args: argparse.Namespace) -> dict[str, Any]:
    """A captured step gives eager's bits on new inputs; device seconds of FP8 and bf16 steps, captured and eager."""
    import torch
    import torch.nn.functional as F
    from tilewright_library import gemm_fp8_blockwise

    found: dict[str, Any] = {"kind": "measured", "shape": SHAPE}
    x, w, dy = operands()
    for name, product in (("fp8", gemm_fp8_blockwise), ("bf16", F.linear)):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(product, x, w, dy)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = step(product, x, w, dy)
        fresh = operands()
        for old, new in zip((x, w, dy), fresh, strict=True):
            old.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        wanted = step(product, *fresh)
        found[name] = {
            "equal": all(bool((a == b).all()) for a, b in zip(held, wanted, strict=True)),
            "graph_seconds": device_seconds(graph.replay),
            "eager_seconds": device_seconds(lambda product=product: step(product, x, w, dy)),
            "eager_host_seconds": host_seconds(lambda product=product: step(product, x, w, dy), 20),
            "graph_host_seconds": host_seconds(graph.replay, 20),
        }
    found["graph_ratio"] = found["bf16"]["graph_seconds"] / found["fp8"]["graph_seconds"]
    return found


def mlp(args: argparse.Namespace) -> dict[str, Any]:
    """The example, eager and compiled."""
    found = {}
    for name, more in (("eager", ()), ("compiled", ("--compile",))):
        ran = command(
            ["examples/mlp_fp8_torch.py", *MLP, *more, "--json"], 240, PYTHONPATH=str(args.library.resolve())
        )
        begins = ran["said"].find('{"device"')
        if ran["code"] == 0 and begins >= 0:
            ran, _ = json.JSONDecoder().raw_decode(ran["said"][begins:])
        found[name] = ran
    return found


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "promote": promote,
    "verify": verify,
    "overhead": overhead,
    "compile": compiled,
    "graphs": graphs,
    "mlp": mlp,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--library", type=Path, default=Path("library"))
    parser.add_argument(
        "--recorded",
        nargs=3,
        action="append",
        default=[],
        metavar=("RECIPE", "HOME", "CAMPAIGN"),
        help="a finished campaign to promote instead of a short one",
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--recipes", nargs="+", choices=list(CAMPAIGNS), default=list(CAMPAIGNS))
    parser.add_argument("--campaign-seconds", type=float, default=200.0)
    parser.add_argument("--promote-seconds", type=float, default=300.0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(args.library.resolve()))
    path = args.out / "library_h200.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for part in args.parts:
        say(f"== {part}")
        try:
            found[part] = {**(found.get(part) or {}), **PARTS[part](args)}
        except Exception as error:  # noqa: BLE001 - whatever fails is recorded, and the next part runs
            found[part] = {"failed": f"{type(error).__name__}: {error}"[:2000]}
        path.write_text(json.dumps(found, indent=1))
        say(json.dumps(found[part])[:1500])


if __name__ == "__main__":
    main()
