"""The search for a faster configuration of each recorded kernel, on the values it was recorded with."""

import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from tilewright.fitness.intervals import Ratio
from tilewright.library.launch_replacement import innermost
from tilewright.workers.program import ENDED
from tilewright.workers.program.launches import OPTIONS, Launch, tuner_of
from tilewright.workers.program.replay import Replay
from tilewright.workers.program.scout import compile_all, job_of
from tilewright.workers.program.step import reason, synchronise
from tilewright.workers.program.turns import ratio, take_turns
from tilewright.workers.runners.triton.clock import Clock, CpuClock, GpuClock

FLUSH_BYTES = 256 << 20
SCREEN_CALLS, ROUNDS, ROUND_CALLS = 5, 8, 4
WARPS, STAGES = (1, 2, 4, 8, 16, 32), (1, 2, 3, 4, 5)
DEFAULTS: Mapping[str, int] = {"num_warps": 4, "num_stages": 3}
LEAST_TILE, MOST_TILE = 16, 65536
TILE = re.compile(r"^[XYR]?(BLOCK|TILE)|_(BLOCK|TILE)$", re.IGNORECASE)
LEAST_TRIED = 4
COMPILE_SECONDS = 2.5
"""What one configuration takes to compile, about."""

LEAST_GAIN = 1.005
"""Lower bound of the gain that a configuration needs on its launch."""

Configuration = dict[str, Any]


@dataclass
class Found:
    """The outcome for one launch: seconds of the incumbent and of the winner, and the winner's interval over it."""

    launch: Launch
    seconds: float
    configuration: Configuration | None = None
    gain: float = 1.0
    interval: Sequence[float] = (1.0, 1.0)
    tried: int = 0
    why: str = ""
    wrong: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """The outcome and which launch it is of, as data."""
        names = {name: getattr(self.launch, name) for name in ("kernel", "module", "name")}
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "launch"}
        return {**names, "arguments": self.launch.text, **own}


@dataclass(frozen=True)
class Job:
    """A launch to search. ``weight``: seconds of the step that it could save at most. ``seconds``: of one call in the
    step; 0 where no device timed it."""

    launch: Launch
    weight: float
    seconds: float = 0.0


def clock(replay: Replay, seconds: float) -> Clock:
    """Device events, or the wall clock where kernels are interpreted. The L2 cache is as cold as in the step: flushed
    before each call or not, whichever is nearer to ``seconds``."""
    if not torch.cuda.is_available():
        return CpuClock()
    clocks = [GpuClock(FLUSH_BYTES), GpuClock(0)]
    if not seconds:
        return clocks[0]
    return min(clocks, key=lambda timer: abs(math.log(_seconds(replay, {}, timer) / seconds)))


class Outcomes:
    """What was found of launches, kept in a file as it is found: a search that was stopped goes on there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, dict[str, Any]] = {}
        self.options: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(path.read_text(encoding="utf-8"))
            self.rows, self.options = known["launches"], known["options"]

    def of(self, launch: Launch) -> Found | None:
        """The outcome for the same launch of the same kernel, by the same device and compiler."""
        row = self.rows.get(_identity(launch), {})
        names = [f.name for f in fields(Found) if f.name != "launch"]
        return Found(launch, **{name: row[name] for name in names}) if row.keys() >= set(names) else None

    def add(self, found: Found) -> None:
        self.rows[_identity(found.launch)] = found.row()
        self._save()

    def mark(self, option: str, noted: Any) -> None:
        """Note what was found of an option, or that it is being tried."""
        self.options[option] = noted
        self._save()

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        text = json.dumps({"launches": self.rows, "options": self.options}, indent=1)
        part.write_text(text, encoding="utf-8")
        part.replace(self._path)


def _identity(launch: Launch) -> str:
    import triton

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    chosen = sorted(launch.chosen.items())
    facts = (launch.kernel, launch.source, launch.key, chosen, device, triton.__version__)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def search(jobs: Sequence[Job], seconds: float, say: Callable[[str], None], kept: Outcomes) -> list[Found]:
    """The outcome of every job, in the order given.

    ``seconds``: the budget of wall time, shared in proportion to the weights, the first more than the last. ``kept``:
    what an earlier search found, which is not searched again.
    """
    began = time.monotonic()
    found = {job.launch.number: outcome for job in jobs if (outcome := kept.of(job.launch)) is not None}
    if found:
        say(f"  {len(found)} launch(es) as an earlier search found them")
    new = [job for job in jobs if job.launch.number not in found]
    left = sum(job.weight for job in new) or 1.0
    # half of the budget compiles, in as many processes as there are cores
    most = int(seconds / 2 * max(1, len(os.sched_getaffinity(0)) - 1) / COMPILE_SECONDS)
    plans = [list(neighbours(job.launch, {}))[: max(LEAST_TRIED, round(most * job.weight / left))] for job in new]
    say(f"  compiling for {len(new)} launch(es)")
    deadline = began + seconds
    replays = [Replay(job.launch) for job in new]
    compiled = _compile([*zip(replays, plans, strict=True)], seconds / 2)
    for job, plan in zip(new, compiled, strict=True):
        remaining = max(0.0, deadline - time.monotonic())
        share = remaining * job.weight / max(left, 1e-12)
        left -= job.weight
        kept.add(outcome := Found(job.launch, job.seconds, why=ENDED))
        try:
            replay = Replay(job.launch)
            outcome.why = replay.learn()
            if not outcome.why:
                outcome = _searched(replay, plan, clock(replay, job.seconds), time.monotonic() + share)
        except Exception as error:  # noqa: BLE001 - no memory, or a launch that cannot be made again
            synchronise()  # raises for a device that no longer answers
            outcome.why = f"cannot be run again: {reason(error)}"
        found[job.launch.number] = outcome
        kept.add(outcome)
        say(
            f"  {job.launch.kernel}: {1e6 * outcome.seconds:.1f} us, {outcome.tried} tried, "
            + (f"{outcome.gain:.2f} x by {outcome.configuration}" if outcome.configuration else outcome.why)
        )
    return [found[job.launch.number] for job in jobs]


def _compile(plans: Sequence[tuple[Replay, Sequence[Configuration]]], seconds: float) -> list[list[Configuration]]:
    """Of each plan what need not be compiled, or was within ``seconds``."""
    if not torch.cuda.is_available() or len(os.sched_getaffinity(0)) < 3:
        return [list(plan) for _, plan in plans]
    jobs = [
        job_of(r.kernel, lambda r=r, c=c: r.call(c, warmup=True))  # type: ignore[misc]
        for r, plan in plans
        for c in plan
    ]
    done = compile_all([job for job in jobs if job is not None], seconds)
    number = itertools.count()
    known = [job is None or done.get(next(number), (False,))[0] for job in jobs]
    return [[c for c in plan if left.pop(0)] for left in [known] for _, plan in plans]


def current(launch: Launch, configuration: Configuration) -> Configuration:
    """Options and tile sizes of a launch with a configuration over what it has: tile sizes are what its tuner sets, or
    what is named like one. With another width or number of heads a kernel leaves its tensors."""
    kernel = innermost(launch.outer)
    given = {
        **dict(zip(kernel.arg_names, launch.args, strict=False)),
        **launch.kwargs,
        **launch.chosen,
        **configuration,
    }
    found = {name: int(given.get(name) or default) for name, default in DEFAULTS.items()}
    tuner = tuner_of(launch.outer)
    if tuner is None:
        names = {name for name in kernel.arg_names if TILE.search(name)}
    else:
        names = {name for config in tuner.configs for name in config.kwargs}
    for name in names - set(OPTIONS):
        value = given.get(name)
        if type(value) is int and value >= LEAST_TILE and value & (value - 1) == 0:
            found[name] = value
    return found


def neighbours(launch: Launch, start: Configuration) -> Iterator[Configuration]:
    """Configurations one step away from one, the nearest first: other warps and stages, a tile twice or half as
    large."""
    now = current(launch, start)
    interpreted = not torch.cuda.is_available()
    options = [
        (abs(values.index(v) - values.index(now[name])), {name: v})
        for name, values in (("num_warps", WARPS), ("num_stages", STAGES))
        if now[name] in values
        for v in values
        if v != now[name] and not interpreted
    ]
    near = [configuration for distance, configuration in options if distance == 1]
    tiles: list[Configuration] = []
    for name, value in now.items():
        if name in DEFAULTS:
            continue
        for other in (value // 2, value * 2):
            if LEAST_TILE <= other <= MOST_TILE:
                tiles.append({name: other})
                warps = now["num_warps"] * 2 if other > value else now["num_warps"] // 2
                if not interpreted and warps in WARPS:
                    tiles.append({name: other, "num_warps": warps})
    far = (configuration for distance, configuration in options if distance > 1)
    changed = ({**start, **configuration} for configuration in (*near, *tiles, *far))
    yield from (configuration for configuration in changed if _permitted(launch, configuration))


def _permitted(launch: Launch, configuration: Configuration) -> bool:
    """Whether the kernel's own tuner would try it: what it prunes may read or write beyond the tensors."""
    tuner = tuner_of(launch.outer)
    prune = getattr(tuner, "early_config_prune", None)
    if prune is None:
        return True
    from triton import Config

    options = {**launch.chosen, **configuration}
    plain = {name: value for name, value in options.items() if name not in OPTIONS}
    config = Config(plain, **{name: options[name] for name in DEFAULTS if name in options})
    try:
        return config in prune(
            [*tuner.configs, config], dict(zip(tuner.arg_names, launch.args, strict=False)), **launch.kwargs
        )
    except Exception:  # noqa: BLE001 - the package's own code, which may ask a tensor
        return False


def _searched(replay: Replay, plan: Sequence[Configuration], timer: Clock, deadline: float) -> Found:
    """The best on a way of steps, each from the best that is known: ``plan`` holds the first ones."""
    outcome = Found(replay.launch, _seconds(replay, {}, timer))
    derived = Replay(replay.launch, derived=True)
    outcome.why = derived.learn()
    if outcome.why:
        return outcome
    times: dict[tuple[Any, ...], float] = {(): outcome.seconds}
    best: tuple[Any, ...] | None = None
    while best != (best := min(times, key=lambda key: times[key])):
        if best:
            near = [c for c in neighbours(replay.launch, dict(best)) if _key(c) not in times][: len(plan)]
            (plan,) = _compile([(replay, near)], max(0.0, deadline - time.monotonic()))
        for configuration in plan:
            if time.monotonic() > deadline and outcome.tried >= LEAST_TRIED:
                break
            outcome.tried += 1
            why = replay.wrong(configuration) or derived.wrong(configuration)
            if why:
                outcome.wrong.append(f"{configuration}: {why}")
            times[_key(configuration)] = math.inf if why else _seconds(replay, configuration, timer)
    ranked = sorted((key for key in times if times[key] < outcome.seconds), key=lambda key: times[key])
    for configuration in map(dict, ranked[:2]):
        found = _against(replay, configuration, timer)
        if found.low > LEAST_GAIN and found.value > outcome.gain:
            outcome.configuration, outcome.gain = configuration, found.value
            outcome.interval = (found.low, found.high)
    if outcome.configuration is None:
        outcome.why = "no configuration is faster"
    return outcome


def _key(configuration: Configuration) -> tuple[Any, ...]:
    return tuple(sorted(configuration.items()))


def _seconds(replay: Replay, configuration: Configuration, timer: Clock) -> float:
    burst = timer.burst(lambda: replay.call(configuration), SCREEN_CALLS, replay.reset)
    return sorted(burst.seconds)[len(burst.seconds) // 2]


def _against(replay: Replay, configuration: Configuration, timer: Clock) -> Ratio:
    """Seconds of the incumbent over those of a configuration, in rounds that take turns."""

    def timed(given: Configuration) -> list[float]:
        return timer.burst(lambda: replay.call(given), ROUND_CALLS, replay.reset).seconds

    arms = {"": lambda: timed({}), "*": lambda: timed(configuration)}
    return ratio(take_turns(arms, least=ROUNDS), "", "*")
