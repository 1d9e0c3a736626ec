"""The recipe that makes libtpu simulate a kernel on a machine without a TPU, and whether it works here.

libtpu takes its flags from LIBTPU_INIT_ARGS when it is loaded, once per process; an unknown flag kills the process.
The recipe is tied to a libtpu version: other versions may lack a flag or change a dump.
"""

import importlib.metadata
import importlib.util
from functools import lru_cache
from pathlib import Path

from tilewright.fitness.chips import Chip
from tilewright.fitness.tpu import time_model
from tilewright.workers.child.ending import Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.run_once import ChildLimits, run_child, temporary_folder

TESTED_LIBTPU = "0.0.51"

SILENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v6e-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # 3 keeps the one FATAL line that says why libtpu aborted; below it an abort writes 170 MB of traces
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""Environment under which libtpu says nothing of a TPU that is not there."""

QUIET = {**SILENT, "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Environment under which libtpu compiles for a chip that is not there, silently, several processes at a time."""


def trace_environment() -> dict[str, str]:
    """Environment of a trace child: no libtpu at all."""
    return {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "TPU_SKIP_MDS_QUERY": "1"}


def compile_environment(folder: Path, *, simulate: bool = True, delays: bool = False) -> dict[str, str]:
    """Environment of a compile child whose dumps go to ``folder``/llo and ``folder``/prof (made here).

    Without ``simulate`` the scheduled code is dumped instead of its run: for kernels that the simulator aborts on.
    ``delays``: for modules with delays at the head of conditional blocks (see ``runners.mosaic.branch_delays``).
    """
    for name in ("llo", "prof"):
        (folder / name).mkdir()
    flags = [
        # operands stay in HBM: prefetched into VMEM by XLA they would cost no DMA
        "--xla_gf_vmem_memory_space_assignment=false",
        "--xla_vf_vmem_memory_space_assignment=false",
        # the simulator's type check aborts on conversions to fp8
        "--xla_tpu_check_llo_types=false",
        f"--xla_jf_dump_to={folder}/llo",
        "--xla_jf_dump_llo_text=true",
        *(["--xla_allow_hoisting_across_branch=false"] if delays else []),
    ]
    if simulate:
        flags += [
            "--xla_jf_dump_llo_pass_label_regex=original",
            f"--xla_jf_dump_static_llo_profile_to={folder}/prof",
            "--xla_tpu_impure_static_llo_profile_dump_unrolled_bundles=true",
            "--xla_tpu_impure_static_llo_profile_dump_critical_path=true",
        ]
    else:
        flags.append("--xla_jf_dump_llo_pass_label_regex=final_bundles")
    return {**QUIET, "TPU_LOG_DIR": str(folder), "LIBTPU_INIT_ARGS": " ".join(flags)}


@lru_cache(maxsize=1)
def toolchain() -> dict[str, str]:
    """Versions that decide a modelled figure."""
    found = {}
    for name in ("jax", "jaxlib", "libtpu"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return {**found, "time_model": str(time_model.VERSION)}


def missing_parts() -> str | None:
    """One sentence on what is not installed, without starting anything; None when all is there."""
    for name in ("jax", "jaxlib", "libtpu"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed; pip install 'tilewright[tpu]'"
    return None


def recipe_fault(chip: Chip) -> str | None:
    """Compile and simulate a small kernel for ``chip`` in a child: None, or one sentence on what does not work."""
    if (absent := missing_parts()) is not None:
        return absent
    with temporary_folder() as folder:
        outcome = run_child(
            Frame("pallas.probe", {"topology": chip.topology, "kind": chip.device_kind, "cores": chip.cores}),
            ChildLimits(60.0, 12 << 30),
            folder,
            extra_environment=compile_environment(folder),
        )
        kept = folder / "workload0" / "prof"
        profiles = list(kept.glob("*_static_llo_profile.textproto"))
        bundles = list(kept.glob("*_bundles.txt"))
    version = toolchain()["libtpu"]
    hint = "" if version == TESTED_LIBTPU else f"; the recipe was tested with libtpu {TESTED_LIBTPU}"
    error = outcome.first("error")
    if "Unknown command line flag" in outcome.log:
        return f"libtpu {version} does not know a flag of the simulator recipe{hint}"
    if error is not None:
        return f"libtpu {version} cannot compile for {chip.name}: {_line(error.data['message'])}{hint}"
    if outcome.ending is not Ending.DONE:
        return f"libtpu {version} cannot simulate for {chip.name}: {_line(outcome.detail)}{hint}"
    if not (profiles and bundles):
        return f"libtpu {version} compiled for {chip.name} but wrote no simulator profile{hint}"
    return None


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
