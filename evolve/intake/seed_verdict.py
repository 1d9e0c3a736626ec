"""What a campaign will say of its seed, asked beforehand: by the same operator, suite, gates, inputs and target."""

import math
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.evolve.campaign.loop import failure_text, gate_seed
from tilewright.evolve.campaign.preparation import pool_settings
from tilewright.evolve.campaign.resolve import resolve
from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import folder
from tilewright.evolve.intake.tune import Request, config_of
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.targets import Target
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.cluster.pool import make_pool
from tilewright.workers.device.warm_device import WarmDevice

SECONDS = 300.0
"""Most that the seed's evaluation may take."""


def seed_failure(
    request: Request, answer: Mapping[str, Any], target: Target, device: WarmDevice | None
) -> str:
    """Why a campaign refuses the function that was read in; empty where it starts."""
    with tempfile.TemporaryDirectory(prefix="tilewright-check-") as home:
        request = answer.get("asked", request)
        where = Path(home) / f"{request.name}_tuned"
        folder.write(where, request.function, request.reference, answer, request.values)
        try:
            resolved = resolve(config_of(request, target, where, {"mlflow.enabled": False}))
        except UserError as error:  # its operator is none
            return re.sub(r"^operator: \S+ ", "", str(error)).removesuffix(".")
        pool = make_pool(pool_settings(resolved), device)
        try:
            pool.start()
            seed = gate_seed(resolved.config.seed, 0)
            pool.submit(Job(0, resolved.starts[0].genome, seed, best=math.inf))
            until = time.monotonic() + SECONDS
            while not (finished := pool.wait(1.0)) and time.monotonic() < until:
                pass
        finally:
            pool.close()
    if not finished:
        return f"its evaluation took more than {SECONDS:.0f} s"
    (_, evaluation), *_ = finished
    return "" if evaluation.verdict is Verdict.OK else failure_text(evaluation)
