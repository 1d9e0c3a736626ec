"""Importing tilewright loads neither Ray nor the journal; ``test_end_to_end`` reads a campaign from Python."""

import subprocess
import sys

from testkit import ROOT
from tilewright import api


def test_keys_of_the_file_count_more_than_a_budget():
    changed = api._changes(api.Budget(), {"budget__evaluations": 3, "search__lag": 2})
    assert changed == {"budget.evaluations": 3, "budget.wall_seconds": None, "search.lag": 2}


def test_importing_costs_nothing():
    code = "import sys, tilewright; print(tilewright.__version__, [m for m in sys.modules if 'evolve' in m])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "ray" not in done.stdout and "journal" not in done.stdout
