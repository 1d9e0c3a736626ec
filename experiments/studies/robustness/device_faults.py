"""A campaign with a hanging kernel, one that writes to an illegal address and one that asks for 4 TB, and one without.

    python -m experiments.studies.robustness.device_faults --out DIR

The three are seeds beside the good one. Reported: their verdicts, the longest time between two finished evaluations,
and the two campaigns' best genomes side by side. Both campaigns run on the same workers. Needs the target's device;
every figure is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from testkit import CAMPAIGNS
from testkit.faults.device import FAULTS
from tilewright.evolve.campaign.config import load_config
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, Start
from tilewright.evolve.campaign.preparation import pool_settings
from tilewright.evolve.campaign.resolve import Resolved, resolve
from tilewright.evolve.campaign.searcher import build_searcher
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Verdict
from tilewright.workers.cluster.pool import RayPool

CAMPAIGN = CAMPAIGNS / "h200_gemm_nt.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--campaign", type=Path, default=CAMPAIGN)
    parser.add_argument("--seeds", nargs="*", default=["gluon_ws"])
    parser.add_argument("--evaluations", type=int, default=12)
    arguments = parser.parse_args()
    overrides = {"budget.evaluations": arguments.evaluations, "seeds": arguments.seeds}
    resolved = resolve(load_config(arguments.campaign, overrides))
    report: dict[str, Any] = {"target": resolved.target.name, "kind": "measured", "campaigns": {}}
    best = {}
    pool = RayPool(pool_settings(resolved))
    try:
        pool.start()
        for name, faults in (("with faults", FAULTS), ("without", {})):
            folder = arguments.out / name.replace(" ", "_")
            report["campaigns"][name], best[name] = run(resolved, pool, faults, folder)
            sys.stdout.write(json.dumps(report["campaigns"][name]) + "\n")
            sys.stdout.flush()
        report["side by side"] = compare(pool, best)
    finally:
        pool.close()
    (arguments.out / "faults.json").write_text(json.dumps(report, indent=1) + "\n")
    sys.stdout.write(json.dumps(report["side by side"]) + "\n")
    return 0


def run(
    resolved: Resolved, pool: RayPool, faults: dict[str, str], folder: Path
) -> tuple[dict[str, Any], Genome]:
    """One campaign; what its journal says about the faults and the pauses, and its best genome."""
    folder.mkdir(parents=True)
    config = resolved.config
    bad = tuple(Start(name, Genome(source, {"blocks": 1})) for name, source in faults.items())
    starts = (*resolved.starts, *bad)
    with Journal(folder / JOURNAL, write=True, create=True) as journal:
        journal.add_event("started")
        archive = Archive(config.search.islands, config.search.migration_interval)
        evaluations = (config.budget.evaluations or 0) + len(bad)
        plan = Plan(starts, Budget(evaluations), config.seed, config.search.lag, config.search.islands)
        campaign = Campaign(
            dataclasses.replace(plan, must_pass=False),
            build_searcher(resolved, archive, journal, folder).searcher,
            archive,
            pool,
            journal,
        )
        begun = time.time()
        campaign.run()
        journal.add_event("finished")
        rows = sorted((at, index, evaluation) for _, index, evaluation, at in journal.evaluations())
    times = [at - begun for at, *_ in rows]
    verdicts = [evaluation.verdict for *_, evaluation in rows]
    found = campaign.history.best
    assert found is not None
    return {
        "faults": {
            starts[index].name: {
                "verdict": evaluation.verdict.value,
                "stage": evaluation.stage.value,
                "reason": evaluation.reason,
                "finished_at_seconds": at - begun,
                "next_evaluation_after_seconds": min((t for t in times if t > at - begun), default=at - begun)
                - (at - begun),
            }
            for at, index, evaluation in rows
            if len(resolved.starts) <= index < len(starts)
        },
        "evaluations": len(rows),
        "ok": verdicts.count(Verdict.OK),
        "infra_errors": verdicts.count(Verdict.INFRA_ERROR),
        "retried_jobs": pool.retried,
        "finished_at_seconds": times,
        "longest_pause_seconds": max(b - a for a, b in itertools.pairwise(times)),
        "best_tflops": found[1].fitness,
        "best_params": dict(found[0].genome.params),
    }, found[0].genome


def compare(pool: RayPool, best: dict[str, Genome]) -> dict[str, Any]:
    """The campaigns' best genomes on every workload."""
    found = pool.compare(list({g.id: g for g in best.values()}.values()), seed=3)
    first, second = (best[name].id for name in ("without", "with faults"))
    ratio = found.ratio(second, first)
    return {
        "same_genome": first == second,
        "time_with_over_without": ratio.value,
        "interval": [ratio.low, ratio.high] if first != second else [1.0, 1.0],
        "control_by_workload": found.control(),
        "device": dict(found.device),
    }


if __name__ == "__main__":
    sys.exit(main())
