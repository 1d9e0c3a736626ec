"""What turned the seed into the winner: rewrites by rule, parameters, a short diff that is safe on a terminal."""

from dataclasses import replace

import pytest

from testkit.evaluations import candidate
from testkit.sample_campaign import DEFAULTS, SOURCE, SampleCampaign
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.report.change import TERMINAL_LINES, winner_change
from tilewright.evolve.report.data import load, rival_speeds
from tilewright.evolve.report.html import render
from tilewright.evolve.show.summary import closing_lines
from tilewright.evolve.space.genome import Genome, Value

REWRITE, PARAMETER, CROSSOVER = MutationKind.REWRITE, MutationKind.PARAMETER, MutationKind.CROSSOVER
Step = tuple[tuple[int, ...], MutationKind, str, str, dict[str, Value]]
"""Places of the parents (0 is the seed), kind, detail, source, parameters that differ from the seed's."""
CACHED = SOURCE.replace("tile / scale", "tile * (1 / scale)")
HOISTED = CACHED.replace("/ 448.0", "* (1 / 448.0)")
LONG = SOURCE + "".join(f"line_{n} = {n}\n" for n in range(60))

LINES: dict[str, tuple[list[Step], list[str]]] = {
    "parameters alone": (
        [((0,), PARAMETER, "block_m 512 -> 256", SOURCE, {"block_m": 256})],
        ["The winner, candidate 1, changes parameters of seed naive:", "  parameters: block_m 512 -> 256"],
    ),
    "two rules and a new parameter": (
        [
            ((0,), REWRITE, "cache_operand: the tile; then hoist_scale: out", HOISTED, {}),
            ((1,), PARAMETER, "slots 2", HOISTED, {"slots": 2, "skew": 2}),
        ],
        [
            "The winner, candidate 2, changes source and parameters of seed naive:",
            "  rewrites: cache_operand -> hoist_scale",
            "  parameters: skew 0 -> 2, slots = 2 (new)",
            "   def quantise(tile):",
            "  -    scale = jnp.max(jnp.abs(tile), axis=1, keepdims=True) / 448.0",
            "  -    return tile / scale, scale",
            "  +    scale = jnp.max(jnp.abs(tile), axis=1, keepdims=True) * (1 / 448.0)",
            "  +    return tile * (1 / scale), scale",
        ],
    ),
    "the source of a crossover's second parent": (
        [
            ((0,), PARAMETER, "skew 0 -> 2", SOURCE, {"skew": 2}),
            ((0,), REWRITE, "cache_operand: the tile", CACHED, {}),
            ((1, 2), CROSSOVER, "crossover of #1 and #2", CACHED, {"skew": 2}),
        ],
        [
            "The winner, candidate 3, changes source and parameters of seed naive:",
            "  rewrites: cache_operand",
            "  parameters: skew 0 -> 2",
        ],
    ),
    "a hostile language model": (
        [((0,), MutationKind.LLM, "clear\x1b[2J\nthe screen", SOURCE + 'NAME = "\x1b[31m\u202e"\n', {})],
        ["  rewrites: llm (clear\\x1b[2J\\nthe screen)", '  +NAME = "\\x1b[31m\\u202e"'],
    ),
    "a long diff": (
        [((0,), REWRITE, "unroll: by 60", LONG, {})],
        ["  +line_0 = 0", "  … 33 more lines: tilewright report quickstart-001"],
    ),
}


def change_of(path, steps):
    """The change of a campaign whose last candidate is the winner."""
    sample = SampleCampaign(path)
    sample.grow(1)
    seed, evaluation = sample.passed[0]
    line = [seed.genome]
    for index, (parents, kind, detail, source, params) in enumerate(steps, 1):
        genome = Genome(source, {**DEFAULTS, **params})
        origin = tuple(line[n].id for n in parents)
        sample.journal.add_candidate(candidate(index, genome, parents=origin, kind=kind, detail=detail))
        better = evaluation.model_copy(update={"genome": genome.id, "fitness": 1e3 * (index + 1)})
        sample.journal.add_evaluation(index, better)
        line.append(genome)
    data = load(sample.journal)
    sample.close()
    found = winner_change(data)
    assert found is not None and "Winner against seed" in render(data)
    return found


@pytest.mark.parametrize(("steps", "expected"), LINES.values(), ids=LINES)
def test_the_winners_change_is_named_and_short(tmp_path, steps, expected):
    path = tmp_path / "quickstart-001" / "journal.sqlite"
    path.parent.mkdir()
    change = change_of(path, steps)
    lines = change.lines("quickstart-001")
    assert [line for line in lines if line in expected] == expected
    assert len(lines) <= TERMINAL_LINES + 4 and all(line.isprintable() for line in lines)
    assert not any(line.startswith(("  ---", "  +++")) for line in lines)
    if not change.diff:
        assert lines == expected, "where only parameters changed, it prints just these"
    printed = closing_lines(path)
    assert lines == [line for line in printed if line in lines] and all(line.isprintable() for line in printed)


def test_a_seed_that_wins_is_unchanged_and_nobody_wins_without_figures(tmp_path):
    sample = SampleCampaign(tmp_path / "journal.sqlite")
    assert winner_change(load(sample.journal)) is None
    sample.grow(1)
    data = load(sample.journal)
    sample.close()
    change = winner_change(data)
    assert change is not None and change.lines("c-001") == ["The winner is seed naive, unchanged"]
    assert winner_change(replace(data, candidates={}, winner=data.winner)) is None
    seed = data.points[0].evaluation
    assert rival_speeds({"winner": seed, "seed:naive": seed}) == "", "it is not compared with itself"
