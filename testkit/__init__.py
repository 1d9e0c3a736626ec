"""Parts that tests and studies share: sample campaigns, kernels, faults, exploits, recorded spaces. Never installed."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "testkit" / "fixtures"
CORPUS = ROOT / "testkit" / "corpus"
RECORDS = ROOT / "experiments" / "records"
SPACES = ROOT / "experiments" / "spaces"
