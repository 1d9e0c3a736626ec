"""docs/write_a_rewrite_rule.md, followed to the letter: its rule finds its site, and the child computes the same."""

import re

import numpy as np
import pytest

from testkit import ROOT
from testkit.rewriting import Trial, load_cases, run_checks
from tilewright.evolve.proposers.rewrite.base import KernelSource
from tilewright.evolve.proposers.rewrite.proposer import rewrite
from tilewright.fitness.dialect import check

pytest.importorskip("triton")

PAGE = (ROOT / "docs" / "write_a_rewrite_rule.md").read_text(encoding="utf-8")


def test_the_rule_of_the_page_keeps_the_meaning():
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    names: dict = {}
    exec(compile(block, "page", "exec"), names)
    rule = names["ExpToExp2"]()
    (case,) = load_cases(["triton/softmax_rows.py"])
    (site,) = rule.sites(KernelSource(case.source))
    assert "exp" in site.description and rule.why
    child = rewrite(case.source, case.params, rule, site, np.random.default_rng(0))
    assert child is not None and "tl.exp2((x) * 1.44" in child.source
    assert check(child.source, entry="launch") == []
    trial = Trial(case.name, rule.name, site.key, child.source, dict(child.params))
    run_checks([case], [trial])
    assert trial.ok, trial.reason
    assert not rule.sites(KernelSource(child.source))
