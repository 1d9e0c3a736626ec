"""Compiles settings of one kernel for a chip that is not there, one after the other, and keeps its events.

Run as ``python child.py JOB.json`` in an empty folder with folders ``llo`` and ``prof``, LIBTPU_INIT_ARGS set by the
parent. ``JOB``: ``root`` (of this repository), ``chip``, ``module`` (the kernel's file), ``block`` (of the scales; 0:
one a column), ``types``, ``settings`` [{``key``, ``shape`` (n_batch, n_out, n_in), ``blocks``}], ``out`` (folder for a
``KEY.json`` of each). Each in a process of its own: the simulator may abort.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

LIMIT = 120
"""Seconds of one setting."""


def main(job: dict[str, Any]) -> None:
    sys.path.insert(0, job["root"])
    from tilewright.fitness.chips import CHIPS
    from tilewright.workers.intake.pallas.original import on_chip
    from tilewright.workers.intake.source.load import load

    chip = CHIPS[job["chip"]]
    with on_chip({"kind": chip.device_kind, "cores": chip.cores}):
        module, _ = load(Path(job["module"]), "quantized_matmul_kernel", traced=False)
        for setting in job["settings"]:
            for name in ("llo", "prof"):
                shutil.rmtree(name)
                Path(name).mkdir()
            if not (pid := os.fork()):
                _answer(module, setting, {**job, "topology": chip.topology})
            os.waitpid(pid, 0)
            kept = Path(job["out"], f"{setting['key']}.json")
            if not kept.exists():
                said = Path("said").read_text(errors="replace").splitlines()
                reason = next((line for line in said if "failed:" in line), "no answer")
                kept.write_text(json.dumps({"failure": f"abort: {reason[-200:]}"}))


def _answer(module: Any, setting: dict[str, Any], job: dict[str, Any]) -> None:
    signal.alarm(LIMIT)
    with open("said", "w") as said:
        os.dup2(said.fileno(), 2)
    try:
        told = read(compiled(module, setting, job))
    except Exception as error:  # noqa: BLE001 - what the kernel or the compiler raises is the answer
        told = {"failure": f"{type(error).__name__}: {error}".replace("\n", " ")[:300]}
    Path("answer").write_text(json.dumps(told))
    Path("answer").replace(f"{job['out']}/{setting['key']}.json")
    os._exit(0)


def compiled(module: Any, setting: dict[str, Any], job: dict[str, Any]) -> str:
    """Compile one setting; the optimised module."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.experimental.layout import Format, Layout
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rows, columns, depth = setting["shape"]
    x_type, w_type = map(jnp.dtype, job["types"])
    scales = (depth // job["block"], 1, columns) if job["block"] else (columns,)
    kinds = [((rows, depth), jnp.bfloat16), ((columns, depth), w_type), (scales, jnp.float32)]
    options = {"block_size": job["block"]} if job["block"] else {}
    options |= {"x_q_dtype": x_type, "tuned_value": module.TunedValue(*setting["blocks"])}
    device = topologies.get_topology_desc(platform="tpu", topology_name=job["topology"]).devices[0]
    layout: Any = Format(Layout.AUTO, NamedSharding(Mesh([device], ("x",)), PartitionSpec()))

    def call(*operands: Any) -> Any:
        return module.quantized_matmul_kernel(*operands, **options)

    jitted = jax.jit(call, in_shardings=(layout,) * 3, out_shardings=layout)
    traced = jitted.trace(*(jax.ShapeDtypeStruct(*kind) for kind in kinds))
    return str(traced.lower(lowering_platforms=("tpu",)).compile().as_text())


def read(text: str) -> dict[str, Any]:
    """The kernel's events."""
    from experiments.studies.tpu.truth.child import kernels_of
    from tilewright.fitness.tpu.events import read_events
    from tilewright.fitness.tpu.llo import read_profile
    from tilewright.fitness.tpu.timeline import read_critical_path

    (name,) = kernels_of(text)
    (path,) = (p for p in Path("prof").glob("*_static_llo_profile.textproto") if p.name.startswith(name))
    cycles = read_profile(path.read_text(errors="replace")).cycles
    critical = read_critical_path(Path(f"prof/{name}_critical_path.txt").read_bytes(), cycles)
    events = read_events(Path(f"prof/{name}_bundles.txt").read_bytes(), critical, cycles)
    return {"failure": "", **{field: values.tolist() for field, values in vars(events).items()}}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
