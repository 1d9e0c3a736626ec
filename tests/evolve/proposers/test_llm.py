"""What a model is told, what of its reply is used, and what a call costs; ``test_llm_cli`` runs campaigns."""

import pytest

from testkit.evaluations import candidate
from tilewright.evolve.proposers.llm.client import TokenBudget
from tilewright.evolve.proposers.llm.prompt import Contract, facts_of, improve
from tilewright.evolve.proposers.llm.proposer import EditError, read_reply
from tilewright.evolve.record.history import History
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import SnrGate

SEED = """import math

SPACE = {"tile": (1, 2, 4)}
DEFAULTS = {"tile": 1}
CONSTRAINTS = {}


def build(params):
    speed = 10

    def run(a):
        return a * speed

    return run
"""


@pytest.mark.parametrize(
    ("target", "operator", "phrases"),
    [
        ("tpu7x", "gemm_fp8_fused/g512", ["MiB of VMEM", "f8 peak 2307 TFLOP/s", "jax.experimental.pallas.tpu"]),
        ("h200", "gemm_fp8_blockwise/gemm_nt", ["132 multiprocessors", "227 KiB", "4.80 TB/s", "triton.language"]),
        ("gfx950", "gemm_fp8_blockwise/gemm_nt", ["160 KiB of shared memory", "triton.language"]),
    ],
)
def test_a_model_is_told_the_device_the_gates_and_the_imports(target, operator, phrases):
    gates = load_operator(operator).gates
    found = "\n".join(facts_of(load_target(target), gates))
    assert all(words in found for words in phrases), found
    assert ("torch" in found) == (target != "tpu7x")
    bars = [f"{gate.min_db:g} dB" for gate in gates if isinstance(gate, SnrGate)]
    assert bars and all(bar in found for bar in bars)
    contract = Contract("op/r", "C = A", target, ("w",), facts_of(load_target(target), gates))
    asked = improve(contract, History(), candidate(0, Genome(SEED, {"tile": 1})))
    assert found in asked[-1]["content"]


PARENT = "import math\n\n\ndef build(params):\n    x = 1\n    y = 2\n    x = 1\n    return x\n"


def block(search, replace):
    return f"<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n"


def test_a_reply_is_blocks_in_order_or_a_whole_module():
    blocks = block("    y = 2\n", "    y = 3\n") + "and\n" + block("    return x\n", "    return y\n")
    edit = read_reply(f"SUMMARY: more\n{blocks}", PARENT)
    assert edit.source == PARENT.replace("y = 2", "y = 3").replace("return x", "return y")
    assert edit.summary == "more"
    assert read_reply("Here.\n```python\nx = 3\n```\n", PARENT).source == "x = 3\n"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (block("    x = 1\n", "    x = 2\n"), "occurs 2 times"),
        (block("    y = 2\n", "") + block("    y = 2\n", ""), "block 2 is not in the module"),
        (block("    y", "    y"), "not closed"),
        (block("\n", "x = 1\n"), "empty SEARCH"),
        ("I would rather not.", "neither a SEARCH/REPLACE block nor"),
        ("```python\ndef build(:\n```", "does not parse"),
        ("x" * 300_000, "at most"),
    ],
)
def test_an_unusable_reply_says_why(reply, words):
    with pytest.raises(EditError, match=words):
        read_reply(reply, PARENT)


def test_a_call_without_an_answer_is_charged_in_full():
    budget = TokenBudget(1000)
    budget.reserve(600)
    budget.settle(600, None)
    assert (budget.spent, budget.reserved) == (600, 0)
