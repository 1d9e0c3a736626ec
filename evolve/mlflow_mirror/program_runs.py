"""A program in MLflow: one run with the step's figures and pages, and a child run for each kernel that was searched.

    python -m tilewright.evolve.mlflow_mirror.program_runs --uri URI --artifacts FOLDER < CONTENT

Writing it again brings the same runs up to date.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from tilewright.evolve.mlflow_mirror.writer import experiment_of

EXPERIMENT = "programs"
UID, PARENT, LAUNCH = "tilewright.program", "mlflow.parentRunId", "tilewright.launch"
LONGEST_PARAM = 500


def write_program(content: Mapping[str, Any], client: MlflowClient, artifacts: Path | None) -> str:
    """The identity of the program's run. Raises MlflowException where the store cannot be reached.

    ``content``: ``uid``, ``name``, ``params``, ``metrics``, ``files``, and ``kernels``, each with a ``key``.
    """
    uid = str(content["uid"])
    experiment = experiment_of(client, EXPERIMENT, artifacts, {})
    run = _run(client, experiment, f"tags.`{UID}` = '{uid}'", {UID: uid}, str(content["name"]))
    _log(client, run, content["params"], content["metrics"])
    for path in content["files"]:
        client.log_artifact(run, path)
    for kernel in content["kernels"]:
        tags = {PARENT: run, LAUNCH: str(kernel["key"])}
        child = _run(client, experiment, f"tags.`{LAUNCH}` = '{kernel['key']}'", tags, str(kernel["name"]))
        _log(client, child, kernel["params"], kernel["metrics"])
        client.set_terminated(child)
    client.set_terminated(run)
    return run


def _run(client: MlflowClient, experiment: str, query: str, tags: Mapping[str, str], name: str) -> str:
    known = client.search_runs([experiment], query, max_results=1)
    if known:
        return str(known[0].info.run_id)
    return str(client.create_run(experiment, tags=dict(tags), run_name=name).info.run_id)


def _log(client: MlflowClient, run: str, params: Mapping[str, str], metrics: Mapping[str, float]) -> None:
    """Parameters of MLflow never change, so that those of a run written again are tags as well as they differ."""
    before = client.get_run(run)
    known, now = before.data.params, before.info.start_time
    texts = {name: value[:LONGEST_PARAM] for name, value in params.items()}
    new = [Param(name, text) for name, text in texts.items() if name not in known]
    changed = [RunTag(name, text) for name, text in texts.items() if known.get(name, text) != text]
    good = [Metric(k, float(v), now, 0) for k, v in metrics.items() if math.isfinite(v)]
    client.log_batch(run, metrics=good, params=new, tags=changed, synchronous=True)


def main() -> int:
    """Write one program. Returns 1 and prints a sentence where the store cannot be reached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--artifacts", type=Path, required=True)
    given = parser.parse_args()
    local = not given.uri.startswith(("http:", "https:", "databricks"))
    try:
        write_program(json.load(sys.stdin), MlflowClient(tracking_uri=given.uri), given.artifacts if local else None)
    except (MlflowException, OSError) as error:
        print(json.dumps({"why": str(error).splitlines()[0]}))  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
