"""The version that a recheck writes: its table, receipt and files, from what was found and the version before."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.promote.recheck import Found, Served
from tilewright.evolve.promote.verify import Refusal, served_within
from tilewright.evolve.promote.version_files import (
    Files,
    device_names,
    files_named,
    json_bytes,
    toolchain_ranges,
    what_was_verified,
)
from tilewright.evolve.record.system import commit, version
from tilewright.evolve.space.space import read_declarations
from tilewright.library import dispatch_rule as rule
from tilewright.library import plan_shelf, store

ACTION = "recheck"


def write(writer: LibraryWriter, found: Found) -> str | None:
    """Write what was found as a new version; its id, None where nothing is left to serve. Raises LibraryError.

    A library that was changed meanwhile is left as it is (Refusal).
    """
    note: dict[str, Any] = {
        "action": ACTION,
        "target": found.entry_name,
        "rechecked_on": found.where,
        "failed": dict(sorted(found.failed.items())),
        "dropped": [region.workload for region in found.dropped],
        "slower": {s.region.workload: s.change for s in found.slower},
    }
    with writer.writing():
        if writer.index(found.operator)["current"] != found.version:
            raise Refusal(f"{found.operator} was changed while it was rechecked; recheck it again.")
        _, receipt, dispatch = writer.version(found.operator, found.version)
        others = {n: e for n, e in dispatch["targets"].items() if n != found.entry_name}
        if not found.served and not others:
            writer.point(found.operator, None, note)
            return None
        files, told = _version_files(writer, found, receipt, dispatch, others)
        return writer.add(found.operator, files, told, note)


def _version_files(
    writer: LibraryWriter,
    found: Found,
    receipt: Mapping[str, Any],
    dispatch: Mapping[str, Any],
    others: Mapping[str, Any],
) -> tuple[Files, dict[str, Any]]:
    name = found.entry_name
    targets, fresh = dict(others), dict[str, bytes]()
    receipts = {n: r for n, r in receipt["targets"].items() if n != name}
    if found.served:
        targets[name], fresh = _entry(found, dispatch["targets"][name])
        receipts[name] = _receipt(found, receipt["targets"][name])
    checks = [check for check in dispatch.get("checks", ()) if check["target"] in targets]
    table = json_bytes(
        {**dispatch, "rule": rule.TEXT, "targets": dict(sorted(targets.items())), "checks": checks}
    )
    files = {**_kept_files(writer, found, receipt, dispatch, others), **fresh, store.DISPATCH: table}
    plans = {n: told for n, told in receipt.get("plans", {}).items() if n in files}
    told = {k: v for k, v in receipt.items() if k not in ("files", "plans")}
    return files, {**told, "targets": receipts, **({"plans": plans} if plans else {})}


def _kept_files(
    writer: LibraryWriter,
    found: Found,
    receipt: Mapping[str, Any],
    dispatch: Mapping[str, Any],
    others: Mapping[str, Any],
) -> Files:
    """The files that hold still: no kernel that this target alone used, no plans made by another compiler."""
    mine = files_named([dispatch["targets"][found.entry_name]]) - files_named(others.values())
    ranges = toolchain_ranges(found.verified.values())
    kept = {}
    for name, sha256 in receipt["files"].items():
        if name in mine:
            continue
        data = writer.file(found.operator, found.version, name, sha256)
        if name.startswith(f"{store.PACK}{found.entry_name}_"):
            made_with = plan_shelf.Pack(data, name).toolchain.get("triton", "").split("+")[0]
            if made_with != ranges.get("triton", ("", ""))[0]:
                continue
        kept[name] = data
    return kept


def _entry(found: Found, old: Mapping[str, Any]) -> tuple[dict[str, Any], Files]:
    kernels, files = {}, Files()
    for served in found.served:
        name, shapes = (
            served.offer.name,
            [s.region.dims for s in found.served if s.offer.name == served.offer.name],
        )
        kernels[name] = {
            **served.offer.entry,
            "constraints": [
                *read_declarations(served.offer.genome.source).constraints,
                *served_within(found.verified[name].evaluations, shapes),
            ],
        }
        files.update(served.offer.files)
    regions = [
        {
            "workload": s.region.workload,
            "dims": dict(s.region.dims),
            "kernel": s.offer.name,
            "share": s.figures.roofline_fraction,
        }
        for s in found.served
    ]
    ranges = toolchain_ranges(found.verified.values())
    whole = not found.failed and not found.dropped
    entry = {
        **old,
        "toolchain": {n: _join_ranges(old["toolchain"].get(n), r) if whole else r for n, r in ranges.items()},
        "constants": dict(found.constants),
        "reach": rule.REACH,
        "devices": sorted(device_names(found.verified.values())),
        "kernels": kernels,
        "regions": regions,
    }
    return entry, files


def _join_ranges(old: list[str] | None, here: tuple[str, str]) -> tuple[str, str]:
    """Both ranges as one, where one begins no later than the other ends, or with the minor release it ends at."""
    if old is None:
        return here
    numbers = store.version_numbers
    (first, first_end), (second, second_end) = sorted((tuple(old), here), key=lambda r: numbers(r[0]))
    release = 2 if any(numbers(first_end)[:2]) else 3  # of 0.0.51 the patch
    if numbers(second)[:release] > numbers(first_end)[:release]:
        return here
    return first, max(first_end, second_end, key=numbers)


def _receipt(found: Found, old: Mapping[str, Any]) -> dict[str, Any]:
    """The old receipt's campaign and gain, with candidates and shapes as they were found here."""
    candidates = []
    for name in dict.fromkeys(s.offer.name for s in found.served):
        offer = next(s.offer for s in found.served if s.offer.name == name)
        origin = {"params": dict(offer.entry["params"]), **offer.candidate}
        candidates.append({**origin, **what_was_verified(found.verified[name])})
    return {
        **old,
        "candidates": candidates,
        "shapes": [_shape(found, served) for served in found.served],
        "rechecked": {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": found.version,
            "target": found.target.name,
            "on": found.where,
            "tilewright": {"version": version(), "commit": commit()},
            "failed": dict(sorted(found.failed.items())),
            "dropped": [region.workload for region in found.dropped],
        },
    }


def _shape(found: Found, served: Served) -> dict[str, Any]:
    """A shape's figures here. ``before``: what the version before promised, ``change``: seconds here over that, less
    one, None where the figures do not compare."""
    region, figures = served.region, served.figures
    promised = region.promised
    told: dict[str, Any] = {
        "workload": region.workload,
        "dims": dict(region.dims),
        "genome": served.offer.name,
        "kind": found.kind,
        "seconds": figures.seconds,
        "seconds_interval": list(served.interval),
        "model_version": figures.model_version,
        "rate": figures.rate,
        "unit": figures.unit,
        "roofline_fraction": figures.roofline_fraction,
        "before": {"genome": region.genome},
        "change": served.change,
    }
    if promised is not None:
        told["before"] |= {
            "seconds": promised["seconds"],
            "seconds_interval": promised["seconds_interval"],
            "model_version": promised["model_version"],
        }
        told |= {
            k: promised[k]
            for k in ("campaign", "suite", "gain", "gain_interval", "incumbent")
            if k in promised
        }
    return told
