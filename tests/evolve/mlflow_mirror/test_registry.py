"""Promotions in MLflow's Model Registry: versions, aliases, receipts; and a promotion without MLflow."""

import json
from pathlib import Path

from testkit.promote_campaign import CHILD, OTHER, write_campaign
from tests.evolve.promote.test_command import OPERATOR, run
from tilewright.evolve.mlflow_mirror import process as mirror_process
from tilewright.evolve.mlflow_mirror.registry import CHAMPION, PREVIOUS, model_name, register
from tilewright.evolve.promote.command import Options
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal


def test_promotions_become_champions_with_their_receipts(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    from tilewright.evolve.mlflow_mirror.writer import Mirror

    monkeypatch.delenv(mirror_process.URI_VARIABLE, raising=False)
    home = tmp_path / "home"
    folder, writer, uri = (
        write_campaign(home),
        LibraryWriter(tmp_path / "library"),
        mirror_process.store_uri(home, {}),
    )
    assert register(run(folder, writer, Options(dry_run=False)), writer, home).startswith(
        "MLflow does not have this promotion"
    )
    with Journal(folder / JOURNAL) as journal:
        mirror = Mirror(journal, uri, home / mirror_process.ARTIFACTS)
        while mirror.advance():
            pass
    second = LibraryWriter(tmp_path / "second")
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
