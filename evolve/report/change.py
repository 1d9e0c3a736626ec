"""Changes between genomes: one child against its parent, and the winner against the seed it descends from."""

import difflib
import itertools
from dataclasses import dataclass

from tilewright.evolve.proposers.rule_credit import rules_of
from tilewright.evolve.record.history import Candidate, MutationKind
from tilewright.evolve.report.data import SEED_PREFIX, CampaignData, kernel_text
from tilewright.evolve.report.text import printable, shorten
from tilewright.evolve.space.genome import Genome

TERMINAL_LINES, TERMINAL_COLUMNS = 30, 110
STEP_LETTERS = 60
"""Of a change of the source that no rule names, such as a language model's."""


@dataclass(frozen=True)
class WinnerChange:
    """What turned a seed into the winner.

    ``seed_name`` is the name tables use. ``steps`` are the changes of the source in order, by rule where a rule made
    them. ``diff`` is unified, without the two lines of file names, and empty where only parameters changed.
    """

    seed_name: str
    seed: Candidate
    winner: Candidate
    steps: tuple[str, ...]
    parameters: tuple[str, ...]
    diff: tuple[str, ...]

    @property
    def unchanged(self) -> bool:
        return not self.diff and not self.parameters

    @property
    def heading(self) -> str:
        """One sentence without its full stop."""
        seed = kernel_text(f"{SEED_PREFIX}{self.seed_name}")
        if self.unchanged:
            return f"The winner is {seed}, unchanged"
        parts = [name for name, changed in (("source", self.diff), ("parameters", self.parameters)) if changed]
        return f"The winner, candidate {self.winner.index}, changes {' and '.join(parts)} of {seed}"

    def lines(self, campaign: str) -> list[str]:
        """The change for a terminal; a long diff ends with the command that shows all of it."""
        if self.unchanged:
            return [self.heading]
        lines = [f"{self.heading}:"]
        lines += [f"  rewrites: {' -> '.join(self.steps)}"] if self.steps else []
        lines += [f"  parameters: {', '.join(self.parameters)}"] if self.parameters else []
        shown = self.diff if len(self.diff) <= TERMINAL_LINES else self.diff[: TERMINAL_LINES - 1]
        lines += [f"  {shorten(printable(line), TERMINAL_COLUMNS)}" for line in shown]
        if left := len(self.diff) - len(shown):
            lines.append(f"  … {left} more lines: tilewright report {campaign}")
        return [printable(line) for line in lines]


def winner_change(data: CampaignData) -> WinnerChange | None:
    """The winner against its seed; None without a winner, or where the journal lacks its ancestors."""
    if data.winner is None:
        return None
    line = _source_line(data, data.winner)
    seed = line[0]
    names = {candidate.genome.id: name for name, candidate in data.seeds()}
    if seed.genome.id not in names:
        return None
    steps: list[str] = []
    for parent, child in itertools.pairwise(line):
        if child.genome.source_id != parent.genome.source_id:
            steps += _step_names(child)
    diff = source_diff(seed.genome, data.winner.genome, context=1)
    changes = parameter_changes(seed.genome, data.winner.genome)
    parameters = tuple(_parameter_text(*change) for change in changes)
    return WinnerChange(names[seed.genome.id], seed, data.winner, tuple(steps), parameters, tuple(diff))


def parameter_changes(parent: Genome, child: Genome) -> list[tuple[str, str, str]]:
    """(parameter, before, after) of every difference; a parameter only one side has reads ``-``."""
    names = sorted(set(parent.params) | set(child.params))
    values = [(n, str(parent.params.get(n, "-")), str(child.params.get(n, "-"))) for n in names]
    return [row for row in values if row[1] != row[2]]


def source_diff(parent: Genome, child: Genome, context: int = 3) -> list[str]:
    """Unified diff of the kernel sources with ``context`` lines around a change, without the two lines of file names;
    empty when they are equal.
    """
    before, after = parent.source.splitlines(), child.source.splitlines()
    return list(difflib.unified_diff(before, after, lineterm="", n=context))[2:]


def full_diff(parent: Candidate, child: Candidate) -> str:
    """Both kinds of change as one text for a file."""
    changes = parameter_changes(parent.genome, child.genome)
    source = source_diff(parent.genome, child.genome)
    parts = [f"# from candidate {parent.index} to candidate {child.index}"]
    parts += ["# parameters", *(f"{name}: {a} -> {b}" for name, a, b in changes)] if changes else []
    parts += ["# source", *source] if source else []
    return "\n".join(parts) + "\n"


def _source_line(data: CampaignData, winner: Candidate) -> list[Candidate]:
    """From a seed to the winner along the parents whose source was inherited.

    A crossover's first parent may give no more than parameters: then the rewrites of the other parent are the winner's.
    """
    line, seen = [winner], {winner.genome.id}
    while True:
        child = line[-1]
        parents = [p for name in child.parents if (p := data.candidates.get(name)) and name not in seen]
        if not parents:
            return line[::-1]
        same = (parent for parent in parents if parent.genome.source_id == child.genome.source_id)
        line.append(next(same, parents[0]))
        seen.add(line[-1].genome.id)


def _step_names(child: Candidate) -> list[str]:
    mutation = child.mutation
    # a crossover that repeats the other line's rewrites names their rules too
    by_rule = mutation.kind in (MutationKind.REWRITE, MutationKind.CROSSOVER)
    named = rules_of(mutation.detail) if by_rule else []
    return named or [f"{mutation.kind.value} ({shorten(mutation.detail, STEP_LETTERS)})"]


def _parameter_text(name: str, before: str, after: str) -> str:
    if before == "-":
        return f"{name} = {after} (new)"
    return f"{name} (removed)" if after == "-" else f"{name} {before} -> {after}"
