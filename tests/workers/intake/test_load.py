"""A user's file imported where what stands around its functions is not installed."""

from __future__ import annotations

from types import ModuleType

import pytest

from tilewright.workers.intake.source.literals import Literals
from tilewright.workers.intake.source.load import MissingName, PackageLoader, load
from tilewright.workers.intake.source.traced_numbers import code_of

FILE = """
from not_here.version import Version
from not_here.kernels import tl, triton, exp
from not_here.registry import custom_op, logger
import torch

if Version("3.7") >= Version("3.0"):
    newer = 3
else:
    newer = 1

@custom_op("space::name", mutates_args=())
def wrapper(n):
    BLOCK = 64
    logger.info("called")
    return launched[(triton.cdiv(n, 64),)](1.0 / n, BLOCK=BLOCK)

@torch.library.triton_op("space::other", mutates_args={})
def other(x):
    return x

@other.register_fake
def _(x):
    return x
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, PackageLoader]:
    import sys

    import torch

    finders, folders = list(sys.meta_path), list(sys.path)
    kept = torch.library.custom_op, torch.library.triton_op, torch.library.wrap_triton
    path = tmp_path_factory.mktemp("code") / "single.py"
    path.write_text(FILE)
    try:
        yield load(path, "wrapper", Literals())
    finally:
        torch.library.custom_op, torch.library.triton_op, torch.library.wrap_triton = kept
        sys.meta_path[:], sys.path[:] = finders, folders


def test_a_branch_whose_test_asks_for_what_is_not_here_is_taken(loaded) -> None:
    module, loader = loaded
    assert int(module.newer) == 3
    assert any("first branch is taken" in said for said in loader.missing)


def test_what_everybody_names_so_is_the_real_thing(loaded) -> None:
    import triton

    module, _ = loaded
    assert module.triton is triton and module.tl is triton.language
    assert isinstance(module.exp, MissingName)


def test_decorators_and_operations_leave_functions_as_they_are(loaded) -> None:
    module, _ = loaded
    assert module.other(7) == 7 and module.wrapper.__name__ == "wrapper"


def test_the_grid_of_a_launch_and_a_float_before_a_size_keep_where_they_come_from(loaded) -> None:
    from tilewright.workers.intake.source.traced_numbers import traced

    module, _ = loaded
    seen = {}

    class Launched:
        def __getitem__(self, grid):
            seen["grid"] = grid
            return lambda share, BLOCK: seen.update(share=share, block=BLOCK)

    module.launched = Launched()
    module.wrapper(traced(130, "x.shape[0]", frozenset(["shape"])))
    assert code_of(seen["share"]) == "(1.0 / x.shape[0])"
    assert len(seen["grid"][0].atoms - {"shape"}) == 1 and code_of(seen["block"]) not in code_of(
        seen["grid"][0]
    )
