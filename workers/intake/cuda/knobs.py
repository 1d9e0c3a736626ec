"""Which numbers of CUDA C++ only tile or schedule, by what launch and kernel do with them; values that compile."""

import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.workers.intake.cuda.device_code import DeviceCode
from tilewright.workers.intake.source.knobs import MEANING, MEANT, values_around

CERTAIN = {
    "UNROLL": (1, 2, 4, 8, 16),
    "RESIDENT": (1, 2, 3, 4, 6, 8),
    "RESTRICT": (0, 1),
    "FASTMATH": (0, 1),
    "TURNS": (1, 2, 4, 8),
}
"""Values of an unrolled loop (0: as the compiler likes), of the blocks that a multiprocessor shall hold, whether
pointers say that nothing else points there, of the compiler's fast arithmetic, which gates judge, and of the blocks
whose work a block does."""

MOST_LOOPS = 3
_OWN = "#if RESTRICT\n#define OWN_MEMORY __restrict__\n#else\n#define OWN_MEMORY\n#endif\n"

WARP, SECONDS = 32, 30.0  # after these no other value is compiled

Launch = Callable[[Mapping[str, int]], Any]


def scheduled(code: DeviceCode, launched: Mapping[str, int], steps: Any = ()) -> tuple[str, dict[str, int]]:
    """Device code with the numbers of unrolled loops and launch bounds as parameters, and these. A bound that repeats a
    parameter of the launch follows it. ``steps``: what is launched; where no launch is given a tensor twice, its
    kernels' pointers may say so."""
    loops, names = code.places()
    given = [[a[0] for a in s["arguments"] if isinstance(a, tuple)] for s in steps if "kernel" in s]
    names = names if given and all(len(set(row)) == len(row) for row in given) else []
    own = {f"UNROLL_L{n}": 0 for n in range(len(loops[:MOST_LOOPS]))}
    added = [(at, f"\n#pragma unroll {name}\n") for at, name in zip(loops, own, strict=False)]
    data, found = code.text.encode(), dict[str, int]()
    for at, what in sorted([*added, *((at, "OWN_MEMORY ") for at in names)], reverse=True):
        data = data[:at] + what.encode() + data[at:]

    def named(match: re.Match[str]) -> str:
        name = f"{'UNROLL' if 'unroll' in match[1] else 'RESIDENT'}_{len(found)}"
        found[name] = int(match[2])
        return f"{match[1]}{name}"

    text = re.sub(r"(#pragma unroll[ (]+|__launch_bounds__\([^,()]+,\s*)(\d+)", named, data.decode())
    for name, value in launched.items():
        text = re.sub(rf"(__launch_bounds__\(\s*){value}\b", rf"\g<1>{name}", text)
    certain = {n: v for n, v in launched.items() if n in CERTAIN}  # of the compiler
    return (_OWN if names else "") + text, found | own | certain | ({"RESTRICT": 0} if names else {})


def found_knobs(
    knobs: Mapping[str, int],
    certain: Mapping[str, int],
    code: DeviceCode,
    launch: Launch,
    compiles: Callable[[str, int], bool],
) -> tuple[dict[str, tuple[int, ...]], list[dict[str, Any]]]:
    """The parameters with the values that compile, and the numbers that keep theirs, with why. ``certain``: those that
    only schedule; ``launch``: what the launch says with some values changed."""
    began, fixed = time.monotonic(), []
    space: dict[str, tuple[int, ...]] = {}
    for name, default in knobs.items():
        why = "" if name in certain else _meaning(name, default, code, launch)
        tried = CERTAIN.get(name.partition("_")[0], ()) if name in certain else values_around(default)
        blocks = lambda v: [_count(s["block"]) for s in launch({name: v})["steps"] if "kernel" in s]  # noqa: B023, E731
        fine = [
            v
            for v in tried
            if v != default
            and not why
            and time.monotonic() - began < SECONDS
            and (name in certain or not any(block % WARP for block in blocks(v)))
            and (name.startswith("UNROLL_L") or compiles(name, v))
        ]
        if fine:
            space[name] = tuple(sorted({default, *fine}))
        else:
            fixed.append({"name": name, "value": default, "why": why or "no other value compiles"})
    return space, fixed


def _count(sizes: Any) -> int:
    return math.prod(sizes) if isinstance(sizes, tuple) else int(sizes)


def _meaning(name: str, default: int, code: DeviceCode, launch: Launch) -> str:
    """Why a number keeps its value; empty where it only tiles."""
    kernels = " ".join(kernel.text for kernel in code.kernels.values())
    if re.search(rf"[!=]=\s*{name}\b|\b{name}\s*[!=]=|case\s+{name}\b", code.text):
        return MEANT
    if re.search(rf"(#\s*define\s+\w+\s|const(expr)?\s+\w+\s+\w+\s*=)[^;\n]*\b{name}\b", code.text):
        return "another number is computed from it"
    if any(re.search(rf"\[\s*{name}\b", k.text.partition("{")[0]) for k in code.kernels.values()):
        return "it is part of an argument's type"
    before, after = ([s for s in launch({name: v})["steps"] if "kernel" in s] for v in (default, 2 * default))
    if [s["arguments"] for s in before] != [s["arguments"] for s in after]:
        return "what a kernel is given depends on it"
    grids = [(_count(one["grid"]), _count(two["grid"])) for one, two in zip(before, after, strict=True)]
    if any(two > one for one, two in grids):
        return MEANING
    moved = any(two < one for one, two in grids)
    if not moved and not re.search(rf"\+=\s*({name}\b|blockDim|\w*[sS]tride\b)", code.text):
        return "the grid does not follow it, and no kernel steps by it"
    plain = re.sub(r"__launch_bounds__\([^)]*\)", "", kernels)
    same = rf"(?<![\w.])({default}|{default // 2}|{default - 1})(?![\w.])"
    if name not in code.numbers and re.search(same, plain):
        return "the kernels say the same number, and nothing ties them"
    return "" if name in code.numbers or "blockDim" in kernels else "the kernels do not ask for blockDim"
