"""Compares genomes side by side on one device, and calibrates several devices of one target against each other.

A comparison times the genomes of each shape in interleaved rounds, every other one in reversed order; the first genome
runs twice, the second time as control. A campaign's final figures come from comparisons.

Two GPUs of one product differ by per cents in clock and power. If a campaign measures on several, each first times the
same reference kernel on the same shapes, and its later times are divided by its ratio to the first device's. A device
whose ratio is too far from 1 is left out; one that was not calibrated gives no figures.
"""

import dataclasses
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Self, TypeVar

from tilewright.fitness.chips import Chip
from tilewright.fitness.intervals import NORMAL_95, Ratio, Rounds, median_seconds, paired_ratio
from tilewright.fitness.targets import Target
from tilewright.seeds.operator import Operator, Suite, Workload
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.launch import Spawn
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.device.kernel_traces import trace_kernels
from tilewright.workers.device.plan_compiler import PlanStage
from tilewright.workers.device.station import DeviceRatio, Entry, LocalStation, Station, compile_children
from tilewright.workers.device.timing import Samples, Timing, measure
from tilewright.workers.request import Failure, Findings, KernelRequest, Limits, TimingRequest, Truth, one_line

CONTROL = "control"
"""Id of the entry that runs a shape's first genome a second time."""

EFFORT = (6, 3)
"""Rounds, and timed calls a round."""

WALL_SECONDS = 240.0


@dataclass(frozen=True)
class Comparison:
    """Times of several genomes on one device."""

    target: str
    device: Mapping[str, str]
    """The station's ``hello``: device and versions."""
    rounds: Mapping[str, Mapping[str, Rounds]]
    """Seconds by workload id, genome id (or ``control``), round and call."""
    host: Mapping[str, Mapping[str, float]]
    """Host seconds of one launch, by workload id and genome id."""
    failed: Mapping[str, str]
    """By id, why a genome has no times."""

    @property
    def genomes(self) -> tuple[str, ...]:
        """Ids of the genomes that have times, in the order given if all ran on every shape."""
        return tuple(dict.fromkeys(n for names in self.rounds.values() for n in names if n != CONTROL))

    def seconds(self, workload: str, genome: str) -> float:
        """Median seconds over all calls."""
        return median_seconds(self.rounds[workload][genome])

    def ratio(self, over: str, under: str, workloads: Sequence[str] | None = None) -> Ratio:
        """Geometric mean over workloads of the times of ``over`` divided by those of ``under``, paired by round."""
        chosen = workloads or list(self.rounds)
        return paired_ratio({w: self.rounds[w][over] for w in chosen}, {w: self.rounds[w][under] for w in chosen})

    def control(self) -> dict[str, float]:
        """By workload id: times of the control entry over those of the same genome's first entry; ideally 1."""
        return {w: self.ratio(CONTROL, next(iter(names)), [w]).value for w, names in self.rounds.items()}

    def to_json(self) -> str:
        """All fields as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What ``to_json`` wrote."""
        return cls(**json.loads(text))


def compare(
    station: Station,
    operator: Operator,
    target: Target,
    workloads: Sequence[Workload],
    entries: Sequence[Entry],
    seed: int,
    effort: tuple[int, int] = EFFORT,
    samples: Samples | None = None,
) -> Comparison:
    """Time ``entries`` side by side; one that fails is left out and named in ``failed``. Raises SessionDied, OSError.

    ``effort``: rounds, and most calls per round. ``samples``: cached reference outputs of the operator, if any.
    """
    failed: dict[str, str] = {}
    request = TimingRequest(
        operator=operator,
        truth=Truth(operator),
        target=target,
        limits=Limits(trace=ChildLimits(WALL_SECONDS)),
        seed=seed,
        measured=tuple(workloads),
    )
    left, samples = _with_plans(request, entries, failed, station), samples or Samples(operator, station)
    while left:
        timed = _time_shapes(station, request, left, effort, samples)
        if not isinstance(timed, Failure):
            rounds = {t.workload.id: dict(zip(names, t.rounds, strict=True)) for names, t in timed}
            host = {t.workload.id: dict(zip(names, t.host_seconds, strict=True)) for names, t in timed}
            return Comparison(target.name, _device(station), rounds, host, failed)
        failed[str(timed.entry)] = f"{timed.verdict.value}: {timed.reason}"
        left = [entry for entry in left if entry.id != timed.entry]
    return Comparison(target.name, _device(station), {}, {}, failed)


def _with_plans(
    request: TimingRequest, entries: Sequence[Entry], failed: dict[str, str], station: Station
) -> list[Entry]:
    """The entries with their launch plans, if the target needs plans. Entries that get none go to ``failed``."""
    target = request.target
    if target.interpreted and not isinstance(target.part, Chip):
        return list(entries)
    compiler = None if isinstance(target.part, Chip) else compile_children(target.gpu)
    planned = []
    try:
        for entry in entries:
            shapes = tuple(w for w in request.measured if entry.only is None or w.id in entry.only)
            part = KernelRequest(
                operator=request.operator,
                truth=request.truth,
                target=target,
                limits=request.limits,
                seed=request.seed,
                measured=shapes,
                source=entry.source,
                params=entry.params,
            )
            plans: Mapping[str, bytes] | str = entry.plans or _kept_plans(station, entry, shapes)
            plans = plans or (_traced_plans(part) if compiler is None else _compiled_plans(part, compiler))
            if isinstance(plans, str):
                failed[entry.id] = plans
            else:
                planned.append(dataclasses.replace(entry, plans=plans))
    finally:
        if compiler is not None:
            compiler.close()
    return planned


def _kept_plans(station: Station, entry: Entry, shapes: Sequence[Workload]) -> Mapping[str, bytes]:
    """The plans that a station of this process remembers of a kernel, if it has those of all ``shapes``; else {}."""
    if not isinstance(station, LocalStation):
        return {}
    found = station.plans(entry.source, entry.params)
    return {w.id: found[w.id] for w in shapes} if all(w.id in found for w in shapes) else {}


def _compiled_plans(part: KernelRequest, compiler: ForkedChildren) -> Mapping[str, bytes] | str:
    """A GPU kernel's launch plans by workload id, or why there are none."""
    found = Findings()
    failure = PlanStage(compiler).run(part, found)
    return found.plans if failure is None else f"{failure.verdict.value}: {failure.reason}"


def _traced_plans(part: KernelRequest) -> Mapping[str, bytes] | str:
    """A TPU kernel's traces by workload id, or why there are none."""
    traced = trace_kernels(part, part.measured, Spawn(), None)
    if traced.error is not None:
        return one_line(f"compile_error: {traced.error.data.get('type')}: {traced.error.data.get('message')}")
    if len(traced.frames) < len(part.measured):
        return "crashed: the child ended before it had traced everything"
    return traced.plans()


def _time_shapes(
    station: Station, request: TimingRequest, entries: Sequence[Entry], effort: tuple[int, int], samples: Samples
) -> list[tuple[Sequence[str], Timing]] | Failure:
    """(entry ids in the order of the timing's lists, timing) of every shape, or the first entry's failure.

    Shapes that the same entries run on are timed in one job."""
    groups: dict[tuple[str, ...], list[Workload]] = {}
    for workload in request.measured:
        present = tuple(e.id for e in entries if e.only is None or workload.id in e.only)
        if present:
            groups.setdefault(present, []).append(workload)
    found: list[tuple[Sequence[str], Timing]] = []
    for names, workloads in groups.items():
        side_by_side = [entry for entry in entries if entry.id in names]
        side_by_side.append(dataclasses.replace(side_by_side[0], id=CONTROL))
        part = dataclasses.replace(request, measured=tuple(workloads))
        timings = measure(station, part, Findings(), samples, side_by_side, effort, {}, kinds=None)
        if isinstance(timings, Failure):
            return timings if timings.entry in names else dataclasses.replace(timings, entry=names[0])
        found += [((*names, CONTROL), timing) for timing in timings]
    return found


def _device(station: Station) -> dict[str, str]:
    return {k: str(v) for k, v in station.hello().items() if k != "isolation"}


log = logging.getLogger(__name__)

FARTHEST = 1.1
"""A device whose times differ from the first's by this factor is broken, throttled or of another kind."""

SHAPES = 4
"""Number of shapes that the reference kernel is timed on."""

CARRIED = 0.009
"""Relative standard error of a device's ratio for another kernel than the reference: measured on four H200
(``experiments/records/cluster/gpu_scaling.json``), where two kernels were 0.5 to 1.3 % off after calibration
by a third."""

DEVICE = "identity"
"""Key of the device's identity in a station's ``hello``."""

Handle = TypeVar("Handle")


def reference_shapes(operator: Operator, suite: Suite) -> list[Workload]:
    """At most ``SHAPES`` of a suite's shapes, spread evenly from the least FLOP to the most."""
    ranked = sorted(suite.workloads, key=operator.flops)
    count = min(SHAPES, len(ranked))
    return [ranked[round(n * (len(ranked) - 1) / max(1, count - 1))] for n in range(count)]


def in_service(
    answers: Sequence[tuple[Handle, str, Comparison]], reference: str, farthest: float = FARTHEST
) -> tuple[list[Handle], dict[str, DeviceRatio]]:
    """The stations to measure on, and each one's ratio, from (station, device, comparison) of the reference kernel.

    The first device that timed the reference has ratio 1. If none did, the fault is the reference's: one station is
    used, without a ratio, and the campaign will report the failure.
    """
    timed = [one for one in answers if reference in one[2].genomes]
    if not timed:
        return [handle for handle, *_ in answers[:1]], {}
    kept: list[Handle] = []
    scales: dict[str, DeviceRatio] = {}
    for handle, device, found in timed:
        here, first = ({w: of[reference] for w, of in one.rounds.items()} for one in (found, timed[0][2]))
        ratio = paired_ratio(here, first)
        if max(ratio.value, 1 / ratio.value) > farthest or device in scales:
            log.warning("device %s is left out: %.3f times the first device's times", device, ratio.value)
            continue
        kept.append(handle)
        error = math.hypot(math.log(ratio.high / ratio.low) / (2 * NORMAL_95), CARRIED)
        # the first's is 1 without error
        scales[device] = DeviceRatio(device, ratio.value, error if ratio.low < ratio.high else 0.0)
    return kept, scales if len(kept) > 1 else {}
