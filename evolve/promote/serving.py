"""Who answers for which workloads: the nominated, what serves them now, and the shapes each is evaluated on.

A kernel serves a workload that it is legal for: its space, with the workload's sizes and the constants of operator
and target, allows its parameters. What the library holds serves a workload only if the library's own dispatch would
choose it there today; it is compared wherever it is legal. Nobody is evaluated on, or compared on, a workload it does
not serve, and a nominated kernel has to serve everything it is to be promoted for.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.evolve.campaign.resolve import Resolved, objection
from tilewright.evolve.errors import UserError
from tilewright.evolve.promote.library_writer import LibraryError
from tilewright.evolve.promote.nominate import Nomination
from tilewright.evolve.promote.verify import Contender, Refusal
from tilewright.evolve.space.genome import Genome
from tilewright.library import store
from tilewright.seeds.operator import Workload


def legal_shapes(resolved: Resolved, genome: Genome) -> frozenset[str]:
    """Ids of the suite's shapes, timed and checked ones, that a genome is legal for."""
    suite = resolved.suite
    shapes = {w.id: w for w in (*suite.check, *suite.workloads, *suite.final)}
    return frozenset(name for name, w in shapes.items() if objection(resolved, genome, w) is None)


def nominees(nomination: Nomination, names: Mapping[str, str]) -> list[Contender]:
    """The nominated. Raises Refusal for one that does not serve what it is to be promoted for, or cannot be checked."""
    resolved, contenders = nomination.resolved, []
    for candidate in nomination.candidates:
        genome, name = candidate.genome, names[candidate.genome.id]
        mine = [w for w in timed_workloads(resolved) if nomination.genome_for(w.id) == genome.id]
        for workload in mine:
            if (reason := objection(resolved, genome, workload)) is not None:
                raise Refusal(f"promotion refused: {name} does not serve {workload.id}: {reason.removesuffix('.')}.")
        shapes = checked_shapes(resolved, genome, {w.id for w in mine})
        if shapes.isdisjoint(w.id for w in resolved.suite.check):
            raise Refusal(
                f"promotion refused: {name} is legal for none of the shapes that suite {resolved.suite.name} is "
                "checked on."
            )
        contenders.append(Contender(name, genome, only=shapes))
    return contenders


def incumbents(
    nomination: Nomination, table: store.Table | None, against: str | None, names: Mapping[str, str]
) -> tuple[dict[str, str], list[Contender]]:
    """(workload id to the name of what serves it now, those that are not nominated themselves).

    ``table``: the library's, None where it has none. What it does not serve is served by ``against``, a baseline or
    seed; by default the operator's first baseline, else the first seed. Raises UserError for an unknown name.
    """
    resolved = nomination.resolved
    serving: dict[str, str] = {}
    found: dict[str, tuple[Contender, set[str]]] = {}
    held = {f"library's {r.kernel.name}": r.legality for r in (table.regions if table else ())}
    for workload in timed_workloads(resolved):
        contender = _dispatch_choice(resolved, table, workload) or _baseline(resolved, against)
        name = names.get(contender.genome.id, contender.name)
        serving[workload.id] = name
        if name == contender.name:
            found.setdefault(name, (contender, set()))[1].add(workload.id)
    for name in found.keys() & held.keys():  # perhaps it is the fastest elsewhere too
        found[name][1].update(w.id for w in timed_workloads(resolved) if held[name].holds(w.dims))
    return serving, [replace(c, only=checked_shapes(resolved, c.genome, served)) for c, served in found.values()]


def timed_workloads(resolved: Resolved) -> Sequence[Workload]:
    """What a campaign's suite times, its final workloads last."""
    return list(dict.fromkeys((*resolved.suite.workloads, *resolved.suite.final)))


def checked_shapes(resolved: Resolved, genome: Genome, served: Collection[str]) -> frozenset[str]:
    """Ids of what is served, and of those checked shapes, legal ones, that are not among the timed."""
    return frozenset(served) | (legal_shapes(resolved, genome) - {w.id for w in timed_workloads(resolved)})


def _dispatch_choice(resolved: Resolved, table: store.Table | None, workload: Workload) -> Contender | None:
    """The library's kernel for a workload."""
    if table is None:
        return None
    try:
        kernel = table.choose(tuple(workload.dims[name] for name in table.dimensions)).kernel
        genome = Genome(kernel.source(), dict(kernel.params))
        within = tuple(kernel.entry["constraints"])
        contender = Contender(f"library's {kernel.name}", genome, within=within)
    except store.UnsoundLibrary as error:
        raise LibraryError(f"{error}.") from error
    except store.NotServed:
        return None
    return contender if objection(resolved, contender.genome, workload) is None else None


def _baseline(resolved: Resolved, against: str | None) -> Contender:
    """The named baseline or seed; by default the operator's first baseline, else the first seed."""
    everyone = [Contender(kernel.name, genome, kernel.name) for kernel, genome in resolved.baselines]
    everyone += [Contender(start.name, start.genome) for start in resolved.starts]
    if against is None:
        return everyone[0]
    for contender in everyone:
        if contender.name == against:
            return contender
    known = ", ".join(contender.name for contender in everyone)
    raise UserError(f"--against: {against!r} is no baseline or seed of this campaign (allowed: {known}).")
