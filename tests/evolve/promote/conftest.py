"""A finished campaign, and an empty library for what is promoted from it."""

import pytest

from testkit.promote_campaign import write_campaign
from tilewright.evolve.promote.library_writer import LibraryWriter


@pytest.fixture
def campaign(tmp_path):
    return write_campaign(tmp_path / "home")


@pytest.fixture
def writer(tmp_path):
    return LibraryWriter(tmp_path / "library")
