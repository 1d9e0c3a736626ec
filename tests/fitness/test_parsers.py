"""Every parser of foreign text gives a value or its own named error (``experiments.studies.robustness.fuzz``
does this for longer)."""

import random
import time

import pytest

from testkit.fuzz_targets import FRAME, PARENT, Parser, parsers
from testkit.fuzzing import Fuzzed, attempt, corpus
from tilewright.evolve.proposers.llm.edit import EditError, read_reply
from tilewright.workers.child.frames import FrameError, FrameReader

PARSERS = parsers()
INPUTS = 20


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_what_fuzzing_kept_gives_a_value_or_the_named_error(name, tmp_path):
    for data in [*PARSERS[name].samples, *corpus(name)]:
        assert attempt(PARSERS[name], data, tmp_path) is None, data[:200]


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_fresh_damage_gives_a_value_or_the_named_error(name, tmp_path):
    found, rng = Fuzzed(PARSERS[name]), random.Random(name)
    for _ in range(INPUTS):
        found.step(rng, tmp_path)
    assert found.failures == {}


def test_the_fuzzer_finds_what_is_hidden_and_says_how_it_fails(tmp_path):
    """A branch that only one input in millions reaches at random, found step by step."""

    def hidden(data, folder):
        text = data.decode("latin-1")
        return read_reply(text, PARENT) if "<<<<<<< SEARCH\n" in text else 1 // (data[:3] != b"key")

    found, rng = (
        Fuzzed(Parser(hidden, (EditError,), (b"abc",), (b"key", b"<<<<<<< SEARCH\n"))),
        random.Random(3),
    )
    for _ in range(400):
        found.step(rng, tmp_path)
    assert set(found.failures) == {"ZeroDivisionError: integer division or modulo by zero"}
    assert found.kept, "the reply's parser was reached"


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
