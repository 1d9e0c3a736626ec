"""A program in MLflow: one run with the step's figures and pages, and a child run for each kernel that was searched.

    python -m tilewright.evolve.mlflow_mirror.program_runs FOLDER --uri URI --artifacts FOLDER

Everything is read from the program's folder. Writing it again brings the same runs up to date.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from tilewright.evolve.program.ceiling import ceiling
from tilewright.evolve.program.folder import FASTER, FOUND, PAGE, RECEIPT, RECORD, read_json

EXPERIMENT = "programs"
UID, PARENT, LAUNCH = "tilewright.program", "mlflow.parentRunId", "tilewright.launch"
LONGEST_PARAM = 500


def write_program(folder: Path, client: MlflowClient, artifacts: Path | None) -> str:
    """The identity of the program's run. Raises MlflowException where the store cannot be reached."""
    record, receipt = read_json(folder / RECORD), read_json(folder / RECEIPT)
    uid = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    experiment = _experiment(client, artifacts)
    run = _run(client, experiment, f"tags.`{UID}` = '{uid}'", {UID: uid}, str(record["name"]))
    found = ceiling(record)
    metrics = {"step_ms": 1e3 * found.wall, "device_busy_ms": 1e3 * found.busy}
    metrics |= {f"ceiling/{_slug(s.name)}": found.factor(s) for s in found.sources if found.busy}
    if receipt.get("gain"):
        low, high = receipt["interval"]
        metrics |= {
            "gain": receipt["gain"], "gain_low": low, "gain_high": high, "predicted_gain": receipt["predicted"],
            "step_after_ms": 1e3 * receipt["seconds"],
        }  # fmt: skip
    device = record["device"]
    params = {name: str(device[name]) for name in ("product", "torch", "triton")}
    _log(client, run, params | {"launches": str(len(record["launches"]))}, metrics)
    for name in (RECORD, PAGE, RECEIPT, FASTER):
        if (folder / name).is_file():
            client.log_artifact(run, str(folder / name))
    kept = {row["label"]: row for row in receipt.get("kept", ())}
    for row in read_json(folder / FOUND).get("found", ()):
        key = hashlib.sha256(f"{uid}/{row['module']}/{row['name']}/{row['arguments']}".encode()).hexdigest()[
            :16
        ]
        tags = {PARENT: run, LAUNCH: key}
        child = _run(client, experiment, f"tags.`{LAUNCH}` = '{key}'", tags, str(row["kernel"]))
        proved = kept.get(f"{row['module']}.{row['name']}", {})
        figures = {
            "us": 1e6 * row["seconds"],
            "kernel_gain": row["gain"],
            "tried": row["tried"],
            "wrong": row["wrong"],
        }
        figures |= {"step_gain": proved["gain"], "step_gain_low": proved["interval"][0]} if proved else {}
        said = {"function": f"{row['module']}.{row['name']}", "arguments": row["arguments"]}
        _log(client, child, {**said, "configuration": str(row["configuration"] or row["why"])}, figures)
        client.set_terminated(child)
    client.set_terminated(run)
    return run


def _experiment(client: MlflowClient, artifacts: Path | None) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    location = None
    if artifacts is not None:
        (artifacts / EXPERIMENT).mkdir(parents=True, exist_ok=True)
        location = (artifacts / EXPERIMENT).resolve().as_uri()
    # the kind makes the UI open on runs and charts instead of traces
    return str(
        client.create_experiment(EXPERIMENT, location, {"mlflow.experimentKind": "custom_model_development"})
    )


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


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name.lower())


def main() -> int:
    """Write one program. Returns 1 and prints a sentence where the store cannot be reached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--artifacts", type=Path, required=True)
    given = parser.parse_args()
    local = not given.uri.startswith(("http:", "https:", "databricks"))
    try:
        write_program(given.folder, MlflowClient(tracking_uri=given.uri), given.artifacts if local else None)
    except (MlflowException, OSError) as error:
        print(json.dumps({"why": str(error).splitlines()[0]}))  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
