"""A genome's identity ignores what does not change the kernel, and nothing else."""

import pytest

from tilewright.evolve.space.genome import Genome, source_id

BASE = '"""Doc."""\nSPACE = {"a": (1, 2)}\ndef build(params):\n    """Doc."""\n    return params["a"]\n'


@pytest.mark.parametrize(
    "same",
    [
        BASE.replace("Doc.", "Other words."),
        BASE.replace("(1, 2)", "(1, 2, 3)"),
        BASE.replace("    return", "    # why\n    return"),
        BASE.replace('params["a"]', "params['a']"),
        BASE + "\n\n",
    ],
)
def test_comments_layout_and_declarations_do_not_count(same):
    assert source_id(same) == source_id(BASE)


@pytest.mark.parametrize("other", [BASE.replace('["a"]', '["b"]'), BASE + "X = 1\n", "def build(:\n"])
def test_code_counts(other):
    assert source_id(other) != source_id(BASE)


def test_parameters_count_and_their_order_does_not():
    assert Genome(BASE, {"a": 1, "b": 2}).id == Genome(BASE, {"b": 2, "a": 1}).id
    assert Genome(BASE, {"a": 1}).id != Genome(BASE, {"a": 2}).id
    assert Genome(BASE, {"a": 1}).id != Genome(BASE, {"a": True}).id


@pytest.mark.parametrize("text", ["X = 0x" + "f" * 6000, "# \ud800", "X = " + "-" * 20000 + "1", "\x00"])
def test_text_that_cannot_be_written_again_has_an_identity_too(text):
    """A model's answer is identified before the dialect has looked at it."""
    found = Genome(text, {"a": 1})
    assert len(found.id) == 16 and found.source_id == source_id(text) != source_id("X = 1")
