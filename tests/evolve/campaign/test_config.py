"""Every wrong key or value is one sentence that names it and says what is allowed."""

import functools
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from testkit import FIXTURES, ROOT
from tilewright import api
from tilewright.evolve.campaign import preparation
from tilewright.evolve.campaign.config import (
    RETIRED_LIMIT,
    BudgetConfig,
    CampaignConfig,
    LlmConfig,
    MlflowConfig,
    SearchConfig,
    WorkerConfig,
    load_config,
    parse_config,
    read_yaml,
)
from tilewright.evolve.campaign.resolve import resolve
from tilewright.evolve.errors import UserError

GOOD: dict[str, Any] = {
    "name": "q",
    "operator": "gemm_fp8_fused/g512",
    "target": "tpu7x",
    "suite": "quickstart",
    "budget": {"evaluations": 3},
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"taget": "tpu7x"}, ["'taget'", "did you mean 'target'"]),
        ({"budget": {"evaluation": 3}}, ["'budget.evaluation'", "did you mean 'evaluations'", "wall_seconds"]),
        ({"budget": 5}, ["budget", "a mapping of keys", "5"]),
        ({"seeds": "fused"}, ["seeds", "a list", "'fused'"]),
        ({"budget": {}}, ["budget", "at least one of evaluations"]),
        ({"budget": {"evaluations": 0}}, ["budget.evaluations", "greater than or equal to 1", "0"]),
        ({"search": {"order": "random"}}, ["search.order", "'index' or 'arrival'"]),
        ({"search": {"lag": "many"}}, ["search.lag", "'many'"]),
        ({"search": {"proposers": ["local_search"]}}, ["search.proposers", "'surrogate'", "'local_search'"]),
        ({"name": "Not OK"}, ["name", "lower-case"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"workers": {"memory_gib": -2}}, ["workers.memory_gib"]),
        ({"operator": ...}, ["key 'operator' is missing"]),
        ({"target": ..., "tagret": "tpu7x"}, ["unknown key 'tagret'; did you mean 'target'"]),
        ({"search": {"without_rules": ["pallas_chunk_row"]}}, ["search.without_rules", "'pallas_chunk_rows'"]),
    ],
)
def test_a_wrong_key_is_named(change, words):
    with pytest.raises(UserError) as caught:
        parse_config({k: v for k, v in {**GOOD, **change}.items() if v is not ...}, "q.yaml")
    message = str(caught.value)
    assert "\n" not in message
    for word in ["q.yaml", *words]:
        assert word in message


def test_an_old_journal_may_name_what_is_gone():
    gone = {**GOOD, "search": {"without_rules": ["pallas_manual_copy", "pallas_chunk_rows"]}}
    config = parse_config(gone, recorded=True)
    assert config.search.without_rules == ("pallas_manual_copy", "pallas_chunk_rows")
    config = parse_config({**GOOD, "search": {"proposers": ["surrogate", "local_search"]}}, recorded=True)
    assert config.search.proposers == ("surrogate",)
    gone = {**GOOD, "search": {"descriptors": ["stall", "placement"], "proposers": []}}
    config = parse_config(gone, recorded=True)
    assert (config.search.descriptors, config.search.proposers) == (("placement",), ())
    for budget, left in (({"fitness": 2.0}, None), ({}, RETIRED_LIMIT), ({"evaluations": 9}, 9)):
        settings = {**GOOD, "budget": {**budget, "until": "converged"}}
        assert parse_config(settings, recorded=True).budget.evaluations == left
        with pytest.raises(UserError, match=r"unknown key 'budget.until' \(allowed: evaluations, "):
            parse_config(settings)


def test_a_key_given_twice_is_refused(tmp_path):
    path = tmp_path / "q.yaml"
    path.write_text("name: a\nbudget: {evaluations: 1, evaluations: 2}\n")
    with pytest.raises(UserError, match=r"q.yaml: key 'evaluations' is given twice, at line 2 again\.$"):
        load_config(path)
    assert read_yaml("a: &a {b: 1}\nc: {<<: *a, b: 2}", "q")["c"] == {"b": 2}, "a merged key may be overridden"


def test_files_that_are_no_campaign(tmp_path):
    cases = {
        "list.yaml": (b"- a\n- b\n", "must hold a mapping"),
        "broken.yaml": (b"name: [1,\n", "not valid YAML at line"),
        "binary.yaml": (b"\xff\xfe\x00\x01", "cannot read"),
        "empty.yaml": (b"", "must hold a mapping"),
    }
    for name, (data, words) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=words):
            load_config(tmp_path / name)
    with pytest.raises(UserError, match="cannot read"):
        load_config(tmp_path / "none.yaml")


def test_an_operator_s_path_is_that_of_its_campaign_s_file(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\noperator: ./family/recipe\ntarget: tpu7x\nsuite: tiny\nbudget: {evaluations: 1}\n")
    assert load_config(path).operator == f"{tmp_path.resolve()}/family/recipe"
    monkeypatch.chdir(tmp_path)
    assert load_config(path).operator == "./family/recipe"
    assert load_config(path, {"operator": "./other/recipe"}).operator == "./other/recipe"


def test_overrides_reach_into_sections(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    config = load_config(path, {"search.lag": 9, "budget.evaluations": 5})
    assert (config.search.lag, config.budget.evaluations) == (9, 5)
    with pytest.raises(UserError, match="name is not a section"):
        load_config(path, {"name.x": 1})


def test_from_python_keys_of_the_file_count_more_than_a_budget():
    overrides = {"budget__evaluations": 3, "search__lag": 2}
    changed = api._Tuning(None, (), api.Budget(), None, None, False, None, overrides).changes
    assert changed == {"budget.evaluations": 3, "budget.wall_seconds": None, "search.lag": 2}


def test_a_descriptor_that_nothing_has_is_named():
    def resolved(*names):
        small = {**GOOD, "operator": f"{FIXTURES}/small_gemm/good", "suite": "tiny"}
        return resolve(parse_config({**small, "search": {"descriptors": list(names)}}))

    assert resolved("block_m").config.search.descriptors == ("block_m",)
    with pytest.raises(UserError, match=r"descriptors: 'block_x' is unknown \(allowed: block_k, block_m"):
        resolved("block_x")


def test_the_page_on_campaigns_names_every_key_with_its_default():
    rows = (ROOT / "docs" / "campaign.md").read_text().splitlines()
    entries = {key: row for row in rows for key in re.findall(r"`([a-z_.]+)`", row.split("|")[1] if "|" in row else "")}
    sections = {
        "budget": BudgetConfig,
        "search": SearchConfig,
        "llm": LlmConfig,
        "workers": WorkerConfig,
        "mlflow": MlflowConfig,
    }
    keys = {name: field for name, field in CampaignConfig.model_fields.items() if name not in sections}
    for section, model in sections.items():
        keys.update({f"{section}.{name}": field for name, field in model.model_fields.items()})
    assert entries.keys() == keys.keys()
    for key, field in keys.items():
        if isinstance(field.default, int | float):
            assert f"{field.default:g}".lower() in entries[key].lower() or str(field.default).lower() in entries[key], (
                key
            )


def test_without_named_seeds_a_campaign_starts_from_those_that_are_legal_on_its_suite():
    """A recheck names none, and ``fp8_block`` takes no single row."""
    assert [start.name for start in few_rows("h200").starts] == ["pointer", "fp8_rows"]
    known = few_rows("h200").config.model_copy(update={"seeds": ("pointer", "fp8_block")})
    with pytest.raises(UserError, match=r"kernel fp8_block: the space is empty.* and M is 1, ahead is 0"):
        resolve(known)


@pytest.mark.parametrize("some", ["*rows*.yaml", pytest.param("*.yaml", marks=pytest.mark.slow)])
def test_every_packaged_campaign_finds_its_seeds_with_the_settings_its_comment_offers(some):
    paths = sorted((ROOT / "experiments/campaigns").glob(some))
    assert paths
    for path in paths:
        target = "h200" if (text := path.read_text()).count("target: cuda") else None
        for setting in ((), *re.findall(r"^# With (\w+)=(\S+?):", text, re.M)):
            config = load_config(path, dict([setting] if setting else []) | ({"target": target} if target else {}))
            assert {start.name for start in resolve(config).starts} >= set(config.seeds), (path.name, setting)


@functools.cache
def few_rows(target):
    settings = {"operator": "gemm_fp8_blockwise/gemm_nt", "suite": "few-rows"}
    return resolve(parse_config({**GOOD, **settings, "target": target}))


@pytest.mark.parametrize(
    ("target", "gpus", "processors", "asked", "count"),
    [
        ("h200", 1, 64, None, 24),
        ("h200", 2, 64, None, 48),
        ("h200", 1, 4, None, 4),
        ("h200", 1, 64, 40, 40),
        ("sm_100", 0, 64, None, 64),
    ],
)
def test_workers_are_one_a_core_and_so_many_a_gpu(monkeypatch, target, gpus, processors, asked, count):
    monkeypatch.setattr(preparation.os, "sched_getaffinity", lambda pid: set(range(processors)))
    monkeypatch.setattr(preparation.triton_toolchain, "gpu_count", lambda: gpus)
    resolved = few_rows(target)
    workers = resolved.config.workers.model_copy(update={"count": asked})
    config = resolved.config.model_copy(update={"workers": workers})
    assert preparation.pool_settings(replace(resolved, config=config)).count == count
