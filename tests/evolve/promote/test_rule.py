"""One dispatch rule: a campaign's table and the library it is promoted into choose alike; operands tell dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.evolve.campaign import dispatch_table
from tilewright.library import dispatch_rule as rule
from tilewright.library import operands, store
from tilewright.library.dispatch_rule import Unserved

NAMES = ("M", "N", "K")
sizes = st.sampled_from([1, 3, 16, 100, 128, 384, 1024, 4096, 11008, 65536])
shapes = st.tuples(sizes, sizes, sizes)
constraints = st.lists(
    st.sampled_from(
        [
            "M % block == 0",
            "N % 128 == 0",
            "K // tile >= 1",
            "M <= 4096",
            "min(M, N) > 2",
            "1 // (M - 3) >= 0",
        ]
    ),
    max_size=3,
    unique=True,
)
kernels = st.lists(st.tuples(constraints, st.sampled_from([16, 128, 512])), min_size=1, max_size=4)


def campaign_table(made: list[Any], entries: list[Any], shares: list[float] | None = None) -> dict[str, Any]:
    def source(texts: list[str]) -> str:
        return f"CONSTRAINTS = {{{', '.join(f'{text!r}: {text!r}' for text in texts)}}}\n"

    return {
        "format": 2,
        "entries": [
            {
                "workload": {"id": f"w{n}", **dict(zip(NAMES, dims, strict=True))},
                "genome": f"g{kernel % len(made)}",
                "figure": {"share": shares[n % len(shares)]} if shares else {},
            }
            for n, (dims, kernel) in enumerate(entries)
        ],
        "genomes": {
            f"g{n}": {"source": source(texts), "params": {"tile": tile}}
            for n, (texts, tile) in enumerate(made)
        },
        "rule": {"kind": "nearest_region", "dims": list(NAMES), "reach": rule.REACH, "text": rule.TEXT},
        "constants": {"block": 128},
    }


def promoted_table(table: dict[str, Any]) -> store.Table:
    """The same table as ``dispatch.json`` of a version holds it."""
    from tilewright.evolve.space.space import read_declarations

    entry = {
        "language": "triton",
        "serves": ["cuda:9.0"],
        "toolchain": {},
        "constants": table["constants"],
        "reach": rule.REACH,
        "kernels": {
            name: {
                "file": f"{name}.py",
                "sha256": "",
                "params": genome["params"],
                "constraints": list(read_declarations(genome["source"]).constraints),
            }
            for name, genome in table["genomes"].items()
        },
        "regions": [
            {
                "workload": e["workload"]["id"],
                "dims": {name: e["workload"][name] for name in NAMES},
                "kernel": e["genome"],
                **e["figure"],
            }
            for e in table["entries"]
        ],
    }
    dispatch = {"dimensions": list(NAMES), "targets": {"h200": entry}}
    return store.table("family/recipe", "h200", dispatch, Path("nowhere"))


@settings(max_examples=150, deadline=None)
@given(
    kernels,
    st.lists(st.tuples(shapes, st.integers(0, 9)), min_size=1, max_size=8),
    shapes,
    st.none() | st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8),
)
def test_a_campaigns_table_and_the_library_choose_alike(
    made: list[Any], entries: list[Any], wanted: tuple[int, ...], shares: list[float] | None
) -> None:
    table = campaign_table(made, entries, shares)
    try:
        library = promoted_table(table).choose(wanted).kernel.name
    except store.NotServed:
        library = None
    try:
        campaign = dispatch_table.lookup(table, dict(zip(NAMES, wanted, strict=True)))
    except Unserved:
        campaign = None
    assert library == campaign


def test_tables_of_format_1_count_every_genome_as_legal() -> None:
    table = campaign_table([(["M % 128 == 0"], 16)], [((128, 128, 128), 0)])
    old = {**table, "format": 1}
    del old["constants"]
    assert dispatch_table.lookup(old, {"M": 100, "N": 128, "K": 128}) == "g0"
    with pytest.raises(Unserved):
        dispatch_table.lookup(table, {"M": 100, "N": 128, "K": 128})


# -- operands ----------------------------------------------------------------------------------------


def test_operands_are_functions_of_the_dimensions() -> None:
    from tilewright.evolve.promote.version_files import fitted_operands
    from tilewright.seeds.catalogue import load_operator

    for name in (
        "gemm_fp8_blockwise/gemm_nt",
        "gridquant/gemm_256",
        "gemm_mxfp8_out/masked6x20",
        "mx_cast/gemm_mxfp4",
    ):
        operator = load_operator(name)
        suite = next(iter(operator.suites.values()))
        workload = suite.workloads[0]
        found = fitted_operands(operator, list(workload.dims))
        assert found is not None, name
        specs = operator.inputs(workload)
        assert found.dims([spec.shape for spec in specs]) == tuple(workload.dims.values())
        named = dict(workload.dims)
        assert [o.sizes(named) for o in found.outputs] == [s.shape for s in operator.outputs(workload)]
        again = operands.read(found.data(), list(workload.dims))
        assert again == found
        shapes_off = [list(spec.shape) for spec in specs]
        shapes_off[-1][-1] += 1
        with pytest.raises(operands.NoFit):
            found.dims(shapes_off)
