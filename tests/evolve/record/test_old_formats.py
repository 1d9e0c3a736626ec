"""Journals and library versions written by version 0.1, before the packages had one name, open and go on."""

import shutil

import pytest

import tilewright as tw
from testkit import FIXTURES, ROOT
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.tpu import time_model

JOURNALS = FIXTURES / "journals"


def opened(name, home):
    folder = home / "campaigns" / name
    folder.mkdir(parents=True)
    shutil.copy(JOURNALS / f"{name}.sqlite", folder / "journal.sqlite")
    return tw.open_campaign(name, home=home)


def test_a_finished_journal_is_read_and_reported(tmp_path):
    campaign = opened("before-001", tmp_path)
    assert campaign.state == "finished" and len(campaign.history) == 4
    assert campaign.winner is not None and campaign.winner["verdict"] == "ok"
    assert "before-001" in campaign.report(tmp_path / "report.html").read_text()


def test_a_stopped_campaign_of_another_time_model_is_read_and_not_mixed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FIXTURES / "small_gemm", tmp_path / "small_gemm")
    campaign = opened("stopped-001", tmp_path)
    assert campaign.state != "finished" and campaign.history
    written, search = Journal.meta, {"proposers": ["local_search"]}  # which version 0.1 had

    def meta(self, key, default=None):
        return written(self, key, default) | {"search": search} if key == "config" else written(self, key, default)

    monkeypatch.setattr(Journal, "meta", meta)
    with pytest.raises(tw.UserError, match=f"time model 1, this tilewright's is {time_model.VERSION}"):
        tw.resume("stopped-001", home=tmp_path)
    assert tw.open_campaign("stopped-001", home=tmp_path).history == campaign.history


def test_every_version_of_the_library_here_is_read():
    library = LibraryWriter(ROOT / "library")
    for operator in library.operators():
        for version in library.versions(operator):
            name, receipt, _ = library.version(operator, version)
            assert name == version and receipt["targets"]
