"""Nominations for promotion: a winner of a finished campaign, a candidate by name, or those of a dispatch table."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tilewright.evolve.campaign.conclusion import COMPARISON_FILE
from tilewright.evolve.campaign.config import MOST_LETTERS, parse_config
from tilewright.evolve.campaign.resolve import Resolved, objection, resolve, target_of
from tilewright.evolve.errors import UserError
from tilewright.evolve.record.history import Candidate
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.evaluation import Reached
from tilewright.workers.device.comparison import Comparison


@dataclass(frozen=True)
class Nomination:
    """``candidates`` in the order of the table, ``assigned`` maps workload ids to genome ids (empty: all to the first).

    ``lineage`` holds, per genome, one line for each ancestor along first parents, oldest first.
    """

    campaign: str
    folder: Path
    started: float
    resolved: Resolved
    candidates: tuple[Candidate, ...]
    assigned: Mapping[str, str]
    lineage: Mapping[str, tuple[str, ...]]

    def genome_for(self, workload: str) -> str:
        """The genome that is to serve a workload."""
        return self.assigned.get(workload, self.candidates[0].genome.id)

    def without(self, genome: str) -> Self | None:
        """The table less one of its genomes: its shapes go to the next best of the others that is legal there.

        The next best is by the campaign's last comparison; without one, by the table's order. None where the genome is
        none of the table's, or one of its shapes would be left without a kernel.
        """
        left = tuple(c for c in self.candidates if c.genome.id != genome)
        if not left or len(left) == len(self.candidates):
            return None
        assigned = dict(self.assigned)
        for workload in dict.fromkeys((*self.resolved.suite.workloads, *self.resolved.suite.final)):
            if self.genome_for(workload.id) == genome:
                legal = [c.genome.id for c in left if objection(self.resolved, c.genome, workload) is None]
                if not legal:
                    return None
                assigned[workload.id] = min(legal, key=_seconds(self.folder, workload.id))
        used = set(assigned.values())
        return replace(self, candidates=tuple(c for c in left if c.genome.id in used), assigned=assigned)


def _seconds(folder: Path, workload: str) -> Callable[[str], float]:
    """By genome, what it took on a workload in the campaign's last comparison; the same for all that were not in it."""
    try:
        compared = Comparison.from_json((folder / COMPARISON_FILE).read_text(encoding="utf-8"))
        times = {name: compared.seconds(workload, name) for name in compared.rounds[workload]}
    except (OSError, ValueError, KeyError, TypeError):
        times = {}
    return lambda genome: times.get(genome, math.inf)


def nominate(
    folder: Path, *, suite: str | None = None, candidate: str | None = None, table: Path | None = None
) -> Nomination:
    """Read the campaign in ``folder``. Raises UserError for one that has not finished or lacks what is asked."""
    with Journal(folder / JOURNAL) as journal:
        data = journal.meta("config")
        events = journal.events()
        finished = [event for event in events if event.kind == "finished"]
        if data is None or not finished:
            raise UserError(f"campaign {folder.name} has not finished; end it with 'tilewright resume {folder.name}'.")
        known = list(journal.candidates())
    config = parse_config(data, str(folder), recorded=True)
    target = target_of(config)
    if target.compile_only:
        raise UserError(
            f"campaign {folder.name} only compiled for {target.name}, and its answers were judged "
            f"{Reached.INTERPRETER}; what has no time cannot be promoted."
        )
    if target.reached is Reached.INTERPRETER:
        raise UserError(
            f"campaign {folder.name} was judged {Reached.INTERPRETER} (target {target.name}); what no device has run "
            "cannot be promoted: run it on a GPU first (--target cuda)."
        )
    resolved = resolve(config.model_copy(update={"suite": suite or config.suite}), ended=True)
    if table is not None:
        chosen, assigned = _from_table(table, known, resolved)
    else:
        chosen, assigned = [_one(folder.name, known, candidate, finished[-1].detail.get("winner"))], {}
    return Nomination(
        campaign=folder.name,
        folder=folder,
        started=next(event.at for event in events if event.kind == "started"),
        resolved=resolved,
        candidates=tuple(chosen),
        assigned=assigned,
        lineage={c.genome.id: _lineage(c, known) for c in chosen},
    )


def _one(campaign: str, known: Sequence[Candidate], name: str | None, winner: str | None) -> Candidate:
    wanted = name if name is not None else winner
    if wanted is None:
        raise UserError(f"campaign {campaign} has no winner; name a candidate with --candidate.")
    number = wanted.lstrip("#")
    found = [c for c in known if number == str(c.index) or (len(wanted) >= 6 and c.genome.id.startswith(wanted))]
    if len(found) != 1:
        raise UserError(
            f"--candidate: {wanted!r} is {'ambiguous' if found else 'unknown'} in {campaign}; "
            f"give a number from 0 to {len(known) - 1} or a genome id."
        )
    return found[0]


def _from_table(path: Path, known: Sequence[Candidate], resolved: Resolved) -> tuple[list[Candidate], dict[str, str]]:
    """A dispatch table as ``evolve.campaign.dispatch_table`` writes it: entries of {workload: {id, dims} or
    id, genome}."""
    try:
        with path.open(encoding="utf-8") as file:  # a device such as /dev/zero never ends
            entries = json.loads(file.read(MOST_LETTERS))["entries"]
        shapes = [entry["workload"] for entry in entries]
        names = [str(shape["id"] if isinstance(shape, Mapping) else shape) for shape in shapes]
        pairs = [(name, str(entry["genome"])) for name, entry in zip(names, entries, strict=True)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"--table: {path} is no dispatch table: {type(error).__name__} {error}.") from error
    by_genome = {c.genome.id: c for c in known}
    workloads = {w.id for w in (*resolved.suite.workloads, *resolved.suite.final)}
    for workload, genome in pairs:
        if genome not in by_genome:
            raise UserError(f"--table: genome {genome} is no candidate of this campaign.")
        if workload not in workloads:
            raise UserError(f"--table: workload {workload} is not in suite {resolved.suite.name}.")
    if not pairs:
        raise UserError(f"--table: {path} has no entries.")
    order = list(dict.fromkeys(genome for _, genome in pairs))
    return [by_genome[genome] for genome in order], dict(pairs)


def _lineage(candidate: Candidate, known: Sequence[Candidate]) -> tuple[str, ...]:
    by_genome = {c.genome.id: c for c in known}
    line: list[Candidate] = []
    at: Candidate | None = candidate
    while at is not None and at not in line:
        line.append(at)
        at = by_genome.get(at.parents[0]) if at.parents else None
    return tuple(f"#{c.index} {c.mutation.kind.value}: {c.mutation.detail}" for c in reversed(line))
