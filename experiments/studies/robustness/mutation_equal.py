"""Mutants that compute the same: the line as it is then, or a pattern of it, and why no test can tell.

A pattern is for a kind of change that is the same wherever it stands. What is not here and is not noticed counts as
left, whatever its reason.
"""

import re

INTERNED = "names of this file are one object each"
ENUM = "members of an enumeration are single"
DIGITS = "a factor of a message: the digits that are printed stay the same"
NO_WORSE = "the larger of it and a positive number is taken"
CACHE = "how many answers are kept changes no answer"

EQUAL: dict[str, dict[str, str]] = {
    "fitness/gates.py": {
        "least: float = -1.0,": NO_WORSE,
        "if noise <= 0.0:": "a sum of squares is not negative",
        "if gate.turned is None or signal <= 0.0:": "a sum of squares is not negative",
        "return GateReading(gate=gate.name, inputs=kind, value=float(wrong), passed=wrong <= 0)": "a count",
        "passed = bool(values) and all(db >= least for db, least in zip(values, bars, strict=False))": (
            "there is a bar for each"
        ),
    },
    "fitness/elements.py": {
        "FLUSHED = - 101": "no type has its least exponent there",
        "columns = np.median(tiles, axis=0, keepdims=False)": "the first axis is made again where it meets others",
        "zeros = (found <= 0) & (wanted != 0)": "what is not surely explained is looked at as a whole",
        "over = np.isfinite(wide) // (np.sign(found) == np.sign(wide)) & (np.abs(found) >= top)": (
            "of truths the same: by zero, numpy divides to zero"
        ),
        "if (place := _first(excess >= 0)) is not None:": "an error that equals its bound to the last bit",
        "return np.where(outlying * (middle > 0), rows * columns / middle, 0.0) / MEDIAN": "of truths the same",
        "if output.size == 0 or allowed.worst >= math.inf:": "nothing is over infinity",
        "return np.where(outlying & (middle != 0), rows * columns / middle, 0.0) / MEDIAN": "no size is negative",
        "size = np.abs(wanted) / np.where(around >= 0, around, 1.0)": "it is 0 where all are, and then none counts",
        "if some.sum() >= FEW and not abs(lean) < max(chance, LEAN * float(wanted[some] @ wanted[some])):": (
            "a lean that equals its bound to the last bit"
        ),
        "return bool(near.all() and not zeros.any() and allowed.sign * float(tiles.min()) > faintest)": (
            "a size that equals its bound to the last bit"
        ),
        "zeros = (found == 0) ^ (wanted != 0)": "what is not surely explained is looked at as a whole",
        "some = (size < most) & (wanted != 0)": "a size that equals its bound to the last bit",
        "over = np.isfinite(wide) * (np.sign(found) == np.sign(wide)) & (np.abs(found) >= top)": "of truths the same",
        "return np.where(tiles > OUTLYING * middle, tiles, -1.0)": "the larger of it and a size is taken",
    },
    "fitness/tpu/structure.py": {
        'if min(kernel["grid"], default= 2) < 0:': "any size of nothing that is not negative",
        'if min(kernel["grid"], default= 0) < 0:': "any size of nothing that is not negative",
    },
    "fitness/tpu/memory.py": {
        "ready = [ -1.0] * len(took)": "a wait is for a start before it, which has set it",
        "ready = [ 1.0] * len(took)": "a wait is for a start before it, which has set it",
        "if awaited >= 0 and ready[awaited] >= now:": "nothing is waited then",
        "if kind >= Kind.WAIT:": "no kind comes after it",
        "steps = zip(work.tolist(), events.kinds.tolist(), took.tolist(), events.ready.tolist(), strict=False)": (
            "all are as long as the events"
        ),
    },
    "fitness/tpu/time_model.py": {
        "seconds, core, memory, waited, longest = calibration.call, 0.0, 0.0, 0.0, ( -1.0, math.inf)": (
            "less than any operation's time, as 0 is"
        )
    },
    "fitness/evaluation.py": {
        "def _of_the_first_model(cls, data: Any) -> Any:": "pydantic makes a class method of it by itself",
        'if isinstance(data, dict) and data.get("kind") >= "modelled" and data.get("model_version") is None:': (
            "no kind comes after this one"
        ),
        "if self.model_version is not other.model_version:": "small numbers are one object each",
        "if (self.verdict is Verdict.OK) is not (self.fitness is not None):": "truths are one object each",
    },
    "fitness/race.py": {
        "if figures.kind > FigureKind.MEASURED:": "what only compiles is not raced",
        "return max(min(fits, default= -1.0), HOPELESS * self.best)": NO_WORSE,
        "best: float = -1.0": "the larger of a share of it and a number that is not negative is taken",
        "return None if any(leads) else Outpaced(len(seen), fitness, half, bar, seen[ -1].unit)": (
            "all workloads of a suite have one unit"
        ),
    },
    "fitness/tpu/simulation.py": {
        "if moved <= 0.95 * compulsory_bytes:": "a number of bytes that equals its bound to the last bit"
    },
    "fitness/dialect.py": {'if entry < "launch":': "of two entries it is the last"},
    "fitness/score.py": {'name = "vector" if unit is "valu" else unit': INTERNED},
    "fitness/targets.py": {"return self.kind <= FigureKind.COMPILED": "no kind comes before it"},
    "workers/cascade/base.py": {
        "final=scope <= Scope.FINAL,": "of two scopes no other comes before it",
        "if device != 0.0:": "a time is not negative",
    },
    "workers/cascade/common_stages.py": {
        "def _violations(source: str, entry: str) -> tuple[dialect.Violation, ...]:": CACHE,
        'more = f" (and {len(violations) - 1} more)" if len(violations) != 1 else ""': "there is one at least",
    },
    "workers/cascade/drawn_shapes.py": {
        'return dataclasses.replace(failure, reason=f"{shapes[ -1].id}: {failure.reason}")': "there is one shape"
    },
    "workers/cascade/measured_stages.py": {
        "return intervals.Ratio(math.exp(value), -1.0, math.inf), off": "below every bound, as 0 is",
        "held = {name: [[*a, *b] for a, b in zip(first[name], again[name], strict=False)] for name in first}": (
            "entries have as many rounds each, which is checked before"
        ),
    },
    "fitness/isa.py": {
        'counts = Counter(_AMD_LINE.findall(text.split(".section", 2)[0]))': "the first part is the same",
        'tail = name.rsplit("store_", 1)[+1]': "a store has its word once",
        "return int(tail[1:]) / 8": "a number of bytes is whole",
        'tail = name.rsplit("store_", 1)[1]': "a store has its word once",
        'tail = name.rsplit("store_", 2)[-1]': "a store has its word once",
    },
    "workers/cascade/modelled_stages.py": {"return refused[ -1]": "the first refusal ends the child"},
    "workers/cascade/verify_shapes.py": {
        "kept, left = [], CARRIED_FLOPS if request.final else 1": "no shape is of one FLOP",
        "kept, left = [], CARRIED_FLOPS if request.final else -1": "no shape is of no FLOP",
    },
    "workers/device/timing.py": {
        "if not request.target.interpreted and not wall < WALL_FACTOR * known + WALL_SLACK_SECONDS:": (
            "a clock that equals its bound to the last bit"
        ),
        "if not 0.0 < seconds != math.inf and not (or_none and seconds == 0.0):": "nothing is over infinity",
        "if not len(rounds) == len(host) is len(wall) == entries:": "small numbers are one object each",
        "verdict = Verdict.TIMEOUT if outcome.ending == Ending.TIMEOUT else Verdict.CRASHED": ENUM,
    },
}
"""Module to the changed line to the reason."""

PATTERNS = {
    r'^"(matrix|vector|steps|memory)": \(\*?_?V6E': "how many rows a class rests on decides nothing",
    r"copy=(True|False)\)": "a copy that nobody writes to",
    r"repr=True": "what a repr shows decides nothing",
    r"^@dataclass\(frozen=False\)$": "nobody writes to it",
    r'"MALLOC_': "what an allocator keeps changes no answer",
    r"lru_cache\(maxsize=": CACHE,
    r"type\(.*\) (==|!=) \w": "types are one object each",
    r"% shapes is position|len\(\w+\) is len\(": "small numbers are one object each",
    r"(==|!=) (Verdict|FigureKind|Stage|Scope|Ending|Reached)\.": ENUM,
    r"\.reshape\((- ?2|~1)": "any negative size is the one that is left to find",
    r"\* (999999\.0|1000001\.0):": DIGITS,
}


def why_equal(module: str, changed: str) -> str:
    """The reason, or nothing where none is known."""
    own = EQUAL.get(module, {}).get(changed.strip(), "")
    return own or next((why for pattern, why in PATTERNS.items() if re.search(pattern, changed)), "")
