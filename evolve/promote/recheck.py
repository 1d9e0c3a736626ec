"""``tilewright library recheck``: what a library serves, verified and timed again on the device and toolchain here.

Every kernel of the current version is a contender of its own: it answers the gates again, on new inputs, and is timed
on the shapes it serves. The shapes of one that fails are dropped; the rule of dispatch or the reference serves them.
The result is a new version whose receipt says what was verified where. Shapes that take more than ``LOSS`` longer than
their receipt promised are told.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from tilewright.evolve.campaign.config import parse_config
from tilewright.evolve.campaign.resolve import Resolved, objection, resolve
from tilewright.evolve.campaign.targets import named_target
from tilewright.evolve.errors import UserError
from tilewright.evolve.promote.command import MakeEvaluator
from tilewright.evolve.promote.judge import own_figures
from tilewright.evolve.promote.library_writer import Finding, LibraryError, LibraryWriter
from tilewright.evolve.promote.serving import checked_shapes, timed_workloads
from tilewright.evolve.promote.verify import (
    Contender,
    Refusal,
    Verified,
    left_out_constraints,
    served_constraints,
    verify,
)
from tilewright.evolve.promote.version_files import (
    Files,
    device_names,
    entry_name,
    files_named,
    json_bytes,
    shape_figures,
    toolchain_ranges,
    what_was_verified,
    with_shares,
)
from tilewright.evolve.record.system import commit, version
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.evaluation import WorkloadFigures
from tilewright.fitness.targets import Target, UnknownTarget, load_target
from tilewright.library import dispatch_rule as rule
from tilewright.library import plan_shelf, store
from tilewright.workers.cascade.drawn_shapes import verified_alone
from tilewright.workers.cluster.pool import Pool

LOSS = 0.03
"""Share of the promised time beyond which a shape counts as slower here."""

ROUNDS = 1
"""Rounds of all kinds of inputs on all checked shapes; a promotion, which others rely on, makes more."""

MOST_JOBS = 1000
"""Jobs that verifying kernels may take: numbers kept apart, since a refusal leaves some under way."""

Say = Callable[[str], None]
Region = Mapping[str, Any]
"""A shape of a dispatch table with the kernel that serves it."""


@dataclass(frozen=True)
class ServedShape:
    """A shape that its kernel has passed on, with its figures here and what the receipt before ``promised``."""

    region: Region
    figures: WorkloadFigures
    interval: tuple[float, float]
    promised: Mapping[str, Any] | None

    @property
    def change(self) -> float | None:
        """Seconds here over those promised, less one; None where no figure of the same time model compares."""
        if self.promised is None or self.promised.get("model_version") != self.figures.model_version:
            return None
        return float(self.figures.seconds / self.promised["seconds"] - 1)


@dataclass
class Recheck:
    """All that a recheck found of one operator on one target.

    ``entry_name``: the table's name for the target. ``constants``: what legality may name, of operator and target.
    ``alone``: whether the verified shapes alone are served.
    ``dropped``: regions nobody serves any more. ``failed``: kernel to reason. ``verified``: by kernel.
    """

    operator: str
    entry_name: str
    version: str
    target: Target
    constants: Mapping[str, float]
    alone: bool = False
    served: list[ServedShape] = field(default_factory=list)
    dropped: list[Region] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    verified: dict[str, Verified] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.target.kind.value

    @property
    def slower(self) -> list[ServedShape]:
        """Those that take more than ``LOSS`` longer than promised, the worst first."""
        found = [s for s in self.served if s.change is not None and s.change > LOSS]
        return sorted(found, key=lambda s: -(s.change or 0.0))

    @property
    def where(self) -> str:
        """Device and versions, as the workers said them."""
        toolchain: dict[str, str] = {}
        for verified in self.verified.values():
            toolchain.update(verified.evaluations[-1].toolchain)
        parts = [toolchain.pop("device")] if "device" in toolchain else []
        return ", ".join([*parts, *(f"{name} {version}" for name, version in sorted(toolchain.items()))])


def recheck_library(
    writer: LibraryWriter, operator: str | None, target: str, make: MakeEvaluator, say: Say
) -> Iterator[Finding]:
    """Findings on every operator that serves ``target``, the library changed as they say. Raises UserError."""
    any_there = False
    for name in writer.named(operator):
        if operator is None and writer.index(name)["current"] is None:
            continue
        found = recheck_operator(writer, name, target, make, say)
        if found is None and operator is not None:
            raise UserError(f"--target: {name} is not promoted for {target}.")
        if found is not None:
            any_there = True
            yield from _findings(found, _write(writer, found))
    if not any_there:
        raise UserError(f"--target: nothing in {writer.root} is promoted for {target}.")


def recheck_operator(
    writer: LibraryWriter, operator: str, target: str, make: MakeEvaluator, say: Say
) -> Recheck | None:
    """Verify and time what the current version serves on ``target``; None where it serves nothing there.

    Nothing is written. Raises UserError where the operator or the target cannot be had here.
    """
    wanted = _target(target)
    version, receipt, dispatch = writer.version(operator)
    name = entry_name(dispatch["targets"], wanted)
    if name is None:
        return None
    entry, target_receipt = dispatch["targets"][name], receipt["targets"][name]
    campaign = target_receipt["campaign"]
    first = _resolve_suite(campaign["operator"], wanted.name, campaign["suite"])
    constants = {**first.operator.constants, **first.target.constants}
    found = Recheck(operator, name, version, wanted, constants, verified_alone(first.operator, first.target))
    promises = {(s["workload"], s["genome"]): {"model_version": None, **s} for s in target_receipt["shapes"]}
    suites: dict[str, dict[str, list[Region]]] = {}
    for region in entry["regions"]:
        suite = _suite_of(first, region)
        if suite is None:
            say(f"{operator}: {region['workload']} is in no suite of {campaign['operator']} any more")
        else:
            suites.setdefault(suite, {}).setdefault(region["kernel"], []).append(region)
    contenders = _contenders(writer, found, entry["kernels"])
    turns = count(MOST_JOBS, MOST_JOBS)
    for suite, kernels in suites.items():
        resolved = _resolve_suite(campaign["operator"], wanted.name, suite)
        evaluator = make(resolved)
        try:
            _check(found, resolved, contenders, kernels, promises, evaluator, say, turns)
        finally:
            evaluator.close()
    # a kernel that failed on one suite's shapes serves another's no more
    served = {s.region["workload"]: s for s in found.served if s.region["kernel"] not in found.failed}
    found.served = [served[r["workload"]] for r in entry["regions"] if r["workload"] in served]
    found.dropped = [r for r in entry["regions"] if r["workload"] not in served]
    for kernel in found.failed:
        found.verified.pop(kernel, None)
    return found


def _check(
    found: Recheck,
    resolved: Resolved,
    contenders: Mapping[str, Contender],
    kernels: Mapping[str, Sequence[Region]],
    promises: Mapping[tuple[str, str], Mapping[str, Any]],
    evaluator: Pool,
    say: Say,
    turns: Iterator[int],
) -> None:
    """Kernels side by side, each on the shapes it serves; where one fails, the reason goes to ``found``, and the others
    are asked again."""
    asked: dict[str, Contender] = {}
    for kernel, regions in kernels.items():
        if kernel in found.failed:
            continue
        genome, ids = contenders[kernel].genome, {region["workload"] for region in regions}
        illegal = (objection(resolved, genome, w) for w in timed_workloads(resolved) if w.id in ids)
        if (reason := next(filter(None, illegal), None)) is not None:
            found.failed[kernel] = reason.rstrip(".")
        else:
            asked[kernel] = replace(contenders[kernel], only=checked_shapes(resolved, genome, ids))
    while asked:
        try:
            verification = verify(resolved, list(asked.values()), [], evaluator, say, ROUNDS, next(turns))
            break
        except Refusal as error:
            kernel = next((k for k, c in asked.items() if c.genome.id == error.genome), next(iter(asked)))
            reason = str(error).removeprefix("promotion refused: ").removeprefix(f"{asked[kernel].name} ")
            found.failed[kernel] = reason.rstrip(".")
            del asked[kernel]
    for kernel in asked:
        verified = verification.found[asked[kernel].name]
        if (earlier := found.verified.get(kernel)) is not None:
            verified.seeds[:0], verified.evaluations[:0] = earlier.seeds, earlier.evaluations
        found.verified[kernel] = verified
        for region in kernels[kernel]:
            figures, interval = own_figures(verified, region["workload"], verification.comparison)
            found.served.append(ServedShape(region, figures, interval, promises.get((region["workload"], kernel))))


def _contenders(
    writer: LibraryWriter, found: Recheck, kernels: Mapping[str, Mapping[str, Any]]
) -> dict[str, Contender]:
    """Kernels by name, within their table's limits; one whose file is damaged has failed."""
    contenders = {}
    for name, entry in kernels.items():
        try:
            source = writer.source(found.operator, found.version, entry)
        except LibraryError as error:
            found.failed[name] = str(error).rstrip(".")
            continue
        # where verified shapes alone are served, others may take the place of those that the table lists
        limits = read_declarations(source).constraints if found.alone else entry["constraints"]
        contenders[name] = Contender(f"kernel {name}", Genome(source, entry["params"]), within=tuple(limits))
    return contenders


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


def _resolve_suite(operator: str, target: str, suite: str) -> Resolved:
    data = {"name": "recheck", "operator": operator, "target": target, "suite": suite}
    return resolve(parse_config({**data, "budget": {"evaluations": 1}}))


def _suite_of(resolved: Resolved, region: Region) -> str | None:
    """The suite that times a region's shape: the promoting campaign's, else the operator's first that does."""
    for suite in (resolved.suite, *resolved.operator.suites.values()):
        # side by side on a device are the suite's own workloads only
        timed = suite.workloads if resolved.target.measured else (*suite.workloads, *suite.final)
        if any(w.id == region["workload"] and dict(w.dims) == dict(region["dims"]) for w in timed):
            return suite.name
    return None


# -- what is said ------------------------------------------------------------------------------------


def _findings(found: Recheck, version: str | None) -> Iterator[Finding]:
    """What a recheck found, a sentence each; not good is only what no kernel serves any more."""
    where, operator = f"{found.entry_name}, {found.kind}", found.operator
    for kernel, reason in found.failed.items():
        lost = ", ".join(r["workload"] for r in found.dropped if r["kernel"] == kernel)
        left = f"; no kernel serves {lost}: run a campaign and promote its winner" if lost else ""
        yield Finding(not lost, f"{operator}: kernel {kernel} is no longer served: {reason}{left}.")
    for region in found.dropped:
        if region["kernel"] not in found.failed:
            yield Finding(
                True,
                f"{operator}: {region['workload']} is in no suite any more, so that nothing can verify it: it is no "
                "entry now, and is served as any other shape between entries.",
            )
    for served in found.slower:
        assert served.change is not None and served.promised is not None
        yield Finding(
            True,
            f"{operator}: {served.region['workload']} takes {served.figures.seconds * 1e6:.2f} us here, "
            f"{100 * served.change:.1f} % more than the {served.promised['seconds'] * 1e6:.2f} us of its receipt "
            f"({where}).",
        )
    yield Finding(True, f"{operator}: {_summary(found, version)} ({where}).")


def _summary(found: Recheck, version: str | None) -> str:
    if version is None:
        return "no kernel passes; the reference answers"
    text = f"{len(found.served)} shapes of {len(found.verified)} kernels verified and timed on {found.where}"
    changes = [s.change for s in found.served if s.change is not None]
    if changes:
        mean = 100 * (math.exp(sum(math.log1p(c) for c in changes) / len(changes)) - 1)
        text += f", {mean:+.1f} % against their receipts in the geometric mean, {100 * max(changes):+.1f} % at most"
    if (untold := len(found.served) - len(changes)) > 0:
        text += f", {untold} without a figure to compare with"
    return f"{text}; version {version}"


# -- the version that is written ---------------------------------------------------------------------


def _write(writer: LibraryWriter, found: Recheck) -> str | None:
    """Write what was found as a new version; its id, None where nothing is left to serve. Raises LibraryError.

    A library that was changed meanwhile is left as it is (Refusal).
    """
    note: dict[str, Any] = {
        "action": "recheck",
        "target": found.entry_name,
        "rechecked_on": found.where,
        "failed": dict(sorted(found.failed.items())),
        "dropped": [region["workload"] for region in found.dropped],
        "slower": {s.region["workload"]: s.change for s in found.slower},
    }
    with writer.writing():
        if writer.index(found.operator)["current"] != found.version:
            raise Refusal(f"{found.operator} was changed while it was rechecked; recheck it again.")
        _, receipt, dispatch = writer.version(found.operator, found.version)
        others = {n: e for n, e in dispatch["targets"].items() if n != found.entry_name}
        if not found.served and not others:
            writer.point(found.operator, None, note)
            return None
        files, new_receipt = _version_files(writer, found, receipt, dispatch, others)
        return writer.add(found.operator, files, new_receipt, note)


def _version_files(
    writer: LibraryWriter,
    found: Recheck,
    receipt: Mapping[str, Any],
    dispatch: Mapping[str, Any],
    others: Mapping[str, Any],
) -> tuple[Files, dict[str, Any]]:
    name = found.entry_name
    targets, receipts = dict(others), {n: r for n, r in receipt["targets"].items() if n != name}
    if found.served:
        receipts[name] = _receipt(found, receipt["targets"][name])
        targets[name] = _entry(found, dispatch["targets"][name], receipts[name]["shapes"])
    files = _kept_files(writer, found, receipt, targets)
    checks = [check for check in dispatch.get("checks", ()) if check["target"] in targets]
    new_dispatch = {**dispatch, "rule": rule.TEXT, "targets": dict(sorted(targets.items())), "checks": checks}
    files[store.DISPATCH] = json_bytes(new_dispatch)
    plans = {n: plan for n, plan in receipt.get("plans", {}).items() if n in files}
    facts = {k: v for k, v in receipt.items() if k not in ("files", "plans")}
    return files, {**facts, "targets": receipts, **({"plans": plans} if plans else {})}


def _kept_files(writer: LibraryWriter, found: Recheck, receipt: Mapping[str, Any], targets: Mapping[str, Any]) -> Files:
    """Files of the version before that hold still: no kernel without a table, no plans of another compiler."""
    _, _, dispatch = writer.version(found.operator, found.version)
    before, now = (files_named(tables.values()) for tables in (dispatch["targets"], targets))
    compiler = toolchain_ranges(found.verified.values()).get("triton", ("", ""))[0]
    kept = {}
    for name, sha256 in receipt["files"].items():
        if name in before - now:
            continue
        data = writer.file(found.operator, found.version, name, sha256)
        pack = name.startswith(f"{store.PACK}{found.entry_name}_")
        if pack and plan_shelf.Pack(data, name).toolchain.get("triton", "").split("+")[0] != compiler:
            continue
        kept[name] = data
    return kept


def _entry(found: Recheck, old: Mapping[str, Any], shapes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kernels = {}
    for name, verified in found.verified.items():
        shapes_here = [s.region["dims"] for s in found.served if s.region["kernel"] == name]
        # the sizes it was promoted for stay: other shapes were drawn then, and these lie between them
        drawn = left_out_constraints(verified.evaluations)
        if found.alone:
            drawn = served_constraints(verified.evaluations, shapes_here, alone=True)
        limits = dict.fromkeys((*verified.contender.within, *drawn))
        kernels[name] = {**old["kernels"][name], "constraints": list(limits)}
    return {
        **old,
        "toolchain": toolchain_ranges(found.verified.values()),
        "constants": dict(found.constants),
        "reach": rule.REACH,
        "devices": sorted(device_names(found.verified.values())),
        "kernels": kernels,
        "regions": with_shares([s.region for s in found.served], shapes),
    }


def _receipt(found: Recheck, old: Mapping[str, Any]) -> dict[str, Any]:
    """The old receipt's campaign and gain, with candidates and shapes as they were found here."""
    origins = {candidate["genome"]: candidate for candidate in old["candidates"]}
    return {
        **old,
        "candidates": [
            {
                "genome": name,
                "params": dict(verified.contender.genome.params),
                **origins.get(name, {}),
                **what_was_verified(verified),
            }
            for name, verified in found.verified.items()
        ],
        "shapes": [_shape(found, served) for served in found.served],
        "rechecked": {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": found.version,
            "target": found.target.name,
            "on": found.where,
            "tilewright": {"version": version(), "commit": commit()},
            "failed": dict(sorted(found.failed.items())),
            "dropped": [region["workload"] for region in found.dropped],
        },
    }


def _shape(found: Recheck, served: ServedShape) -> dict[str, Any]:
    """A shape's figures here. ``before``: what the version before promised, ``change``: seconds here over that, less
    one, None where the figures do not compare."""
    region, figures, promised = served.region, served.figures, served.promised or {}
    origin = ("campaign", "suite", "gain", "gain_interval", "incumbent")
    before = ("seconds", "seconds_interval", "model_version")
    return {
        **{k: promised[k] for k in origin if k in promised},
        **shape_figures(figures, region["dims"], region["kernel"], found.kind),
        "seconds": figures.seconds,
        "seconds_interval": list(served.interval),
        "before": {"genome": region["kernel"], **{k: promised[k] for k in before if k in promised}},
        "change": served.change,
    }
