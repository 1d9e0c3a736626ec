"""Where campaigns live: what is no home is told, rather than taken for an empty one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.evolve import cli
from tilewright.evolve.errors import UserError
from tilewright.evolve.record.home import JOURNAL, campaigns, find_campaign
from tilewright.evolve.record.journal import Journal


def test_a_home_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert campaigns(tmp_path / "not yet") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"home: .*file is not a readable folder\."):
        find_campaign(tmp_path / "file", None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="is not a readable folder"):
        campaigns(tmp_path)


def test_home_may_stand_before_and_after_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "campaigns" / "new-001"
    folder.mkdir(parents=True)
    with Journal(folder / JOURNAL, write=True, create=True) as journal:
        journal.set_meta("campaign", {"operator": "a/b", "target": "tpu7x", "target_kind": "modelled"})
    for arguments in (["--home", str(tmp_path), "status"], ["status", "--home", str(tmp_path)]):
        assert cli.main(arguments) == 0
        said = capsys.readouterr().out
        assert said.startswith("new-001  a/b on tpu7x") and "no candidate has passed yet" in said
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("tilewright ")
