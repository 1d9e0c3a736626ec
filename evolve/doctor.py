"""``tilewright doctor``: what this machine can do, one finding a line."""

import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from tilewright.evolve.campaign.targets import named_target
from tilewright.evolve.errors import UserError
from tilewright.fitness.chips import CHIPS, Chip
from tilewright.fitness.gpus import LOCAL
from tilewright.fitness.targets import MEASURED_TPUS, TPU, Target, UnknownTarget, load_target, targets
from tilewright.workers.device.station import station_fault
from tilewright.workers.toolchains import tpu as tpu_toolchain
from tilewright.workers.toolchains import triton as triton_toolchain
from tilewright.workers.toolchains.libtpu_simulator import recipe_fault

MINIMUM_MEMORY_GIB = 6.0
MINIMUM_DISK_GIB = 2.0


@dataclass(frozen=True)
class Diagnosis:
    """``needed`` is false for what only some campaigns want."""

    part: str
    good: bool
    sentence: str
    needed: bool = True


def examine(home: Path) -> Iterator[Diagnosis]:
    """Findings in the order a newcomer needs them. Each target compiles a small kernel (seconds)."""
    yield Diagnosis("python", True, platform.python_version())
    yield from (_package(name) for name in ("ray", "mlflow-skinny"))
    yield from (_extra(name) for name in EXTRAS)
    cores = len(os.sched_getaffinity(0))
    yield Diagnosis("cores", True, f"{cores}, so {cores} evaluations at a time")
    yield _memory()
    yield _folder(home)
    yield _sandbox()
    known = (target for target in targets().values() if target.name not in MEASURED_TPUS)
    yield from _together(itertools.chain(map(_target, known), (find() for find in (_cuda, _tpu))))


def _together(findings: Iterable[Diagnosis]) -> Iterator[Diagnosis]:
    """Targets that lack the same, one after the other, as one finding."""
    for sentence, group in itertools.groupby(findings, lambda f: f.part if f.good else f.sentence):
        first, *others = group
        if not others:
            yield first
            continue
        names = ", ".join(finding.part.removeprefix("target ") for finding in (first, *others))
        yield Diagnosis(f"targets {names}", False, sentence, any(f.needed for f in (first, *others)))


def examine_target(name: str) -> Diagnosis:
    """One target alone, needed. Raises UserError for a name that is none."""
    if name == TPU:
        finding = _tpu()
    else:
        try:
            target = load_target(named_target(name))
        except UnknownTarget as error:
            raise UserError(f"{error}.") from error
        finding = _tpu(target.chip) if name in MEASURED_TPUS else _target(target)
    return replace(finding, needed=True)


def _package(name: str) -> Diagnosis:
    try:
        return Diagnosis(name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Diagnosis(name, False, f"not installed; pip install {name}")


EXTRAS = {
    "ui": ("mlflow", "MLflow's pages"),
    "tpu": ("jax", "Pallas kernels, on a modelled or a real TPU"),
    "triton": ("triton", "Triton and Gluon kernels"),
    "cuda": ("nvidia-cuda-nvrtc", "CUDA C++, if torch brings none"),
    "llm": ("openai", "a language model that proposes"),
    "pandas": ("pandas", "campaigns as data frames"),
}
"""The package whose presence shows that an extra is installed, and what the extra is for."""


def _extra(name: str) -> Diagnosis:
    """Whether an extra is installed, and which versions it was verified with where others are."""
    part, wanted, (shows, purpose) = f"extra {name}", [], EXTRAS[name]
    try:
        for line in metadata.requires("tilewright") or ():
            requirement, _, condition = line.partition(";")
            package, pinned, version = requirement.partition("==")
            if pinned and re.search(rf"extra == ['\"]{name}['\"]", condition):
                wanted.append((package.strip(), version.strip()))
    except metadata.PackageNotFoundError:
        pass
    try:
        found = {package: metadata.version(package) for package, _ in wanted or [(shows, "")]}
    except metadata.PackageNotFoundError as error:
        way = f"{error.name} is not installed; pip install 'tilewright[{name}]'"
        return Diagnosis(part, False, f"for {purpose}: {way}", needed=False)
    listed = ", ".join(f"{package} {version}" for package, version in found.items())
    other = [f"{p} {pin}" for p, pin in wanted if found[p].split("+")[0] != pin]
    advice = f" (verified with {', '.join(other)}; the targets below say what works here)" if other else ""
    return Diagnosis(part, True, f"{listed}{advice}", needed=False)


def _cuda() -> Diagnosis:
    """This machine's NVIDIA GPU: what the target ``cuda`` stands for."""
    try:
        target = load_target(named_target(LOCAL))
    except (UserError, UnknownTarget) as error:
        reason = str(error).partition(" here: ")[2].rstrip(".") or str(error)
        return Diagnosis(f"target {LOCAL}", False, reason, needed=False)
    return replace(_target(target), part=f"target {LOCAL}")


def _memory() -> Diagnosis:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    enough = gib >= MINIMUM_MEMORY_GIB
    advice = "" if enough else f"; the simulator wants {MINIMUM_MEMORY_GIB:g} GiB"
    return Diagnosis("memory", enough, f"{gib:.1f} GiB{advice}")


def _folder(home: Path) -> Diagnosis:
    existing = next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Diagnosis("home", False, f"{home} cannot be written; choose another with --home")
    free = shutil.disk_usage(existing).free / 2**30
    return Diagnosis("home", free >= MINIMUM_DISK_GIB, f"{home}, {free:.0f} GiB free")


_CONFINE = """
from pathlib import Path
from tilewright.workers.child import confine
print(confine.drop_network(), confine.restrict_files(Path.cwd(), ()))
"""


def _sandbox() -> Diagnosis:
    """The steps of a child's confinement that this machine's kernel permits, tried in a process of its own."""
    tried = subprocess.run([sys.executable, "-c", _CONFINE], capture_output=True, text=True, check=False)
    network, files = (word == "True" for word in [*tried.stdout.split(), "", ""][:2])
    steps = f"network {'off' if network else 'reachable'}, files {'restricted' if files else 'not restricted'}"
    advice = "" if network and files else "; use a container without credentials"
    return Diagnosis("sandbox", network and files, f"{steps} in candidates' processes{advice}", needed=False)


def _tpu(wanted: Chip | None = None) -> Diagnosis:
    """One finding for the measured TPU targets: a machine has one of these chips at most."""
    fault = tpu_toolchain.missing_parts(wanted)
    if fault is None:
        chip = CHIPS[tpu_toolchain.chip_here() or ""]
        fault = station_fault(chip)
    return Diagnosis(f"target {TPU}", fault is None, fault or "runs and times a kernel (measured)", needed=False)


def _target(target: Target) -> Diagnosis:
    part = f"target {target.name}"
    if target.compile_only:
        fault = triton_toolchain.missing_parts(target.architecture)
        return Diagnosis(part, fault is None, fault or "compiles a kernel and reads its code", needed=False)
    if not target.measured:
        fault = recipe_fault(target.chip)
        works = f"compiles and times a kernel ({target.kind.value})"
        return Diagnosis(part, fault is None, fault or works, needed=False)
    fault = triton_toolchain.missing_parts(target.gpu) or station_fault(target.gpu)
    purpose = "for tests of the measuring path" if target.gpu.interpreted else "measured"
    return Diagnosis(part, fault is None, fault or f"runs and times a kernel ({purpose})", needed=False)
