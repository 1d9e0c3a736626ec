"""Files of a version: kernels, dispatch table with the toolchains it trusts, receipt.

They are made here and written by the writer.
"""

import ast
import importlib.util
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.evolve.promote.judge import Judgement
from tilewright.evolve.promote.nominate import Nomination
from tilewright.evolve.promote.reference_files import packed_reference
from tilewright.evolve.promote.verify import Refusal, Verified, gates_read, served_constraints
from tilewright.evolve.record.history import Candidate
from tilewright.evolve.record.system import commit, version
from tilewright.evolve.space.genome import normalise
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.chips import Chip
from tilewright.fitness.dialect import device_code, is_cuda
from tilewright.fitness.evaluation import WorkloadFigures
from tilewright.fitness.targets import Target
from tilewright.library import checks, operands, oracle, store
from tilewright.library import dispatch_rule as rule
from tilewright.seeds.operator import Operator, Workload
from tilewright.workers.cascade.drawn_shapes import verified_alone

GOLDEN_LIMIT = 4 << 20
RANGED = ("jax", "jaxlib", "libtpu", "triton")
"""Packages whose versions decide what a kernel compiles to."""

LANGUAGES = (("gluon", "triton.experimental.gluon"), ("triton", "triton"), ("pallas", "jax.experimental.pallas"))
LINE = 110
"""Columns of a promoted source."""

Files = dict[str, bytes]


@dataclass(frozen=True)
class Promotion:
    """All that is known once a promotion has been allowed."""

    nomination: Nomination
    operator: str
    judgement: Judgement
    found: Mapping[str, Verified]
    names: Mapping[str, str]
    forced: str | None
    overruled: str | None
    refused: Mapping[str, str] = field(default_factory=dict)
    """Candidates of the table that failed, by name, and why; others serve their shapes."""


def build(promotion: Promotion, before: tuple[dict[str, Any], dict[str, Any], Files] | None) -> tuple[Files, dict]:
    """(files, receipt) of the new version. ``before``: receipt, dispatch and kernel files of the current one."""
    target = promotion.nomination.resolved.target.name
    old_receipt, old_dispatch, old_files = before or ({"targets": {}}, {"targets": {}}, {})
    # of devices of one architecture a library serves one, and what another was promoted for is not kept
    place = entry_name(old_dispatch["targets"], promotion.nomination.resolved.target)
    others = [name for name in old_dispatch["targets"] if name != place]
    entry, kernels = _entry(promotion, old_dispatch["targets"].get(target))
    target_receipt = with_earlier(_receipt(promotion), old_receipt["targets"].get(target), entry["regions"])
    entry["regions"] = with_shares(entry["regions"], target_receipt["shapes"])
    if lost := getattr(promotion.nomination.resolved.operator, "left_out", ()):
        target_receipt = {**target_receipt, "left_out": list(lost)}
    targets = {**{name: old_dispatch["targets"][name] for name in others}, target: entry}
    used = files_named(targets.values())
    files = {**{n: d for n, d in old_files.items() if n in used}, **kernels}
    operator = promotion.nomination.resolved.operator
    dimensions = list(next(iter(promotion.judgement.shapes)).dims)
    dispatch = {
        "format": store.FORMAT,
        "operator": promotion.operator,
        "dimensions": dimensions,
        "targets": targets,
        "rule": rule.TEXT,
        "fallback": "reference",
    }
    shapes = fitted_operands(operator, dimensions)
    if shapes is not None:
        dispatch["operands"] = shapes.data()
    reference = packed_reference(operator, promotion.nomination.resolved.config.operator)
    if reference is not None:
        files[oracle.FILE] = reference
    golden = None if checks.draws(promotion.operator) else _golden(operator)
    if golden is not None:
        files["golden.npz"] = golden[1]
    dispatch["checks"] = _checks(promotion, targets, golden[0] if golden else None)
    files[store.DISPATCH] = json_bytes(dispatch)
    receipt = {
        "format": store.FORMAT,
        "operator": promotion.operator,
        "targets": {**{name: old_receipt["targets"][name] for name in others}, target: target_receipt},
    }
    return files, receipt


# -- the dispatch table ------------------------------------------------------------------------------


def _entry(promotion: Promotion, old: Mapping[str, Any] | None) -> tuple[dict[str, Any], Files]:
    """The table of the promoted target. Regions of other shapes that were promoted before stay."""
    resolved = promotion.nomination.resolved
    kernels, files = {}, {}
    used = {shape.genome for shape in promotion.judgement.shapes}
    for candidate in promotion.nomination.candidates:
        genome = candidate.genome
        if genome.id not in used:
            continue  # what serves now stays wherever it was to serve
        facts, made = kernel_files(promotion.operator, resolved.target.name, genome.source)
        files.update(made)
        expected = _expected_time(genome.source)
        if expected is not None:
            names = {**resolved.operator.constants, **resolved.target.constants, **genome.params}
            _require_times(expected, names, [shape.dims for shape in promotion.judgement.shapes])
        kernels[genome.id] = {
            **facts,
            **({"expected": expected} if expected else {}),
            "params": dict(genome.params),
            "constraints": [
                *read_declarations(genome.source).constraints,
                *served_constraints(
                    promotion.found[promotion.names[genome.id]].evaluations,
                    [shape.dims for shape in promotion.judgement.shapes if shape.genome == genome.id],
                    verified_alone(resolved.operator, resolved.target),
                ),
            ],
        }
    regions = [
        {"workload": shape.figures.workload, "dims": dict(shape.dims), "kernel": shape.genome}
        for shape in promotion.judgement.shapes
    ]
    fresh = {region["workload"] for region in regions}
    if old:
        regions += [region for region in old["regions"] if region["workload"] not in fresh]
        left = {str(region["kernel"]) for region in regions} - kernels.keys()
        kernels.update((name, old["kernels"][name]) for name in sorted(left))
    languages = [language(c.genome.source) for c in promotion.nomination.candidates]
    languages += [old["language"]] if old else []
    entry = {
        "kind": resolved.target.kind.value,
        "serves": [device_key(resolved.target)],
        "language": next((name for name in languages if name != "cuda"), "cuda"),
        "toolchain": toolchain_ranges(promotion.found.values()),
        "constants": {**resolved.operator.constants, **resolved.target.constants},
        "reach": rule.REACH,
        "devices": sorted(device_names(promotion.found.values())),
        "kernels": kernels,
        "regions": regions,
    }
    return entry, files


def _expected_time(source: str) -> str | None:
    """The time to expect that a kernel module declares, an expression (``library.dispatch_rule``). Raises Refusal."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPECTED":
            if not isinstance(node.value, ast.Constant) or not isinstance(node.value.value, str):
                raise Refusal("promotion refused: EXPECTED of a kernel is no text.")
            return node.value.value
    return None


def _require_times(expected: str, names: Mapping[str, Any], shapes: Iterable[Mapping[str, int]]) -> None:
    """What decides which kernel serves is a positive number at every shape of the table. Raises Refusal."""
    try:
        kernel = rule.Legality((), names, expected)
    except (SyntaxError, ValueError) as error:
        raise Refusal(f"promotion refused: EXPECTED of a kernel: {error}.") from error
    for dims in shapes:
        if not (time := kernel.expected_time(dims)):
            place = " ".join(f"{name} {size}" for name, size in dims.items())
            raise Refusal(f"promotion refused: EXPECTED of a kernel is no time at {place} (it is {time}).")


def fitted_operands(operator: Operator, dimensions: Sequence[str]) -> operands.Operands | None:
    """The operator's operands as functions of its dimensions; None where they are no such functions."""
    cases = [
        (dict(w.dims), operator.inputs(w), operator.outputs(w))
        for suite in operator.suites.values()
        for w in (*suite.check, *suite.workloads, *suite.final)
        if list(w.dims) == list(dimensions)
    ]
    return operands.fitted(dimensions, cases) if cases else None


def device_names(found: Iterable[Verified]) -> set[str]:
    """Names of the devices the figures were measured on."""
    evaluations = [e for verified in found for e in verified.evaluations]
    return {e.toolchain["device"] for e in evaluations if "device" in e.toolchain}


def device_key(target: Target) -> str:
    """How a running program recognises the target's device: ``cuda:9.0``, ``tpu:TPU7x``, ``interpret``."""
    if isinstance(target.hardware, Chip):
        return f"tpu:{target.hardware.device_kind}"
    if target.hardware.interpreted:
        return store.INTERPRET
    return f"cuda:{target.hardware.capability // 10}.{target.hardware.capability % 10}"


def entry_name(entries: Mapping[str, Any], target: Target) -> str | None:
    """Of a table's entries, a target's own, else, on a device, the one that serves devices of its architecture."""
    if target.name in entries or not target.measured:
        return target.name if target.name in entries else None
    key = device_key(target)
    return next((n for n, e in entries.items() if key in e["serves"] and e["kind"] == target.kind.value), None)


def toolchain_ranges(checked: Iterable[Verified]) -> dict[str, tuple[str, str]]:
    """Package to (verified version, the first that is no longer trusted): the next minor, or patch of a 0.0 release."""
    found = {}
    for verified in checked:
        for evaluation in verified.evaluations:
            found.update({n: v for n, v in evaluation.toolchain.items() if n in RANGED})
    ranges = {}
    for name, verified_with in sorted(found.items()):
        numbers = (*store.version_numbers(verified_with), 0, 0)[:3]
        below = f"{numbers[0]}.{numbers[1] + 1}" if any(numbers[:2]) else f"0.0.{numbers[2] + 1}"
        ranges[name] = (verified_with.split("+")[0], below)
    return ranges


def files_named(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    """The kernel files that targets' tables name."""
    return {name for entry in entries for k in entry["kernels"].values() for name in store.kernel_files(k)}


def kernel_files(operator: str, target: str, source: str) -> tuple[dict[str, Any], Files]:
    """(what a table says of a source's files, the files): the same for every kernel that is made of it.

    A formatted module under a header; device code, which it names, lies beside it.
    """
    text, code = _split_device_code(_format_source(source))
    header, files, facts = _HEADER.format(operator=operator, target=target), Files(), dict[str, Any]()

    def add(text: str, suffix: str) -> tuple[str, str]:
        data = text.encode("utf-8")
        name = f"{target}_{store.digest(data)[: store.ID_LENGTH]}{suffix}"
        files[name] = data
        return name, store.digest(data)

    if code:
        name, sha256 = add(code, ".cu")
        text, facts["device_code"] = text.replace(_PLACE, f'"{name}"'), {name: sha256}
    facts["file"], facts["sha256"] = add(header + text, ".py")
    return facts, files


_PLACE = '"device code"'


def _split_device_code(source: str) -> tuple[str, str]:
    """A module with its device code taken out, and that code; empty where there is none, or none that stands alone."""
    node = device_code(ast.parse(source))
    literal = ast.get_source_segment(source, node) if node is not None else None
    if node is None or not literal or source.count(literal) != 1:
        return source, ""
    text, code = source.replace(literal, _PLACE), str(node.value)
    same = normalise(text.replace(_PLACE, f'r"""{code}"""')) == normalise(source)
    return (text, code) if same else (source, "")


_HEADER = """\
# {operator} for {target}. Promoted by tilewright: do not edit,
# a file whose hash differs from its receipt is not used.
# dispatch.json has the parameters and shapes of the kernels that are made of this source,
# receipt.json has their campaigns, lineages and gains.
#
"""


@lru_cache(maxsize=64)
def _format_source(source: str) -> str:
    """By ruff where it is installed (the ``dev`` extra), else as it is."""
    if importlib.util.find_spec("ruff") is None:
        return source
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(LINE), "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 and normalise(done.stdout) == normalise(source) else source


def language(source: str) -> str:
    """``cuda``, ``gluon``, ``triton`` or ``pallas``, by what the module imports. Raises ValueError for none of them."""
    if is_cuda(source):
        return "cuda"
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
    for name, prefix in LANGUAGES:
        if any(module == prefix or module.startswith(f"{prefix}.") for module in modules):
            return name
    raise ValueError("the kernel imports none of pallas, triton and gluon")


# -- the receipt -------------------------------------------------------------------------------------


def _receipt(promotion: Promotion) -> dict[str, Any]:
    nomination, judgement = promotion.nomination, promotion.judgement
    resolved = nomination.resolved
    candidates = [
        {
            "index": candidate.index,
            "genome": candidate.genome.id,
            "params": dict(candidate.genome.params),
            "lineage": list(nomination.lineage[candidate.genome.id]),
            **what_was_verified(promotion.found[promotion.names[candidate.genome.id]]),
        }
        for candidate in nomination.candidates
    ]
    return {
        "target": {"name": resolved.target.name, "kind": resolved.target.kind.value},
        "campaign": {
            "id": nomination.campaign,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(nomination.started)),
            "operator": resolved.config.operator,
            "suite": resolved.suite.name,
            "seed": resolved.config.seed,
        },
        "promoted": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tilewright": {"version": version(), "commit": commit()},
        "candidates": candidates,
        "incumbents": {
            name: {"genome": v.contender.genome.id, **what_was_verified(v)}
            for name, v in promotion.found.items()
            if name not in promotion.names.values()
        },
        "gain": {
            "value": judgement.gain,
            "interval": list(judgement.interval),
            "interval_holds": judgement.share,
            "unit": "times the incumbent's rate, geometric mean over the shapes",
            "kind": judgement.kind.value,
            "incumbents": judgement.incumbents,
        },
        "shapes": [_shape(shape, judgement) for shape in judgement.shapes],
        "forced": promotion.forced,
        "overruled": promotion.overruled,
        "refused": dict(promotion.refused),
    }


def with_earlier(
    receipt: dict[str, Any], old: Mapping[str, Any] | None, regions: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A receipt with what an older one says of those of the table's regions and kernels that it leaves out."""
    if old is None:
        return receipt
    shapes, candidates = list(receipt["shapes"]), list(receipt["candidates"])
    origin = {"campaign": old["campaign"]["id"], "suite": old["campaign"]["suite"]}
    served = {(region["workload"], region["kernel"]) for region in regions}
    known = {shape["workload"] for shape in shapes}
    for shape in old["shapes"]:
        if shape["workload"] not in known and (shape["workload"], shape["genome"]) in served:
            shapes.append({**origin, **shape})
    known = {candidate["genome"] for candidate in candidates}
    for candidate in old["candidates"]:
        if candidate["genome"] not in known and candidate["genome"] in {genome for _, genome in served}:
            candidates.append({**origin, **candidate})
    return {**receipt, "shapes": shapes, "candidates": candidates}


def with_shares(regions: Sequence[Mapping[str, Any]], shapes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A table's regions with the share of the roofline that a receipt's figures say their kernels reach there."""
    shares = {(shape["workload"], shape["genome"]): shape.get("roofline_fraction") for shape in shapes}
    found = []
    for region in regions:
        share = shares.get((region["workload"], region["kernel"]))
        found.append({**region, **({"share": share} if share else {})})
    return found


def what_was_verified(verified: Verified) -> dict[str, Any]:
    """One contender's part of a receipt: evaluations, gates, seeds, artefacts, toolchain."""
    last = verified.evaluations[-1]
    gates = gates_read(verified)
    return {
        "evaluations": len(verified.evaluations),
        "workloads": list(dict.fromkeys(f.workload for e in verified.evaluations for f in e.workloads)),
        "gate_seeds": verified.seeds,
        "input_sets": verified.input_sets,
        "gates": {
            name: {"worst": value, "unit": "dB, or elements that differ for bit-exact gates", "readings": count}
            for name, (value, count) in gates.items()
        },
        "artefacts": sorted({e.artefact for e in verified.evaluations if e.artefact}),
        "toolchain": dict(last.toolchain),
    }


def shape_figures(figures: WorkloadFigures, dims: Mapping[str, int], genome: str, kind: str) -> dict[str, Any]:
    """A shape's part of a receipt that every receipt has, but for its seconds. ``kind``: measured or modelled."""
    return {
        "workload": figures.workload,
        "dims": dict(dims),
        "genome": genome,
        "kind": kind,
        "model_version": figures.model_version,
        "rate": figures.rate,
        "unit": figures.unit,
        "roofline_fraction": figures.roofline_fraction,
    }


def _shape(shape: Any, judgement: Judgement) -> dict[str, Any]:
    return {
        **shape_figures(shape.figures, shape.dims, shape.genome, judgement.kind.value),
        "seconds": shape.seconds,
        "seconds_interval": list(shape.interval),
        "incumbent": shape.incumbent,
        "incumbent_seconds": shape.incumbent_seconds,
        "gain": shape.gain,
        "gain_interval": list(shape.gain_interval),
    }


# -- what shows that the kernels keep their recipe ---------------------------------------------------


def _checks(promotion: Promotion, targets: Iterable[str], golden: Workload | None) -> list[dict[str, Any]]:
    """What ``checks`` of the library runs: each target at a small shape, on recorded inputs or all kinds."""
    operator, suite = promotion.nomination.resolved.operator, promotion.nomination.resolved.suite
    shape = golden or min(suite.check, key=operator.flops)
    kinds = ("golden",) if golden else checks.KINDS
    return [{"target": t, "dims": dict(shape.dims), "kind": kind} for t in targets for kind in kinds]


def _golden(operator: Operator) -> tuple[Workload, bytes] | None:
    """Operands and float64 references of the smallest check shape, for a family the package does not know."""
    checked = {w.id: w for suite in operator.suites.values() for w in suite.check}
    workload = min(checked.values(), key=operator.flops)
    inputs = operator.make_inputs(workload, 0, operator.input_kinds[-1])
    reference: dict[str, np.ndarray] = {}
    for part in operator.oracle(workload, inputs).values():
        # An output's first reference is what it is judged by.
        reference = {**part, **reference}
    arrays: dict[str, np.ndarray] = {}
    for number, spec in enumerate(operator.inputs(workload)):
        array = np.ascontiguousarray(inputs[spec.name])
        arrays[f"in{number}|{spec.dtype}"] = array.view(f"u{array.dtype.itemsize}")
    for number, spec in enumerate(operator.outputs(workload)):
        arrays[f"out{number}|float64"] = np.asarray(reference[spec.name], np.float64)
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]
    return (workload, packed.getvalue()) if packed.tell() <= GOLDEN_LIMIT else None


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """As every JSON file of a version is written."""
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()


def names_of(candidates: Sequence[Candidate]) -> dict[str, str]:
    """Genome id to the name a contender has in messages."""
    return {c.genome.id: f"candidate {c.index}" for c in candidates}
