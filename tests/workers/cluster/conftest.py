"""Ray as tests start it."""

import pytest

from testkit.pool import PATIENT_RAY


@pytest.fixture(scope="module", autouse=True)
def patient():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENT_RAY.items():
            patch.setenv(name, value)
        yield
