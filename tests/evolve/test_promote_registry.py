"""Promotions in MLflow's Model Registry: versions, aliases, receipts; and a promotion without MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evolve import tracking
from evolve.home import JOURNAL
from evolve.journal import Journal
from evolve.promote.command import Options
from evolve.promote.registry import CHAMPION, PREVIOUS, model_name, register
from evolve.promote.shelf import Shelf
from tests.evolve.promote_campaign import CHILD, OTHER, write_campaign
from tests.evolve.test_promote import OPERATOR, run


def test_promotions_become_champions_with_their_receipts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    from evolve.mirror import Mirror

    monkeypatch.delenv(tracking.URI_VARIABLE, raising=False)
    home = tmp_path / "home"
    folder, shelf, uri = write_campaign(home), Shelf(tmp_path / "library"), tracking.store_uri(home, {})
    assert register(run(folder, shelf, Options(dry_run=False)), shelf, home).startswith(
        "MLflow has not been told"
    )
    with Journal(folder / JOURNAL) as journal:
        mirror = Mirror(journal, uri, home / tracking.ARTIFACTS)
        while mirror.advance():
            pass
    second = Shelf(tmp_path / "second")
    lines, versions = [], []
    for candidate in ("1", "2"):
        outcome = run(folder, second, Options(candidate=candidate))
        versions.append(outcome.version)
        lines.append(register(outcome, second, home))
    name = model_name(OPERATOR, "tpu7x")
    assert lines[-1] == f"MLflow: model {name} version 2 is @{CHAMPION}"
    client = MlflowClient(uri, uri)
    champion = client.get_model_version_by_alias(name, CHAMPION)
    previous = client.get_model_version_by_alias(name, PREVIOUS)
    assert (champion.tags["library_version"], previous.tags["library_version"]) == (versions[1], versions[0])
    assert champion.tags["gain"] == "1.2500" and champion.tags["gain_kind"] == "modelled"
    assert champion.tags["incumbents"] == f"library's {CHILD.id}" and champion.tags["genomes"] == OTHER.id
    assert "| 512x512x512 | 40.00 | 50.00" in champion.description
    (model,) = client.search_registered_models(f"tags.operator = '{OPERATOR}' and tags.target = 'tpu7x'")
    assert model.name == name
    run_of = client.get_run(champion.run_id)
    assert run_of.data.tags["tilewright.candidate"] == "2"
    path = client.download_artifacts(champion.run_id, "promotion/receipt.json", str(tmp_path))
    receipt = json.loads(Path(path).read_text())
    assert receipt["targets"]["tpu7x"]["candidates"][0]["genome"] == OTHER.id
