"""A measuring station: one GPU or TPU (or an interpreter), exclusive, and the champion contenders are measured against.

Evaluators send it jobs; between them candidates do not run. Under Ray a station is an actor that holds the device.
"""

import contextlib
import copy
import dataclasses
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tilewright.fitness.chips import Chip
from tilewright.fitness.evaluation import WorkloadFigures
from tilewright.fitness.gpus import Gpu
from tilewright.seeds.sampled import Sample
from tilewright.workers.child.ending import ChildOutcome
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.launch import Template
from tilewright.workers.child.session import JobLimits, SessionConfig, SessionDied, SessionPool
from tilewright.workers.device.lock import exclusive
from tilewright.workers.device.oracle import DeviceOracle
from tilewright.workers.toolchains import tpu as tpu_toolchain
from tilewright.workers.toolchains import triton as triton_toolchain

KEPT = 256
"""Kernels whose launch plans a station remembers."""

CLAIM_SECONDS = 90.0
"""Seconds after which a contender that has not returned loses its claim on the champion."""


@dataclass(frozen=True)
class Entry:
    """A kernel as a station times it. ``only``: ids of the workloads it runs on in a comparison; None: all."""

    id: str
    source: str
    params: Mapping[str, Any]
    only: frozenset[str] | None = None
    plans: Mapping[str, bytes] = field(default_factory=dict)
    """By workload id, the compiled plan that replaces the source on a device that runs no candidate's Python."""

    def data(self) -> dict[str, Any]:
        """The entry in a job frame's data."""
        if self.plans:
            return {"id": self.id}
        return {"id": self.id, "source": self.source, "params": dict(self.params)}

    def blobs(self, workloads: Iterable[str]) -> dict[str, bytes]:
        """The entry's plans as blobs of a job frame on these workloads."""
        return {f"plan/{self.id}/{name}": self.plans[name] for name in workloads if name in self.plans}


def entry_id(source: str, params: Mapping[str, Any]) -> str:
    """Identity of a kernel with parameters: 16 hex digits of a SHA-256."""
    key = source + json.dumps(dict(params), sort_keys=True)
    return hashlib.sha256(key.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Champion:
    """The best confirmed kernel so far, with the figures that each contender is compared with."""

    entry: Entry
    fitness: float
    figures: tuple[WorkloadFigures, ...]
    screens: float = 1.0
    """Factor from a screening fitness to one measured beside the champion, as learnt from earlier contenders."""


@dataclass(frozen=True)
class DeviceRatio:
    """A device's times over those of the campaign's first device (``workers.device.calibration``).

    ``error`` is the ratio's relative standard error. The default is that of a device that is compared with no other.
    """

    device: str = ""
    ratio: float = 1.0
    error: float = 0.0


class Station(Protocol):
    """A place where candidates are measured, as an evaluator needs it."""

    def hello(self) -> Mapping[str, Any]:
        """Device and versions. Raises SessionDied or OSError where there is no usable device."""
        ...

    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        """One job, alone on the device. Raises SessionDied or OSError."""
        ...

    def sample(self, asked: Mapping[str, Any], seed: int) -> Sample | None:
        """References computed on this device (see ``workers.device.oracle``); None where it cannot compute them."""
        ...

    def scale(self) -> DeviceRatio:
        """The ratio that its times are divided by. Raises SessionDied if devices are calibrated and this one is not."""
        ...

    def operand_seed(self, proposed: int, *, ahead: bool = False) -> int:
        """Seed of the operands to time with: ``proposed``, or an earlier one whose operands are still there.

        ``ahead``: as it would be now, of a job that asks again when its time has come.

        Gates get fresh inputs all the time; big operands that change as often would cost a device as much as timing.
        """
        ...

    def champion(self) -> Champion | None: ...

    def claim(self, contender: str) -> bool:
        """Whether this contender may be timed against the champion now: one at a time, so that each meets the
        latest."""
        ...

    def release(self, contender: str, crowned: Champion | None) -> None:
        """End a claim; ``crowned`` is the new champion, if there is one."""
        ...


SEED_USES = 256
"""Jobs that are timed on the same operands."""


class OperandSeeds:
    """Seeds of the operands that a device times with: as ``Station.operand_seed``."""

    def __init__(self) -> None:
        self._seed, self._uses = 0, SEED_USES

    def seed(self, proposed: int, *, ahead: bool = False) -> int:
        """``proposed``, or the seed returned last, until that has served ``SEED_USES`` jobs."""
        if self._uses >= SEED_USES:
            self._seed, self._uses = proposed, 0
        self._uses += not ahead
        return self._seed


class LocalStation:
    """A station in this process, for several threads. Jobs run one at a time; other methods do not wait for them."""

    def __init__(self, device: Gpu | Chip, scratch: Path | None = None, *, spare: bool = True) -> None:
        """``spare`` False: no second child is kept ready, also on devices that usually have one."""
        self._keeper: SessionPool | ForkedChildren
        if not isinstance(device, Chip) and device.interpreted:
            self._keeper = ForkedChildren(
                "interpret.",
                ("tilewright.workers.runners.triton.interpreter_runner",),
                {"product": device.product},
                triton_toolchain.environment(device),
                scratch,
            )
        else:
            config = tpu_toolchain.device_config(device) if isinstance(device, Chip) else device_config(device)
            self._keeper = SessionPool(dataclasses.replace(config, scratch=scratch, spare=spare and config.spare))
        on_gpu = not isinstance(device, Chip) and not device.interpreted
        self._oracle = DeviceOracle() if on_gpu else None
        self._turn, self._state = threading.Lock(), threading.Lock()
        self._over = False
        self._hello: Mapping[str, Any] = {}
        """Kept after the first call, so that later ones do not wait for a running job."""
        self._seeds = OperandSeeds()
        self._plans: OrderedDict[str, dict[str, bytes]] = OrderedDict()
        self._champion: Champion | None = None
        self._claim: tuple[str, float] | None = None
        self._counted: tuple[int, float] | None = None
        """Number of the current child, and its CPU seconds after the latest job."""

    def for_next_campaign(self) -> "LocalStation":
        """A station on the same children with none of this campaign's seeds, plans and champion."""
        other = copy.copy(self)
        other._seeds, other._plans, other._champion, other._claim = OperandSeeds(), OrderedDict(), None, None
        other._over = False
        return other

    def hello(self) -> Mapping[str, Any]:
        if not self._hello:
            with self._turn:
                self._require()
                self._hello = self._keeper.hello()
        return self._hello

    def end(self) -> None:
        """Make all threads that wait for a turn or a claim, and all later calls, raise SessionDied."""
        self._over = True

    def _require(self) -> None:
        if self._over:
            raise SessionDied("the station has ended")

    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        with self._turn:
            self._require()
            identity = self._keeper.hello().get("identity")
            with self._state:
                self._keep(job)
            with exclusive(None if identity is None else str(identity)):
                if self._counted is None or self._counted[0] != self._keeper.replaced:
                    self._counted = self._keeper.replaced, self._keeper.cpu_seconds
                outcome = self._keeper.run(job, limits)
            (child, before), after = self._counted, self._keeper.cpu_seconds
            # a child that was replaced counts anew
            outcome.cpu_seconds = max(0.0, after - before) if child == self._keeper.replaced else 0.0
            self._counted = self._keeper.replaced, after
        return outcome

    def _keep(self, job: Frame) -> None:
        """Remember the plans that came with a job, of the latest ``KEPT`` kernels."""
        left = dict(job.blobs)
        # an entry's id may begin with another's
        for entry in sorted((str(entry["id"]) for entry in job.data.get("entries", ())), reverse=True):
            prefix = f"plan/{entry}/"
            found = {name: left.pop(name) for name in list(left) if name.startswith(prefix)}
            if found:
                held = self._plans.setdefault(entry, {})
                held.update({name.removeprefix(prefix): data for name, data in found.items()})
                self._plans.move_to_end(entry)
        while len(self._plans) > KEPT:
            self._plans.popitem(last=False)

    def plans(self, source: str, params: Mapping[str, Any]) -> Mapping[str, bytes]:
        """By workload id, the compiled plans of a kernel that came with earlier jobs."""
        with self._state:
            return dict(self._plans.get(entry_id(source, params), {}))

    def sample(self, asked: Mapping[str, Any], seed: int) -> Sample | None:
        """See ``Station``. May be called while a job runs: the oracle locks the device while it computes."""
        return self._oracle.sample(asked, seed) if self._oracle is not None else None

    def warm(self) -> None:
        """Start the device's child without waiting for it. Raises OSError when no process can be made."""
        self._keeper.warm()

    def warm_oracle(self) -> None:
        """Start the process behind ``sample`` without waiting for it."""
        if self._oracle is not None:
            with contextlib.suppress(OSError, RuntimeError):  # who asks it hears why
                self._oracle.begin()

    def scale(self) -> DeviceRatio:
        return DeviceRatio()

    def operand_seed(self, proposed: int, *, ahead: bool = False) -> int:
        with self._state:
            return self._seeds.seed(proposed, ahead=ahead)

    def champion(self) -> Champion | None:
        return self._champion

    def claim(self, contender: str) -> bool:
        self._require()
        with self._state:
            now = time.monotonic()
            if self._claim is not None and self._claim[0] != contender and now < self._claim[1]:
                return False
            self._claim = (contender, now + CLAIM_SECONDS)
            return True

    def inherit(self, champion: Champion) -> None:
        """Adopt the champion of another station on the same device, if its fitness is higher."""
        with self._state:
            if self._champion is None or champion.fitness > self._champion.fitness:
                self._champion = champion

    def release(self, contender: str, crowned: Champion | None) -> None:
        with self._state:
            if self._claim is None or self._claim[0] != contender:
                return  # it took too long, and another has the claim
            self._claim = None
            if crowned is not None:
                self._champion = crowned

    @property
    def replaced(self) -> int:
        """How many children were replaced so far."""
        return self._keeper.replaced

    def close(self) -> None:
        """Kill the children."""
        self._keeper.close()
        if self._oracle is not None:
            self._oracle.close()


def device_config(gpu: Gpu) -> SessionConfig:
    """How a station's child is started on a GPU."""
    return SessionConfig(
        runner="plan.device",
        runner_config={"product": gpu.product, "flush_bytes": gpu.flush_bytes},
        environment=triton_toolchain.launch_environment(),
        # the driver names its threads by writing to the process's own folder there
        shared=(Path("/proc/self"),),
        readable=triton_toolchain.DRIVER_FOLDERS,
        devices=triton_toolchain.device_files(),
        spare=True,
    )


def compile_children(gpu: Gpu, scratch: Path | None = None, template: Template | None = None) -> ForkedChildren:
    """Children that compile candidates before they are measured. ``template``: see ``ForkedChildren``."""
    return ForkedChildren(
        "compile.",
        ("tilewright.workers.runners.triton.compile",),
        {"capability": gpu.capability, "smem_bytes": gpu.smem_bytes},
        triton_toolchain.compile_environment(),
        scratch,
        triton_toolchain.CACHES,
        template,
    )


def station_fault(device: Gpu | Chip) -> str | None:
    """None, or one sentence on why candidates cannot run on this machine's device. Starts a child (seconds)."""
    try:
        station = LocalStation(device)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    try:
        station.hello()
    except (SessionDied, OSError) as error:
        return " ".join(str(error).split())[:200]
    finally:
        station.close()
    return None
