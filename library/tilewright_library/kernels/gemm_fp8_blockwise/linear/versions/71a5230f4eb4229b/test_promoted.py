"""Generated when gemm_fp8_blockwise/linear was promoted: its kernels against the recipe, on the device here or interpreted.

Run with pytest, or as a program. Needs the package beside it, numpy, and torch or JAX; not tilewright.
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[5]))
checks = importlib.import_module(f"{HERE.parents[4].name}.checks")
store = importlib.import_module(f"{HERE.parents[4].name}.store")

CASES = [
    ("cuda-NVIDIA_H100_80GB_HBM3-90-132-232448-52428800", {"M": 1, "N": 320, "K": 640}, "golden"),
]


def run(target, dims, kind):
    try:
        return checks.check(HERE, target, dims, kind)
    except store.UnsoundLibrary:
        raise
    except store.NotServed as error:
        return str(error)


def pytest_generate_tests(metafunc):
    metafunc.parametrize(("target", "dims", "kind"), CASES)


def test_promoted_kernel_keeps_its_recipe(target, dims, kind):
    found = run(target, dims, kind)
    if isinstance(found, str):
        import pytest

        pytest.skip(found)


if __name__ == "__main__":
    for case in CASES:
        answer = run(*case)
        print("skipped" if isinstance(answer, str) else "passed", *case, answer)
