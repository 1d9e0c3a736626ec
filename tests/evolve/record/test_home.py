"""Where campaigns live: what is no home is told, rather than taken for an empty one."""

import os

import pytest

from tilewright.evolve.errors import UserError
from tilewright.evolve.record.home import campaigns, find_campaign


def test_a_home_that_cannot_be_read_is_not_an_empty_one(tmp_path, monkeypatch):
    assert campaigns(tmp_path / "not yet") == []
    (tmp_path / "file").write_text("")
    for below in ("file", "file/below/it"):
        with pytest.raises(UserError, match=r"home: .*file is not a readable folder\."):
            find_campaign(tmp_path / below, None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="is not a readable folder"):
        campaigns(tmp_path)
