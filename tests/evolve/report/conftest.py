"""The sample campaign that tests of the report read."""

import pytest

from testkit.sample_campaign import write_sample
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.data import load


@pytest.fixture(scope="session")
def journal_path(tmp_path_factory):
    return write_sample(tmp_path_factory.mktemp("campaign") / "journal.sqlite", 60)


@pytest.fixture(scope="session")
def data(journal_path):
    with Journal(journal_path) as journal:
        return load(journal)
