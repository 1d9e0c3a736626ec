"""The child that interprets Triton's kernels, started once."""

import pytest

from testkit.seeds.triton_station import interpreter


@pytest.fixture(scope="session")
def station():
    pytest.importorskip("triton")
    made = interpreter()
    yield made
    made.close()
