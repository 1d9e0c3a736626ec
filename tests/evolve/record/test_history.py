"""What proposers see of a campaign: the fittest, what is pending, and what was rewritten."""

from testkit.evaluations import candidate, failed, figures, passed
from tilewright.evolve.record.history import LOG_CHARACTERS, History, in_memory


def test_the_fittest_come_first_and_earlier_ones_on_a_tie():
    history = History()
    for index, fitness in enumerate((3.0, None, 5.0, 5.0, 4.0)):
        made = candidate(index)
        history.propose(made)
        assert list(history.pending()) == [made] and history.evaluation(made.genome.id) is None
        if fitness is None:
            history.integrate(made, failed(made.genome))
        else:
            history.integrate(made, passed(made.genome, figures(), fitness=fitness))
    assert [c.index for c, _ in history.fittest(3)] == [2, 3, 4]
    assert [c.index for c, _ in history.successes()] == [0, 2, 3, 4]
    assert history.best is not None and history.best[0].index == 2 and not list(history.pending())
    assert history.candidates[1].genome.id in history and "nobody" not in history


def test_logs_are_kept_short_in_memory():
    assert len(in_memory(failed(log="x" * 9000)).log) == LOG_CHARACTERS
