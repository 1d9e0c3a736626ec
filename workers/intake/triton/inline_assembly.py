"""Inline PTX of functions of single elements, as statements of the kernel's language.

Text of the assembler may do anything, and so no candidate may hold it. A list of float32 instructions on registers, as
of a softplus with the fast exponential, can be said in the language; whatever else is in a text leaves it refused.
"""

import re
import struct

EXPRESSIONS = {
    "mov": "{0}",
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "fma": "{0} * {1} + {2}",
    "rcp": "1.0 / {0}",
    "abs": "tl.abs({0})",
    "max": "tl.maximum({0}, {1})",
    "min": "tl.minimum({0}, {1})",
    "ex2": "tl.exp2({0})",
    "lg2": "tl.log2({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "tanh": "2.0 * tl.sigmoid(2.0 * {0}) - 1.0",
    "selp": "tl.where({2}, {0}, {1})",
    "setp.gt": "{0} > {1}",
    "setp.lt": "{0} < {1}",
    "setp.ge": "{0} >= {1}",
    "setp.le": "{0} <= {1}",
    "setp.eq": "{0} == {1}",
    "setp.ne": "{0} != {1}",
}
"""What an instruction computes of its operands."""

HARMLESS = frozenset(("approx", "ftz", "rn", "full"))
"""What else an instruction on float32 may say: how it rounds, within what the language's own functions do."""

_STEP = re.compile(r"(?:@(!?)(%?\w+)\s+)?([a-z]\w*)((?:\.\w+)*)\s+(.+)", re.DOTALL)


def written(name: str, text: str, count: int) -> str:
    """The function ``name`` of ``count`` float32 tensors that does what the text does to ``$1`` and so on, with ``$0``
    as its result. Empty where there is more in the text."""
    given = [f"x{n}" for n in range(count)]
    known = {f"${n + 1}": one for n, one in enumerate(given)}
    body = [f"    {one} = {one}.to(tl.float32, bitcast=True)" for one in given]  # registers are of no type
    for part in filter(None, map(str.strip, re.split(r"[;{}]", text))):
        found = _STEP.fullmatch(part)
        if part.startswith(".reg"):
            continue
        if found is None:
            return ""
        unless, guard, operation, kind, rest = found.groups()
        first, *rounding = kind.split(".")[1:-1] or [""]
        if operation == "setp":
            operation = f"setp.{first}"
        else:
            rounding += [first] if first else []
        target, *operands = [one.strip() for one in rest.split(",")]
        values = [known.get(one) or _number(one) for one in operands]
        needed = EXPRESSIONS.get(operation, "").count("{")
        if not kind.endswith(".f32") or set(rounding) - HARMLESS or needed != len(values) or not all(values):
            return ""
        made = EXPRESSIONS[operation].format(*values)
        if guard is not None and target in known:
            if guard not in known:
                return ""
            both = (known[target], made) if unless else (made, known[target])
            made = f"tl.where({known[guard]}, {both[0]}, {both[1]})"
        known[target] = "y" if target == "$0" else known.get(target) or f"r{len(known)}"
        body.append(f"    {known[target]} = {made}")
    if known.get("$0") != "y":
        return ""
    return f"@triton.jit\ndef {name}({', '.join(given)}):\n" + "\n".join([*body, "    return y"])


def _number(text: str) -> str:
    """An immediate operand; empty where it is none."""
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        return repr(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
    try:
        return repr(float(text))
    except ValueError:
        return ""
