"""Champions in MLflow's Model Registry: one model for an operator and target, one version for a promotion.

``@champion`` is the last promotion, ``@previous`` the promotion that it replaced. The version points to the run of the
winning candidate, which gets the receipt as an artifact. A promotion succeeds even if MLflow cannot be reached.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.evolve.mlflow_mirror.content import CANDIDATE, UID, campaign_uid, experiment_name
from tilewright.evolve.mlflow_mirror.process import SETTINGS, store_uri
from tilewright.evolve.promote.command import PromotionOutcome
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.text import speed_text
from tilewright.library import store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

CHAMPION, PREVIOUS = "champion", "previous"
FOLDER = "promotion"


def model_name(operator: str, target: str) -> str:
    """MLflow allows no slashes in names: ``tilewright.gemm_fp8_fused.g512.tpu7x``."""
    return f"tilewright.{operator.replace('/', '.')}.{target}"


def register(outcome: PromotionOutcome, writer: LibraryWriter, home: Path) -> str:
    """Write the promotion into MLflow; one line with the new version, or with the reason why there is none."""
    if not outcome.promotion.nomination.resolved.config.mlflow.enabled:
        return "MLflow: the campaign has mlflow.enabled: false"
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow.exceptions import MlflowException

    try:
        name, number = _register(outcome, writer, store_uri(home))
    except (MlflowException, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return f"MLflow does not have this promotion: {first[:200]}"
    return f"MLflow: model {name} version {number} is @{CHAMPION}"


def _register(outcome: PromotionOutcome, writer: LibraryWriter, uri: str) -> tuple[str, str]:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    assert outcome.version is not None
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    nomination = outcome.promotion.nomination
    target = nomination.resolved.target
    _, receipt, _ = writer.version(outcome.operator, outcome.version)
    entry = receipt["targets"][target.name]
    run = _candidate_run(client, outcome)
    client.log_dict(run.info.run_id, receipt, f"{FOLDER}/{store.RECEIPT}")
    name = model_name(outcome.operator, target.name)
    tags = {"operator": outcome.operator, "target": target.name, "target_kind": target.kind.value}
    try:
        client.create_registered_model(
            name, tags, f"Promoted kernels of {outcome.operator} on {target.label}."
        )
    except MlflowException:
        client.get_registered_model(name)  # raises unless the model exists already
    made = client.create_model_version(
        name,
        f"{run.info.artifact_uri}/{FOLDER}",
        run.info.run_id,
        tags={**tags, **_tags(outcome, entry)},
        description=_description(outcome, entry),
    )
    _move_aliases(client, name, str(made.version))
    return name, str(made.version)


def _candidate_run(client: MlflowClient, outcome: PromotionOutcome) -> Run:
    """The MLflow run of the first promoted candidate. Raises OSError when the campaign is not mirrored."""
    nomination = outcome.promotion.nomination
    with Journal(nomination.folder / "journal.sqlite") as journal:
        facts: Mapping[str, Any] = journal.meta("campaign", {})
    experiment = client.get_experiment_by_name(experiment_name(facts))
    uid = campaign_uid(str(facts.get("id")), nomination.started)
    index = nomination.candidates[0].index
    query = f"tags.`{UID}` = '{uid}' and tags.`{CANDIDATE}` = '{index}'"
    runs = client.search_runs([experiment.experiment_id], query, max_results=1) if experiment else []
    if not runs:
        raise OSError(f"MLflow lacks campaign {nomination.campaign}; 'tilewright ui' writes it there")
    return runs[0]


def _tags(outcome: PromotionOutcome, entry: Mapping[str, Any]) -> dict[str, str]:
    gain = entry["gain"]
    return {
        "gain": f"{gain['value']:.4f}",
        "gain_kind": gain["kind"],
        "incumbents": gain["incumbents"],
        "library_version": str(outcome.version),
        "campaign": entry["campaign"]["id"],
        "suite": entry["campaign"]["suite"],
        "genomes": ", ".join(c["genome"] for c in entry["candidates"]),
        "commit": entry["tilewright"]["commit"],
        **({"forced": entry["forced"]} if entry["forced"] else {}),
    }


def _description(outcome: PromotionOutcome, entry: Mapping[str, Any]) -> str:
    rows = [
        f"| {s['workload']} | {s['seconds'] * 1e6:.2f} | {s['incumbent_seconds'] * 1e6:.2f} ({s['incumbent']}) "
        f"| {s['gain']:.3f} |"
        for s in entry["shapes"]
    ]
    head = [
        f"{outcome.operator} for {entry['target']['name']} ({entry['target']['kind']}), "
        f"{speed_text(entry['gain']['value'], entry['gain']['incumbents'])} (geometric mean of the shapes).",
        "",
        "| shape | us for one call | us before | gain |",
        "| --- | --- | --- | --- |",
    ]
    overruled = [f"\nForced: {entry['forced']}\n\n```json\n{json.dumps(entry['overruled'])}\n```"]
    return "\n".join([*head, *rows, *(overruled if entry["forced"] else [])])


def _move_aliases(client: MlflowClient, name: str, version: str) -> None:
    aliases = client.get_registered_model(name).aliases
    before = aliases.get(CHAMPION)
    if before is not None and str(before) != version:
        client.set_registered_model_alias(name, PREVIOUS, str(before))
    client.set_registered_model_alias(name, CHAMPION, version)
