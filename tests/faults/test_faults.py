"""Whatever goes wrong, the journal ends as it does when nothing goes wrong, up to order."""

import numpy as np
import pytest

from evolve.campaign import StopReason
from tests.faults.campaigns import Table, content, go
from tests.faults.kinds import FAULTS, differences


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    path = tmp_path_factory.mktemp("unbroken") / "j.sqlite"
    assert go(path, Table(np.random.default_rng(0))) is StopReason.EVALUATIONS
    found = content(path)
    verdicts = {e["verdict"] for e in found["evaluations"].values()}
    assert verdicts == {"ok", "incorrect", "duplicate"}, "a campaign that everything happens in"
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_journal_is_as_without_the_fault(fault, tmp_path, wanted):
    found = content(fault.inject(tmp_path, 3, wanted))
    assert differences(fault, found, wanted) == []


def test_a_difference_is_seen(wanted):
    fault = FAULTS[-1]
    lost = {**wanted, "evaluations": {i: e for i, e in wanted["evaluations"].items() if i != 4}}
    assert differences(fault, lost, wanted) == ["other evaluations", "evaluation 4 differs"]
    assert differences(fault, {**wanted, "candidates": []}, wanted) == ["other candidates"]
