"""``tilewright library recheck``: what a library serves, verified and timed again on the device and toolchain here.

Every kernel of the current version is a contender of its own: it answers the gates again, on new inputs, and is timed
on the shapes it serves. One that fails is replaced by what served its shapes before, if that passes; else the shapes
are dropped, and the rule of dispatch or the reference serves them. The result is a new version whose receipt says what
was verified where. Shapes that take more than ``LOSS`` longer than their receipt promised are told, and a campaign may
refill them (``evolve.promote.refill``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.evolve.campaign.config import parse_config
from tilewright.evolve.campaign.resolve import Resolved, objection, resolve
from tilewright.evolve.campaign.targets import named_target
from tilewright.evolve.errors import UserError
from tilewright.evolve.promote.command import MakeEvaluator
from tilewright.evolve.promote.judge import own_figures
from tilewright.evolve.promote.library_writer import MAKING, LibraryError, LibraryWriter
from tilewright.evolve.promote.serving import checked_shapes
from tilewright.evolve.promote.verify import ComparingEvaluator, Contender, Refusal, Verified, verify
from tilewright.evolve.promote.version_files import device_key
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import WorkloadFigures
from tilewright.fitness.targets import Target, UnknownTarget, load_target
from tilewright.library import store
from tilewright.seeds.operator import Workload

LOSS = 0.03
"""Share of the promised time beyond which a shape counts as slower here."""

ROUNDS = 1
"""Rounds of all kinds of inputs on all checked shapes; a promotion, which others rely on, makes more."""

OLDER = 3
"""Earlier versions whose kernels may come back."""

MOST_JOBS = 1000
"""Jobs that verifying one kernel may take: numbers kept apart, since a refusal leaves some under way."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Offer:
    """A kernel that may serve a region: its entry in a table, its files, and what a receipt says of it.

    ``name``: as table and receipts call it. ``fault``: why its files cannot be used.
    """

    name: str
    genome: Genome
    entry: Mapping[str, Any]
    files: Mapping[str, bytes]
    version: str
    candidate: Mapping[str, Any]
    fault: str | None = None


@dataclass(frozen=True)
class Region:
    """A shape of the table as found: who served it, what its receipt promised, and who else may serve it."""

    workload: str
    dims: Mapping[str, int]
    genome: str
    promised: Mapping[str, Any] | None
    offers: tuple[Offer, ...]


@dataclass(frozen=True)
class Served:
    """A shape that a kernel has passed on, with its figures here."""

    region: Region
    offer: Offer
    figures: WorkloadFigures
    interval: tuple[float, float]
    suite: str

    @property
    def change(self) -> float | None:
        """Seconds here over those promised, less one; None where no figure compares: another kernel or time model."""
        promised = self.region.promised
        if promised is None or self.region.genome != self.offer.name:
            return None
        if promised.get("model_version") != self.figures.model_version:
            return None
        return float(self.figures.seconds / promised["seconds"] - 1)


@dataclass
class Found:
    """All that a recheck found of one operator on one target.

    ``failed``: kernel to reason. ``dropped``: regions nobody serves any more. ``verified``: by kernel. ``entry_name``:
    the table's name for the target. ``constants``: what legality may name, of operator and target. ``emptied``: suites
    of dropped regions. ``campaign_operator``: the operator as campaigns name it, which may be a path.
    """

    operator: str
    entry_name: str
    version: str
    target: Target
    kind: str
    constants: Mapping[str, float]
    campaign_operator: str
    served: list[Served] = field(default_factory=list)
    dropped: list[Region] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    verified: dict[str, Verified] = field(default_factory=dict)
    next_job: int = 0

    @property
    def replaced(self) -> list[Served]:
        return [s for s in self.served if s.offer.name != s.region.genome]

    @property
    def slower(self) -> list[Served]:
        """Those that take more than ``LOSS`` longer than promised, the worst first."""
        found = [s for s in self.served if s.change is not None and s.change > LOSS]
        return sorted(found, key=lambda s: -(s.change or 0.0))

    @property
    def where(self) -> str:
        """Device and versions, as the workers said them."""
        told: dict[str, str] = {}
        for verified in self.verified.values():
            told.update(verified.evaluations[-1].toolchain)
        parts = [told.pop("device")] if "device" in told else []
        return ", ".join([*parts, *(f"{name} {version}" for name, version in sorted(told.items()))])

    @property
    def suites(self) -> tuple[str, ...]:
        """Suites whose shapes a campaign should fill again."""
        return tuple(dict.fromkeys((*self.emptied, *(s.suite for s in (*self.replaced, *self.slower)))))


def recheck_operator(
    writer: LibraryWriter, operator: str, target: str, make: MakeEvaluator, say: Say
) -> Found | None:
    """Verify and time what the current version serves on ``target``; None where it serves nothing there.

    Nothing is written. Raises UserError where the operator or the target cannot be had here.
    """
    wanted = _target(target)
    version, receipt, dispatch = writer.version(operator)
    name = _entry_name(dispatch, wanted)
    if name is None:
        return None
    campaign = receipt["targets"][name]["campaign"]
    first = _resolve_suite(campaign["operator"], wanted.name, campaign["suite"])
    constants = {**first.operator.constants, **first.target.constants}
    found = Found(operator, name, version, wanted, wanted.kind.value, constants, campaign["operator"])
    regions = _regions(writer, operator, version, name)
    by_suite: dict[str, list[Region]] = {}
    for region in regions:
        suite = _suite_of(first, region)
        if suite is None:
            found.dropped.append(region)
            say(f"{operator}: {region.workload} is in no suite of {campaign['operator']} any more")
        else:
            by_suite.setdefault(suite, []).append(region)
    while by_suite:
        for suite, group in by_suite.items():
            resolved = _resolve_suite(campaign["operator"], wanted.name, suite)
            evaluator = make(resolved)
            try:
                _recheck_suite(found, resolved, group, evaluator, say)
            finally:
                evaluator.close()
        # a kernel that failed on one suite's shapes serves another's no more
        again = [s for s in found.served if s.offer.name in found.failed]
        found.served = [s for s in found.served if s not in again]
        by_suite = {}
        for served in again:
            by_suite.setdefault(served.suite, []).append(served.region)
    order = {region.workload: number for number, region in enumerate(regions)}
    found.served.sort(key=lambda s: order[s.region.workload])
    for genome in found.failed:
        found.verified.pop(genome, None)
    return found


def _recheck_suite(
    found: Found, resolved: Resolved, regions: Sequence[Region], evaluator: ComparingEvaluator, say: Say
) -> None:
    """Verify the first kernel of each region that has not failed, until every region has one or none is left."""
    left = list(regions)
    while left:
        groups: dict[str, tuple[Offer, list[Region]]] = {}
        for region in left:
            offer = _next(found, resolved, region)
            if offer is None:
                found.dropped.append(region)
                found.emptied.append(resolved.suite.name)
            else:
                groups.setdefault(offer.name, (offer, []))[1].append(region)
        left = []
        for offer, group in groups.values():
            served = _check_offer(found, resolved, offer, group, evaluator, say)
            if served is None:
                left += group
            else:
                found.served += served


def _check_offer(
    found: Found,
    resolved: Resolved,
    offer: Offer,
    regions: Sequence[Region],
    evaluator: ComparingEvaluator,
    say: Say,
) -> list[Served] | None:
    """One kernel on the shapes it serves; None, with a reason in ``found``, where it fails."""
    genome = offer.genome
    only = checked_shapes(resolved, genome, {region.workload for region in regions})
    contender = Contender(f"kernel {offer.name}", genome, only=only)
    found.next_job += MOST_JOBS
    try:
        verification = verify(resolved, [contender], [], evaluator, say, ROUNDS, found.next_job)
    except Refusal as error:
        reason = str(error).removeprefix("promotion refused: ").removeprefix(f"{contender.name} ")
        found.failed[offer.name] = reason.rstrip(".")
        return None
    verified = verification.found[contender.name]
    earlier = found.verified.get(offer.name)
    if earlier is not None:
        verified.seeds[:0], verified.evaluations[:0] = earlier.seeds, earlier.evaluations
    found.verified[offer.name] = verified
    return [
        Served(
            region,
            offer,
            *own_figures(verified, region.workload, verification.comparison),
            resolved.suite.name,
        )
        for region in regions
    ]


def _next(found: Found, resolved: Resolved, region: Region) -> Offer | None:
    """The first kernel for a region that is sound, legal and has not failed; the others' reasons go to ``found``."""
    workload = next(w for w in _timed_workloads(resolved) if w.id == region.workload)
    for offer in region.offers:
        if offer.name in found.failed:
            continue
        reason = offer.fault or objection(resolved, offer.genome, workload)
        if reason is None:
            return offer
        if offer.name == region.genome:
            found.failed[offer.name] = reason.rstrip(".")
    return None


# -- what was served ---------------------------------------------------------------------------------


def _target(name: str) -> Target:
    try:
        target = load_target(named_target(name))
    except UnknownTarget as error:
        raise UserError(f"--{error}.") from error
    if target.compile_only or target.interpreted:
        raise UserError(
            f"--target: {target.name} times nothing, so nothing is rechecked there; name a measured or modelled one."
        )
    return target


def _entry_name(dispatch: Mapping[str, Any], target: Target) -> str | None:
    """The table for a target: its own, else, on a device, the one that serves devices of its architecture."""
    entries: Mapping[str, Any] = dispatch["targets"]
    if target.name in entries:
        return target.name
    if not target.measured:
        return None
    key = device_key(target)
    return next(
        (n for n, e in entries.items() if key in e["serves"] and e["kind"] == target.kind.value), None
    )


def _resolve_suite(operator: str, target: str, suite: str) -> Resolved:
    data = {
        "name": "recheck",
        "operator": operator,
        "target": target,
        "suite": suite,
        "budget": {"evaluations": 1},
    }
    return resolve(parse_config(data))


def _timed_workloads(resolved: Resolved) -> list[Workload]:
    return list(dict.fromkeys((*resolved.suite.workloads, *resolved.suite.final)))


def _suite_of(resolved: Resolved, region: Region) -> str | None:
    """The suite that times a region's shape: the promoting campaign's, else the operator's first that does."""
    for suite in (resolved.suite, *resolved.operator.suites.values()):
        # side by side on a device are the suite's own workloads only
        timed = suite.workloads if resolved.target.measured else (*suite.workloads, *suite.final)
        if any(w.id == region.workload and dict(w.dims) == dict(region.dims) for w in timed):
            return suite.name
    return None


def _regions(writer: LibraryWriter, operator: str, version: str, target: str) -> list[Region]:
    """The table's regions in order, each with its kernel and those that served its shape in earlier versions."""
    history = [(version, *writer.version(operator, version)[1:]), *_earlier(writer, operator, version)]
    found = []
    for region in history[0][2]["targets"][target]["regions"]:
        offers = dict(_offers(writer, operator, target, region, history))
        promised = _promise_of(history, target, region)
        found.append(
            Region(region["workload"], region["dims"], region["kernel"], promised, tuple(offers.values()))
        )
    return found


Version = tuple[str, dict[str, Any], dict[str, Any]]


def _earlier(writer: LibraryWriter, operator: str, version: str) -> list[Version]:
    """Versions that ``version`` replaced, the latest first, as far as they are there and sound."""
    made = [e for e in writer.index(operator)["history"] if e.get("action") in MAKING]
    replaced = {e["version"]: e["previous"] for e in made}
    found: list[Version] = []
    seen, at = {version}, replaced.get(version)
    while at is not None and at not in seen:
        seen.add(at)
        with contextlib.suppress(LibraryError):  # collected as garbage, or damaged
            found.append(writer.version(operator, at))
        at = replaced.get(at)
    return found


def _offers(
    writer: LibraryWriter,
    operator: str,
    target: str,
    region: Mapping[str, Any],
    history: Sequence[Version],
) -> Iterator[tuple[str, Offer]]:
    """(genome, offer): the kernel that serves a region, then those of versions with others, at most ``OLDER``."""
    dims = region["dims"]
    seen: set[str] = set()
    for version, receipt, dispatch in history:
        if target not in dispatch["targets"]:
            continue
        place = writer.place(operator) / "versions" / version
        table = store.table(operator, target, dispatch, place)
        if not seen:
            name = region["kernel"]
        else:
            try:
                name = table.choose(tuple(dims[n] for n in table.dimensions)).kernel.name
            except store.NotServed:
                continue
        if name in seen or len(seen) > OLDER:
            continue
        seen.add(name)
        entry = dispatch["targets"][target]["kernels"][name]
        candidates = receipt["targets"][target]["candidates"]
        candidate = next((c for c in candidates if c["genome"] == name), {"genome": name})
        source, files, fault = "", dict[str, bytes](), None
        try:
            source = writer.source(operator, version, entry)
            files = writer.kernel_files(operator, version, entry)
        except LibraryError as error:
            fault = str(error)
        yield name, Offer(name, Genome(source, entry["params"]), entry, files, version, candidate, fault)


def _promise_of(
    history: Sequence[Version], target: str, region: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """What the latest receipt that timed this kernel on this shape says of it."""
    for _, receipt, _ in history:
        for shape in receipt["targets"].get(target, {"shapes": ()})["shapes"]:
            if shape["workload"] == region["workload"] and shape["genome"] == region["kernel"]:
                return {"model_version": None, **shape}
    return None
