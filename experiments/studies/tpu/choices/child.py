"""Compiles settings of a kernel for a chip that is not there, one after the other, and keeps their events.

Run as ``python child.py JOB.json`` in an empty folder with folders ``llo`` and ``prof``, LIBTPU_INIT_ARGS set by the
parent. ``JOB``: ``root`` (of this repository), ``chip``, ``delays`` (whether to put delays into conditional blocks),
``module`` (the kernel's file), ``out`` (folder for a ``KEY.json`` of each setting), ``settings`` [{``key``, ``types``,
``shape`` (n_batch, n_out, n_in), ``blocks``}]. All in one process while the simulator does not abort.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

LIMIT = 90
"""Seconds of the processor for one setting."""

KERNEL = "quantized_matmul_kernel"


def main(job: dict[str, Any]) -> None:
    sys.path.insert(0, job["root"])
    from experiments.studies.tpu.truth import child as _  # noqa: F401 - imported once, before the processes part
    from tilewright.fitness.chips import CHIPS
    from tilewright.workers.intake.pallas.original import on_chip
    from tilewright.workers.intake.source.load import load
    from tilewright.workers.runners.mosaic import branch_delays as _delays  # noqa: F401

    chip, out = CHIPS[job["chip"]], Path(job["out"])
    with on_chip({"kind": chip.device_kind, "cores": chip.cores}):
        module = load(Path(job["module"]), KERNEL, traced=False)[0]
        while left := [s for s in job["settings"] if not (out / f"{s['key']}.json").exists()]:
            if not (pid := os.fork()):
                with open("said", "w") as said:
                    os.dup2(said.fileno(), 2)
                for setting in left:
                    _answer(module, setting, job, chip.topology)
                os._exit(0)
            os.waitpid(pid, 0)
            if died := [s for s in left if not (out / f"{s['key']}.json").exists()]:
                lines = Path("said").read_text(errors="replace").splitlines()
                reason = next((line for line in lines if "failed:" in line), "no answer")
                failure = {"failure": f"abort: {reason[-200:]}", "seconds": 0.0}
                (out / f"{died[0]['key']}.json").write_text(json.dumps(failure))


def _answer(module: Any, setting: dict[str, Any], job: dict[str, Any], topology: str) -> None:
    for name in ("llo", "prof"):
        shutil.rmtree(name)
        Path(name).mkdir()
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    begun = time.process_time()
    try:
        told = read(compiled(module, setting, topology, job["delays"]))
    except Exception as error:  # noqa: BLE001 - what the kernel or the compiler raises is the answer
        told = {"failure": f"{type(error).__name__}: {error}".replace("\n", " ")[:300]}
    Path("answer").write_text(json.dumps({**told, "seconds": round(time.process_time() - begun, 2)}))
    Path("answer").replace(f"{job['out']}/{setting['key']}.json")


def compiled(module: Any, setting: dict[str, Any], topology: str, delays: bool) -> str:
    """Compile one setting; the optimised module."""
    import jax
    import jax.numpy as jnp

    from experiments.studies.tpu.truth.child import bind, compile_for, export, text_of
    from tilewright.workers.runners.mosaic.branch_delays import delayed

    (rows, columns, depth), types = setting["shape"], [jnp.dtype(name) for name in setting["types"]]
    kinds = [((rows, depth), jnp.bfloat16), ((columns, depth), types[1]), ((columns,), jnp.float32)]
    shapes = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
    blocks = module.TunedValue(*setting["blocks"])
    exported = export(
        lambda *of: getattr(module, KERNEL)(*of, x_q_dtype=types[0], tuned_value=blocks), shapes
    )
    bound = bind(exported.mlir_module_serialized, {})
    return text_of(compile_for({"topology": topology}, exported, delayed(bound) if delays else bound, shapes))


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
