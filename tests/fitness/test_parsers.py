"""Every parser of foreign text gives a value or its own named error."""

import time

import pytest

from testkit.fuzzing import FRAME, PARENT, attempt, corpus, parsers
from tilewright.evolve.proposers.llm.proposer import EditError, read_reply
from tilewright.workers.child.frames import FrameError, FrameReader

PARSERS = parsers()


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_what_fuzzing_kept_gives_a_value_or_the_named_error(name, tmp_path):
    for data in [*PARSERS[name].samples, *corpus(name)]:
        assert attempt(PARSERS[name], data, tmp_path) is None, data[:200]


@pytest.mark.parametrize(
    "reply",
    [
        "```py\n" * 33_000,
        "<<<<<<< SEARCH\n" * 13_000,
        ("<<<<<<< SEARCH\n" + "=====\n" * 3) * 5_000,
        "SUMMARY:" * 20_000,
    ],
    ids=["fences", "searches", "dividers", "summaries"],
)
def test_a_reply_cannot_stall_the_driver(reply):
    begun = time.process_time()
    with pytest.raises(EditError):
        read_reply(reply, PARENT)
    assert time.process_time() - begun < 5.0


def test_an_array_too_large_to_exist_is_a_frame_error():
    entry = b'"shape": [0, 281474976710655, 281474976710655]'
    lying = FRAME.replace(b'"shape": [2, 3]', entry).replace(b'"bytes": 12', b'"bytes": 0')
    header = lying.index(b"{")
    size = lying.rindex(b"}]}") + 3 - header
    whole = FRAME[:4] + size.to_bytes(4) + (3).to_bytes(8) + lying[header : header + size] + b"xyz"
    with pytest.raises(FrameError, match="cannot be made"):
        FrameReader(1 << 20).feed(whole)
