"""What a campaign will say of its seed, asked beforehand: by the same operator, suite, gates, inputs and target."""

from __future__ import annotations

import copy
import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.evolve.campaign.loop import failure_text, gate_seed
from tilewright.evolve.campaign.preparation import pool_settings
from tilewright.evolve.campaign.resolve import resolve
from tilewright.evolve.errors import SeedFailed, UserError
from tilewright.evolve.intake import folder
from tilewright.evolve.intake.tune import Request, config_of, tuned_entry, write_operator
from tilewright.fitness.chips import Chip
from tilewright.fitness.evaluation import Evaluation, GateReading, Verdict
from tilewright.fitness.gates import failure
from tilewright.fitness.targets import Target
from tilewright.seeds.catalogue import forget
from tilewright.seeds.operator import Gate
from tilewright.seeds.sampled import TABLE_KINDS
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.cluster.pool import make_pool
from tilewright.workers.device.warm_device import WarmDevice, device_for
from tilewright.workers.intake.judge import bounds
from tilewright.workers.intake.judge.inputs import family
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.operator import LEAST_CODES, Operand, operand_row, with_smaller

if TYPE_CHECKING:
    from tilewright.evolve.campaign.config import CampaignConfig
    from tilewright.evolve.run import CampaignOutcome

_IN_PLACE = re.compile(r"\.dot\(([^=()]*,){2}[^=()]*\)|\.dot\(.*\bacc=")
_LEAN = re.compile(r"errors go one way, .* by (\S+) of")
_CUT = 2.0**-16
"""Share of a sum of one sign that a product loses, at most: what is added is cut to 2^-13 of the largest addend."""

_LAST_PLACES = {"bfloat16": 2.0**8, "float16": 2.0**11}
"""Last places of a type in a number: sums of one sign all fall short of theirs, in every draw of inputs."""

_ONE_SIGN = ("signed", "repeated")
"""Tables whose products have a mean: their sums lose it, 7 % of 4096 products: no bound of a whole allows it."""

ROOM_DB = 3.0
"""How much more noise than the seed's own others may make, where that of rounding is no measure."""

ONE_ROUNDING_DB = {"bfloat16": 53.0, "float16": 71.0}
"""What one rounding leaves, at least."""

SECONDS = 300.0
"""Most that the seed's evaluation may take."""

DRAWS = 4
"""Draws of a campaign's inputs on which a GPU judges the seed: of 12 seeds that passed the first, 5 failed one of four
others."""

NOISE = 2.0**-12
"""Share of what is usual by which sums of a seed may be off that make more noise on a target than rounding does."""


def seed_failure(
    request: Request,
    answer: MutableMapping[str, Any],
    target: Target,
    device: WarmDevice | None,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Why a campaign refuses the function that was read in; empty where it starts.

    A device treats what is no number or no normal one by its own ways, and sums in other orders than the interpreter:
    kinds of inputs that the kernel fails on the target are taken off ``answer``, and a bound that single elements of
    others miss is widened by the kernel's own error there, up to what its types explain, with a note for each. Noise
    of candidates may then be ``ROOM_DB`` above the kernel's, and twice as many of their codes may turn. ``say`` is told
    the first verdict of each round.
    """
    own = answer.get("asked", request).reference == SELF
    with tempfile.TemporaryDirectory(prefix="tilewright-check-") as home:
        while True:
            try:
                evaluation, gates = _evaluation(
                    request, answer, target, device and device.lend(), Path(home), seed, say
                )
            except SeedFailed as error:
                return str(error)
            if evaluation.verdict is Verdict.OK:
                return ""
            if evaluation.verdict is Verdict.RESOURCE_ERROR and _lower_defaults(answer, evaluation.reason):
                continue
            failed = [reading for reading in evaluation.gates if not reading.passed]
            plain = [reading for reading in failed if not _removable(answer, reading)]
            before, settled = copy.deepcopy(answer["results"]), False
            for reading in plain or failed:
                # by changed bounds the others may pass now
                if plain or (_removable(answer, reading) and answer["results"] == before):
                    settled |= _adjust_judge(answer, reading, target, own) or (own and _shrink_inputs(answer, reading))
            if not settled:
                if plain and evaluation.reason == failure(failed, gates):  # it tells the first, not what bars
                    evaluation = evaluation.model_copy(update={"reason": failure(plain, gates)})
                return failure_text(evaluation)


def run_judged(
    config: CampaignConfig,
    home: Path,
    request: Request,
    answer: MutableMapping[str, Any],
    target: Target,
    where: Path,
    device: WarmDevice | None,
    say: Callable[[str], None],
) -> CampaignOutcome:
    """A campaign on the folder ``where``, on a device after ``seed_failure``, elsewhere once more if its seed fails and
    starts after that. Raises UserError."""
    from tilewright.evolve.run import run
    from tilewright.evolve.show.display import make_display

    known = len(answer["notes"])

    def started(lent: WarmDevice | None) -> CampaignOutcome:
        return run(config, home, make_display(), lent, tuned=tuned_entry(request, answer, where))

    def settle(lent: WarmDevice | None, first: str) -> None:
        if why := seed_failure(request, answer, target, lent, config.seed, say):
            raise SeedFailed(f"{first} it {why}.")
        for note in answer["notes"][known:]:
            say(f"  note       {note}")
        write_operator(answer.get("asked", request), answer, where)
        forget(where)

    if _draws(target) > 1:
        settle(device, "seeds:")
        return started(device)
    try:
        return started(device)
    except SeedFailed as first:
        with device_for(target) as other:  # the campaign closed its own
            settle(other, f"{str(first).removesuffix('.')}; judged by its own error and without such inputs,")
            say("the campaign starts again, judged as the notes say")
            return started(other)


def _draws(target: Target) -> int:
    """How many draws judge a seed: of a device that is there several."""
    return DRAWS if target.measured and not (isinstance(target.part, Chip) or target.interpreted) else 1


def _bar(dtype: str, value: float) -> float:
    """dB that others need where the seed has ``value``; a reference that is rounded itself makes that any number."""
    return round(min(value, ONE_ROUNDING_DB.get(dtype, value)) - ROOM_DB, 1)


def _removable(answer: Mapping[str, Any], reading: GateReading) -> set[str]:
    """The kinds of inputs, but the first, that a reading is of; a sample names their family alone."""
    kind = reading.inputs.rpartition(" on ")[2]
    return {k for k in answer["kinds"][1:] if kind in (k, family(k))}


def _adjust_judge(answer: MutableMapping[str, Any], failed: GateReading, target: Target, own: bool = False) -> bool:
    """Whether something was changed of ``answer`` so that this reading does not fail again. ``own``: the kernel is its
    own reference."""
    kind = failed.inputs.rpartition(" on ")[2]
    row = next(row for row in answer["results"] if row[0] == failed.gate)
    off = re.search(r"is off by (\S+) of what is usual", failed.detail)
    share = 2 * float(off[1]) if off else NOISE if "more noise than" in failed.detail else math.inf
    note = f"{row[0]} is judged by the original kernel's own error on {target.name}"
    operands = answer.get("operands", ())
    narrow = [o for o in operands if "float8" in o[1] and o[2]]
    kinds = [row[1], *(o[1] for o in operands)]
    cap, cut = bounds.CAP[bounds.narrowest(kinds)] if row[1] in bounds.CAP else 0.0, 0.0
    if narrow and _IN_PLACE.search(answer["source"]):
        cut = min(cap, _CUT * max(dims.get(o[2][-1], 0) for o in narrow for dims in answer["dims"]))
    floors, value = answer.setdefault("floors", {}), failed.value or 0.0
    least = floors.get(row[0], math.inf)
    if (of_types := bounds.EXPECTED_DB[bounds.narrowest(kinds)]) < row[3] <= bounds.EXPECTED_DB.get(row[1], 0.0):
        least = min(least, of_types)  # a bar that the interpreter's better digits raised
    if own:  # as far below as a reading of the interpreter's may be
        explained = (of_types, *bounds.PRODUCTS_DB.values())
        least = min(least, min((db for db in explained if db >= row[3]), default=math.inf) - bounds.ROOM_DB)
    lost = cut > (row[4] or 0.0) or (cut and "lost_tables" not in answer)
    if not lost and (left := _removable(answer, failed)):
        answer["kinds"] = [k for k in answer["kinds"] if k not in left]
        note = f"inputs of kind {kind} are not used: the original kernel fails on them on {target.name}"
    elif lost or (row[4] or 0.0) < share <= cap:
        if row[4] is None:  # noise is held to the kernel's own from now on, not to that of rounding
            floors[row[0]], row[3] = row[3], max(row[3], _bar(row[1], value))
        row[4] = max(cut, row[4] or 0.0, share if share <= cap else 0.0)
        if lost:
            answer["lost_tables"] = _ONE_SIGN
            deepest = max(dims.get(o[2][-1], 0) for o in narrow for dims in answer["check"])
            row[6] = max(row[6], _CUT * deepest * _LAST_PLACES.get(row[1], 0.0))
            note = (
                f"{row[0]} may be off by {cut:.2g} of what is usual, and timed calls have no inputs of one sign or few "
                "values: tensor cores add 8-bit products to what dot is given with 14 bits; write acc += tl.dot(a, b) "
                "for sums in float32"
            )
    elif not failed.detail and least <= value < row[3]:
        row[3] = max(least, _bar(row[1], value))
    elif (lean := _LEAN.search(failed.detail)) and row[6] < 2 * float(lean[1]):
        row[6] = 2 * float(lean[1])
    elif row[6] < (turned := 2 * (1 - value)) <= 2 * (1 - LEAST_CODES) and ("one way" in failed.detail or row[6]):
        row[6] = turned  # it turns codes by its own divisions, and others may turn twice as many
    elif kind in TABLE_KINDS and kind not in answer.get("lost_tables", ()):
        answer["lost_tables"] = (*answer.get("lost_tables", ()), kind)
        note = f"timed calls have no inputs of kind {kind}: the original fails on them on {target.name}"
    else:
        return False
    answer["notes"] = [*dict.fromkeys([*answer["notes"], note])]
    return True


def _shrink_inputs(answer: MutableMapping[str, Any], failed: GateReading) -> bool:
    """Whether inputs became smaller, of timed calls whose answers are no numbers; a shape of those is not always tried
    before."""
    made, note = with_smaller([Operand(*row) for row in answer["operands"]])
    if failed.value is not None or failed.detail or not failed.inputs.startswith("timed calls") or not note:
        return False
    answer["operands"] = list(map(operand_row, made))
    answer["notes"] = [*answer["notes"], note]
    return True


def _lower_defaults(answer: MutableMapping[str, Any], why: str) -> bool:
    """Whether the seed begins with smaller blocks now, which its own space has, since its own need too much memory."""
    own, space = answer["defaults"], answer["space"]
    below = {name: sorted((v for v in space[name] if v < own[name]), reverse=True) for name in own}
    over = re.search(r"take ([\d.]+)(\w?) of ([\d.]+)(\w?) ", why)  # a step may halve each of them
    share = float(over[1]) / float(over[3]) if over and over[2] == over[4] else 1.0
    steps = math.ceil(max(1.0, math.log2(share) / max(1, sum(map(bool, below.values())))))
    less = {name: [own[name], *values][: steps + 1][-1] for name, values in below.items()}
    answer["source"] = re.sub(r"(?ms)^DEFAULTS = \{.*?\}", f"DEFAULTS = {less!r}", answer["source"], count=1)
    answer["defaults"] = less
    begins = "the search begins with "
    notes = [note for note in answer["notes"] if not note.startswith(begins)]
    answer["notes"] = [*notes, f"{begins}{less}, smaller than the function's own values: {why}"]
    return bool(less != own)


def _evaluation(
    request: Request,
    answer: Mapping[str, Any],
    target: Target,
    device: WarmDevice | None,
    home: Path,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Evaluation, Sequence[Gate]]:
    """The seed's, as a campaign makes it, with the readings of all ``DRAWS``, and the gates that were read. Raises
    SeedFailed where there is none."""
    request = answer.get("asked", request)
    where = home / f"{request.name}_tuned"
    folder.write(where, request.function, request.reference, answer, request.values)
    forget(where)
    try:
        one = {"workers.count": 1} if isinstance(target.part, Chip) else {}  # each worker has children
        resolved = resolve(config_of(request, target, where, {"mlflow.enabled": False, "seed": seed, **one}))
    except UserError as error:  # its operator is none
        raise SeedFailed(re.sub(r"^operator: \S+ ", "", str(error)).removesuffix(".")) from error
    draws, finished = _draws(target), list[Evaluation]()
    pool = make_pool(pool_settings(resolved), device)
    try:
        pool.start()
        for draw in range(draws):
            pool.submit(Job(draw, resolved.starts[0].genome, gate_seed(seed, draw), best=math.inf))
        until = time.monotonic() + SECONDS
        while len(finished) < draws and time.monotonic() < until:
            begun = not finished
            finished += (evaluation for _, evaluation in pool.wait(1.0))
            if begun and finished:
                times = [f"{1e6 * f.seconds:.1f} us at {f.workload}" for f in finished[0].workloads]
                said = ", ".join([finished[0].verdict.value, *times])
                say(f"  seed       {said}: the first of {draws} draws, as a campaign judges it")
    finally:
        pool.close()
    if len(finished) < draws:
        raise SeedFailed(f"takes more than {SECONDS:.0f} s to be evaluated")
    finished.sort(key=lambda evaluation: evaluation.verdict is Verdict.OK)
    every = tuple(reading for evaluation in finished for reading in evaluation.gates)
    return finished[0].model_copy(update={"gates": every}), resolved.operator.gates
