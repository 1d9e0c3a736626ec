"""Starting from what earlier campaigns found: on other workloads, other targets, or an earlier day.

An earlier campaign's journal gives its points and how each did relative to the best there, so that figures of
different workloads and targets are never compared with each other. The best of them are tried first; all of
them are further sources of the surrogate's model, which a column distinguishes from the campaign's own points.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np

from tilewright.evolve.errors import UserError
from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, SpaceOf, changes
from tilewright.evolve.proposers.surrogate.records import SourceRecords
from tilewright.evolve.record.history import History, Mutation, MutationKind, Proposal, Searcher
from tilewright.evolve.record.home import JOURNAL, campaigns, find_campaign
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import Evaluation, Verdict

LEADS = 3
"""Points of earlier campaigns that are tried before anything else."""

MOST_POINTS = 80
"""Most points of an earlier source that a model gets: half of them the best, the rest spread over all."""

MOST_RELATED = 3
"""Most campaigns that ``search.transfer: auto`` starts from."""

_UNINFORMATIVE = (Verdict.INFRA_ERROR, Verdict.DUPLICATE, Verdict.REJECTED)


@dataclass
class EarlierSource:
    """Points of one source in one earlier campaign. ``points`` are (genome, log fitness), NaN for failures."""

    campaign: str
    source: str
    points: list[tuple[Genome, float]] = field(default_factory=list)

    def add(self, genome: Genome, evaluation: Evaluation) -> None:
        if evaluation.verdict not in _UNINFORMATIVE:
            fitness = evaluation.believed
            self.points.append((genome, math.log(fitness) if fitness else math.nan))

    def successes(self) -> list[tuple[Genome, float]]:
        """Fittest first, earlier ones first on a tie."""
        return sorted((p for p in self.points if not math.isnan(p[1])), key=lambda p: -p[1])


def related_campaigns(
    home: Path, operator: str, target: str, sources: Collection[str], space_of: SpaceOf
) -> tuple[str, ...]:
    """Ids of the latest finished campaigns of this home that searched this operator on this target, or one of these
    sources, and know points of this campaign's spaces."""
    found: list[str] = []
    try:
        known = campaigns(home)
    except UserError:
        return ()  # creating the campaign reports what is wrong with the folder
    for folder in reversed(known):
        if len(found) == MOST_RELATED:
            break
        try:
            with Journal(folder / JOURNAL) as journal:
                facts = journal.meta("campaign") or {}
                if not any(event.kind == "finished" for event in journal.events()):
                    continue
                same = (facts.get("operator"), facts.get("target")) == (operator, target)
                parts = earlier_points(folder.name, journal)
        except UserError:
            continue  # a journal of another format, or a damaged one
        if records_of([p for p in parts if same or p.source in sources], space_of):
            found.append(folder.name)
    return tuple(found)


def read_earlier(
    home: Path, campaigns: Sequence[str], operator: str | None = None, sources: Collection[str] = ()
) -> list[EarlierSource]:
    """Points of finished campaigns by source, in the order of their names. Raises UserError.

    Of a campaign of another ``operator`` only ``sources`` count; None for campaigns of any.
    """
    found: list[EarlierSource] = []
    for campaign in campaigns:
        with Journal(find_campaign(home, campaign) / JOURNAL) as journal:
            if not any(event.kind == "finished" for event in journal.events()):
                raise UserError(f"search.transfer: campaign {campaign} has not finished; let it finish first.")
            same = operator in (None, (journal.meta("campaign") or {}).get("operator"))
            found += [p for p in earlier_points(campaign, journal) if same or p.source in sources]
    return found


def earlier_points(campaign: str, journal: Journal) -> list[EarlierSource]:
    """What one campaign found, by source."""
    genomes = {candidate.index: candidate.genome for candidate in journal.candidates()}
    by_source: dict[str, EarlierSource] = {}
    for _, index, evaluation, _ in journal.evaluations():
        genome = genomes[index]
        earlier = by_source.setdefault(genome.source_id, EarlierSource(campaign, genome.source))
        earlier.add(genome, evaluation)
    return [earlier for earlier in by_source.values() if earlier.successes()]


def records_of(earlier: Sequence[EarlierSource], space_of: SpaceOf) -> list[SourceRecords]:
    """The same for a model: log fitness relative to the best of its campaign, in this campaign's spaces."""
    best: dict[str, float] = {}
    for part in earlier:
        best[part.campaign] = max(best.get(part.campaign, -math.inf), part.successes()[0][1])
    records = []
    spaces = KnownSpaces(space_of)
    for part in earlier:
        space = spaces[part.source]
        known = [(g, t) for g, t in _thin_out(part) if space is not None and _encodable(space, g)]
        if space is None or not known:
            continue
        rows = [space.encode(genome.params) for genome, _ in known]
        targets = [target - best[part.campaign] for _, target in known]
        records.append(SourceRecords(part.source, space, rows, targets, earlier=True))
    return records


def leads_of(earlier: Sequence[EarlierSource], space_of: SpaceOf) -> list[Genome]:
    """The legal points that did best over all campaigns, distinct.

    What is good on one workload may be best for another, but what is good on most is the safer bet. A point
    stands at its mean log fitness relative to the best of each campaign; where it was not tried, at the median
    of that campaign, and where it failed, at the worst.
    """
    spaces, genomes = KnownSpaces(space_of), dict[str, Genome]()
    campaigns: dict[str, dict[str, float]] = {}
    for part in earlier:
        for genome, target in part.points:
            space = spaces[genome.source]
            if space is not None and space.legal(genome.params):
                genomes.setdefault(genome.id, genome)
            campaigns.setdefault(part.campaign, {})[genome.id] = target
    standing = dict.fromkeys(genomes, 0.0)
    for targets in campaigns.values():
        known = np.array([target for target in targets.values() if not math.isnan(target)])
        for genome_id in genomes:
            target = targets.get(genome_id, float(np.median(known)))
            standing[genome_id] += float((known.min() if math.isnan(target) else target) - known.max())
    worked = {g.id for part in earlier for g, _ in part.successes()}
    ranked = sorted((i for i in genomes if i in worked), key=lambda i: -standing[i])
    return [genomes[genome_id] for genome_id in ranked[:LEADS]]


@dataclass(frozen=True)
class LeadsFirst:
    """A searcher that offers the leads first. The lineage names ``proposer`` and ``origin`` beside each."""

    leads: Sequence[Genome]
    then: Searcher
    proposer: str = "transfer"
    origin: str = "from an earlier campaign"

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        for genome in self.leads:
            if genome.id in history:
                continue
            seeds = takewhile(lambda c: c.mutation.kind is MutationKind.SEED, history.candidates)
            alike = (c.genome for c in seeds if c.genome.source_id == genome.source_id)
            parent = next(alike, history.candidates[0].genome)
            kind = MutationKind.PARAMETER if parent.source_id == genome.source_id else MutationKind.CROSSOVER
            detail = f"{self.origin}: {changes(parent.params, genome.params)}"
            return Proposal(genome, (parent.id,), Mutation(kind, self.proposer, detail))
        return self.then.propose(history, island, rng)


def _thin_out(part: EarlierSource) -> list[tuple[Genome, float]]:
    if len(part.points) <= MOST_POINTS:
        return part.points
    best = part.successes()[: MOST_POINTS // 2]
    chosen = {genome.id for genome, _ in best}
    rest = [point for point in part.points if point[0].id not in chosen]
    step = len(rest) / (MOST_POINTS - len(best))
    return best + [rest[int(i * step)] for i in range(MOST_POINTS - len(best))]


def _encodable(space: Space, genome: Genome) -> bool:
    try:
        space.encode(genome.params)
    except KeyError:
        return False
    return True
