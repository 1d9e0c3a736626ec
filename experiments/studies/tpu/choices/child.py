"""Compiles settings of one kernel for a chip that is not there, one after the other, and keeps what each step costs.

Run as ``python child.py JOB.json`` in an empty folder with folders ``llo`` and ``prof``, LIBTPU_INIT_ARGS set by the
parent. ``JOB``: ``root`` (of this repository), ``chip``, ``topology``, ``kind``, ``cores``, ``module`` (the kernel's
file), ``block`` (of the scales; 0: one a column), ``settings`` [{``key``, ``shape`` (n_batch, n_out, n_in), ``blocks``,
``types``}]. Writes ``KEY.json`` for each: what ``steps.Simulated`` holds. An abort of the simulator ends the child; the
parent sees which is missing.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any


def main(job: dict[str, Any]) -> None:
    sys.path.insert(0, job["root"])
    from tilewright.workers.intake.pallas.original import on_chip
    from tilewright.workers.intake.source.load import load

    with on_chip({"kind": job["kind"], "cores": job["cores"]}):
        module, _ = load(Path(job["module"]), "quantized_matmul_kernel", traced=False)
        for setting in job["settings"]:
            for name in ("llo", "prof"):
                shutil.rmtree(name)
                Path(name).mkdir()
            Path(setting["key"] + ".started").touch()
            told = simulated(module, setting, job)
            part = Path(setting["key"] + ".part")
            part.write_text(json.dumps(told))
            part.rename(setting["key"] + ".json")


def simulated(module: Any, setting: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Terms of one setting, or ``failure`` in one line."""
    try:
        text = compiled(module, setting, job)
        return read(text)
    except Exception as error:  # noqa: BLE001 - whatever the kernel or the compiler raises is the answer
        return {"failure": f"{type(error).__name__}: {error}".replace("\n", " ")[:300]}


def compiled(module: Any, setting: dict[str, Any], job: dict[str, Any]) -> str:
    """Compile one setting; the optimised module."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.experimental.layout import Format, Layout
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rows, columns, depth = setting["shape"]
    x_type, w_type = map(jnp.dtype, setting["types"])
    scales = (depth // job["block"], 1, columns) if job["block"] else (columns,)
    shapes = [
        jax.ShapeDtypeStruct((rows, depth), jnp.bfloat16),
        jax.ShapeDtypeStruct((columns, depth), w_type),
        jax.ShapeDtypeStruct(scales, jnp.float32),
    ]
    tuned = module.TunedValue(*setting["blocks"])
    options = {"block_size": job["block"]} if job["block"] else {}

    def call(x: Any, w: Any, scale: Any) -> Any:
        return module.quantized_matmul_kernel(x, w, scale, x_q_dtype=x_type, tuned_value=tuned, **options)

    device = topologies.get_topology_desc(platform="tpu", topology_name=job["topology"]).devices[0]
    layout: Any = Format(Layout.AUTO, NamedSharding(Mesh([device], ("x",)), PartitionSpec()))
    jitted = jax.jit(call, in_shardings=(layout,) * 3, out_shardings=layout)
    return str(jitted.trace(*shapes).lower(lowering_platforms=("tpu",)).compile().as_text())


def read(text: str) -> dict[str, Any]:
    """The kernel's events, and its VMEM in bytes."""
    from experiments.studies.tpu.truth.child import kernels_of
    from tilewright.fitness.tpu.events import read_events
    from tilewright.fitness.tpu.llo import read_profile, vmem_bytes
    from tilewright.fitness.tpu.timeline import read_critical_path

    (name,) = kernels_of(text)
    (path,) = (p for p in Path("prof").glob("*_static_llo_profile.textproto") if p.name.startswith(name))
    profile = read_profile(path.read_text(errors="replace"))
    critical = read_critical_path(Path(f"prof/{name}_critical_path.txt").read_bytes(), profile.cycles)
    events = read_events(Path(f"prof/{name}_bundles.txt").read_bytes(), critical, profile.cycles)
    originals = [p.read_text(errors="replace") for p in Path("llo").glob(f"*{name}*original.txt")]
    told = {field: values.tolist() for field, values in vars(events).items()}
    return {"failure": "", "cycles": profile.cycles, "vmem": vmem_bytes(originals), **told}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
