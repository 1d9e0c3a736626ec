"""A campaign on a kernel no rule can follow goes on without rewrites and says once which construct it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.evolve.proposers.test_llm_cli import FAMILY, InlinePool
from tilewright.evolve.cli import main
from tilewright.evolve.proposers.rewrite.proposer import offers
from tilewright.evolve.record.journal import Journal


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("grid=(", "grid_spec=(", "pallas_call with grid_spec"),
        (
            "            body,\n            grid",
            "            make(body),\n            grid",
            "a kernel given as Call",
        ),
        ("from jax.experimental import pallas as pl\n", "from jax import nn as pl\n", "no import of triton"),
    ],
)
def test_an_unsupported_construct_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, named: str
) -> None:
    monkeypatch.setattr("tilewright.evolve.run.make_pool", InlinePool)
    offers.cache_clear()
    family = tmp_path / "family"
    (family / "kernels").mkdir(parents=True)
    (family / "operator.py").write_text((FAMILY / "operator.py").read_text())
    for kernel in (FAMILY / "kernels").glob("*.py"):
        text = kernel.read_text()
        if named.startswith("no import"):
            text = text.replace("from jax.experimental.pallas import tpu as pltpu\n", "pltpu = pl\n")
        assert kernel.stem != "tiled" or old in text
        (family / "kernels" / kernel.name).write_text(text.replace(old, new))
    data = {
        "name": "odd",
        "operator": f"{family}/good",
        "target": "tpu7x",
        "suite": "tiny",
        "budget": {"evaluations": 5},
        "search": {"lag": 1, "islands": 1, "proposers": ["rewrite", "parameters"]},
        "mlflow": {"enabled": False},
    }
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(data))
    assert main(["--home", str(tmp_path / "home"), "run", str(tmp_path / "odd.yaml")]) == 0
    folder = tmp_path / "home" / "campaigns" / "odd-001"
    with Journal(folder / "journal.sqlite") as journal:
        kinds = [candidate.mutation.kind for candidate in journal.candidates()]
    assert kinds == ["seed", *["parameter"] * 4]
    assert sum(named in line for line in (folder / "campaign.log").read_text().splitlines()) == 1
