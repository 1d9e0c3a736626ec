"""Options of the functions that a step calls: integers that its packages leave at a default.

Such a number says how large the pieces are into which a package cuts a tensor, for machines its author had.
"""

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tilewright.library.launch_replacement import Installation, Option
from tilewright.workers.program.calls import Watch
from tilewright.workers.program.record import Recorded
from tilewright.workers.program.scout import limited
from tilewright.workers.program.search import Outcomes
from tilewright.workers.program.turns import LEAST_ROUNDS, TRIAL_ROUNDS

FACTORS = ((4, 2, 8, 16), (1 / 4, 1 / 2, 1 / 8, 1 / 16))
"""Times the default, upwards and downwards: the first is tried of every option, the others where it pays."""

LEAST_GAIN, LEAST_SECONDS = 1.01, 60.0


def search_options(recorded: Recorded, seconds: float, kept: Outcomes, say: Callable[[str], None]) -> list[Option]:
    """Options that make the step faster, each at its best value.

    ``seconds``: after that, or a minute, no other is tried. ``kept``: what an earlier search noted; what it was trying
    when it died is passed over. For new launches, tuners take what they chose before: to compile all takes minutes.
    """
    if recorded.data["graph"]:  # what it holds was called before
        return []
    found, deadline = [], time.monotonic() + max(seconds, LEAST_SECONDS)
    tried = candidates(recorded)
    for place, candidate in enumerate(tried):
        name = f"{candidate.module}.{candidate.name}({candidate.option})"
        noted = kept.options.get(name)
        if noted is None and time.monotonic() > deadline:
            say(f"  {name}: not tried, --seconds are over")
            continue
        if noted is None:
            kept.mark(name, {})
            with limited([], trials=False):
                value, gain = _best(candidate, recorded, (deadline - time.monotonic()) / (len(tried) - place))
            noted = {"value": value, "gain": gain}
            kept.mark(name, noted)
            say(f"  {name}: " + (f"{gain:.3f} x by {value}" if gain > 1 else "no value is faster"))
        if noted.get("gain", 1.0) > LEAST_GAIN:
            found.append(replace(candidate, value=noted["value"]))
    return found


def _best(candidate: Option, recorded: Recorded, seconds: float) -> tuple[int, float]:
    """The fastest value and its gain, of trials whose rounds go on, within ``seconds``, until their intervals are on
    one side of the least gain: a round may be off by more than an option gives where the host bounds the step."""

    def gain(value: int, *how: Any) -> float:
        return recorded.turns.gain(Installation([replace(candidate, value=value)]), *how).value

    gains, deadline = {candidate.value: 1.0}, time.monotonic() + seconds
    for factors in FACTORS:
        for factor in (f for f in factors if candidate.value * f % 1 == 0):
            value = int(candidate.value * factor)
            gains[value] = gain(value, TRIAL_ROUNDS, (deadline - time.monotonic()) / 4, LEAST_GAIN)
            if factor == factors[0] and gains[value] < LEAST_GAIN:
                break
    best = max(gains, key=lambda value: gains[value])
    if gains[best] > LEAST_GAIN:  # the largest of several is flattered
        gains[best] = gain(best, LEAST_ROUNDS, deadline - time.monotonic())
    # what is undecided is proved
    return (best, gains[best]) if gains[best] > LEAST_GAIN else (candidate.value, 1.0)


def candidates(recorded: Recorded) -> list[Option]:
    """The options of the functions that stood above a launch of their own package, at their defaults, with the calls of
    one step that left them out."""
    watches = {
        Watch(module, name, keep=False): options
        for module, name, function in _functions(recorded.codes)
        if (options := _options(function))
    }
    with Installation([*watches]).installed():
        recorded.step()
    found = []
    for watch, options in watches.items():
        for option, default in options.items():
            known = tuple(  # in one order for every run: faster.py holds it
                c for c in sorted(watch.seen, key=repr) if option not in dict(c[2])
            )
            if known:
                found.append(Option(watch.module, watch.name, option, default, known))
    return found


def _functions(codes: Mapping[Any, str]) -> Iterator[tuple[str, str, Any]]:
    packages = set(codes.values())
    seen = set()
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in packages:
            continue
        for name, value in list(vars(module).items()):
            if not inspect.isfunction(value) or value.__module__ != module_name or id(value) in seen:
                continue
            if inspect.unwrap(value).__code__ in codes:
                seen.add(id(value))
                yield module_name, name, value


def _options(function: Any) -> dict[str, int]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p.default for p in parameters if type(p.default) is int and p.default >= 1 and p.kind in kinds}
