"""A reply is an edit that applies exactly, or an error that says why not."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.evolve.proposers.llm.edit import EditError, read_reply

PARENT = "import math\n\n\ndef build(params):\n    x = 1\n    y = 2\n    return x\n"


def block(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n"


def test_blocks_apply_in_order() -> None:
    reply = "SUMMARY: doubles x\n" + block("    x = 1\n", "    x = 2\n") + "and\n" + block("    y = 2\n", "")
    edit = read_reply(reply, PARENT)
    assert edit.source == PARENT.replace("x = 1", "x = 2").replace("    y = 2\n", "")
    assert edit.summary == "doubles x"


def test_a_whole_module_replaces_the_parent() -> None:
    edit = read_reply("Here.\n```python\nx = 3\n```\n", PARENT)
    assert edit.source == "x = 3\n"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (block("    z = 1\n", ""), "block 1 is not in the module"),
        (block("    x = 1\n", "    x = 2\n") + block("    x = 1\n", ""), "block 2 is not in the module"),
        (block("    return", "    return"), "not closed"),
        (block(" = ", " = "), "not closed"),
        (block("\n", "x = 1\n"), "empty SEARCH"),
        ("<<<<<<< SEARCH\n    x = 1\n", "not closed"),
        ("I would rather not.", "neither a SEARCH/REPLACE block nor"),
        ("", "neither a SEARCH/REPLACE block nor"),
        ("```python\ndef build(:\n```", "does not parse"),
        (block("    x = 1\n", "  x = 1\n"), "does not parse"),
        ("x" * 300_000, "at most"),
    ],
)
def test_an_unusable_reply_says_why(reply: str, words: str) -> None:
    with pytest.raises(EditError, match=words):
        read_reply(reply, PARENT)


def test_an_ambiguous_block_is_refused() -> None:
    with pytest.raises(EditError, match="occurs 2 times"):
        read_reply(block("x = 1\n", "x = 2\n"), "x = 1\ny = 0\nx = 1\n")


@given(st.text(max_size=400) | st.text(alphabet="<>=SEARCHREPLACE \n`python", max_size=400))
def test_any_text_is_an_edit_that_parses_or_an_error(reply: str) -> None:
    try:
        source = read_reply(reply, PARENT).source
    except EditError:
        source = PARENT
    ast.parse(source)
