"""Turning a model's reply into a source: search/replace blocks or a whole module.

The reply is untrusted text. Nothing of it is ever executed here, and a block that does not match the
parent exactly once is an error: applying the rest would be another kernel than the one described.
"""

import ast
import re
from dataclasses import dataclass

MAX_REPLY_CHARS = 200_000

_SEARCH = re.compile(r"<{5,9} SEARCH\n")
_DIVIDER = re.compile(r"={5,9}\n")
_REPLACE = re.compile(r">{5,9} REPLACE[ \t]*\n?")
_MARKER = re.compile(r"^(?:<{5,9} SEARCH|>{5,9} REPLACE)[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n")
_FENCE_END = re.compile(r"```[ \t]*\n?")
_SUMMARY = re.compile(r"^SUMMARY:[ \t]*(.+)$", re.MULTILINE)


class EditError(ValueError):
    """The reply holds no usable edit. The message is one sentence a model can act on."""


@dataclass(frozen=True)
class ReplyEdit:
    """A new module and one line about what changed."""

    source: str
    summary: str


def read_reply(reply: str, parent: str) -> ReplyEdit:
    """The module a reply describes, given its parent's source.

    Search/replace blocks win over a fenced whole module. Raises EditError.
    """
    if len(reply) > MAX_REPLY_CHARS:
        raise EditError(f"the reply has {len(reply)} characters; at most {MAX_REPLY_CHARS} are read")
    reply = reply.replace("\r\n", "\n")
    source = _apply_blocks(reply, parent) if _MARKER.search(reply) else _whole_module(reply)
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.args[0] if error.args else type(error).__name__
        raise EditError(
            f"the edited module does not parse: {what} at line {getattr(error, 'lineno', '?')}"
        ) from error
    summary = _SUMMARY.search(reply)
    return ReplyEdit(source, summary[1].strip()[:200] if summary else "no summary given")


def _apply_blocks(reply: str, parent: str) -> str:
    blocks = _blocks(reply)
    if len(_MARKER.findall(reply)) != 2 * len(blocks):
        raise EditError("a SEARCH/REPLACE block is not closed: each needs SEARCH, ======= and REPLACE lines")
    source = parent
    for number, (search, replace) in enumerate(blocks, start=1):
        if not search.strip():
            raise EditError(f"block {number} has an empty SEARCH part")
        found = source.count(search)
        if found != 1:
            where = "is not in the module" if found == 0 else f"occurs {found} times"
            raise EditError(f"the SEARCH text of block {number} {where}; it must occur exactly once")
        source = source.replace(search, replace)
    return source


def _blocks(reply: str) -> list[tuple[str, str]]:
    """(search, replace) of every whole block, in one pass over the lines."""
    blocks: list[tuple[str, str]] = []
    parts: list[list[str]] = []
    for line in _lines(reply):
        if not parts:
            if _SEARCH.fullmatch(line):
                parts = [[]]
        elif len(parts) == 1 and _DIVIDER.fullmatch(line):
            parts.append([])
        elif len(parts) == 2 and _REPLACE.fullmatch(line):
            blocks.append(("".join(parts[0]), "".join(parts[1])))
            parts = []
        else:
            parts[-1].append(line)
    return blocks


def _fences(reply: str) -> list[str]:
    """What stands between fences, in one pass over the lines."""
    found: list[str] = []
    inside: list[str] | None = None
    for line in _lines(reply):
        if inside is None:
            inside = [] if _FENCE.fullmatch(line) else None
        elif _FENCE_END.fullmatch(line):
            found.append("".join(inside))
            inside = None
        else:
            inside.append(line)
    return found


def _lines(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends a line."""
    *whole, last = text.split("\n")
    return [*(line + "\n" for line in whole), last]


def _whole_module(reply: str) -> str:
    fences = _fences(reply)
    if not fences:
        raise EditError("the reply has neither a SEARCH/REPLACE block nor a fenced Python module")
    return max(fences, key=len)
