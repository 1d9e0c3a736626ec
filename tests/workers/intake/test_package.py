"""A package whose kernels stand under decorators of its own, and which sets itself up while it is imported."""

import subprocess
import sys

import pytest

from tilewright.workers.intake.source.load import load
from tilewright.workers.intake.triton.kernel_text import Kernels, definition

triton = pytest.importorskip("triton")

FILES = {
    "__init__.py": "raise RuntimeError('needs a device')\n",
    "setup.py": "VENDOR = None\n\ndef find():\n    global VENDOR\n    VENDOR = 'nvidia'\n\nfind()\n"
    "try:\n    import this\n    HEAVY = True\nexcept ImportError:\n    HEAVY = False\n"
    "try:\n    import zipapp\nexcept ImportError:\n    pass\n\ndef needs():\n    return zipapp.__name__\n",
    "launch.py": """
import triton

class Entry(triton.KernelInterface):
    def __init__(self, fn):
        self.fn = fn

    def run(self, *args, **kwargs):
        raise RuntimeError("keeps compiled kernels of its own")

class Tuner(triton.runtime.Autotuner):
    def run(self, *args, **kwargs):
        raise RuntimeError("asks a table")

def tuner(configs):
    return lambda fn: Tuner(fn, fn.arg_names, configs, [], None, None)

def tables(configs, strategy):
    raise AttributeError("wants the compiled kind")
""",
    "ops.py": """
import triton
import triton.language as tl
from cache_of_kernels.launch import Entry, tables, tuner
from cache_of_kernels.setup import HEAVY, VENDOR, needs
from cache_of_kernels.built import prefixed
import torch

@Entry
@triton.jit
def kept(x, N: tl.constexpr):
    tl.store(x, N)

@Entry
@tuner([triton.Config({"N": 16})])
@triton.jit
def tuned(x, N: tl.constexpr):
    tl.store(x, N)

@tables(configs=[triton.Config({"N": 32})], strategy="align32")
@triton.jit
def tabled(x, N: tl.constexpr):
    tl.store(x, N)

@torch.library.custom_op(prefixed("wrapper"), mutates_args={"x"})
def wrapper(x):
    kept[(1,)](x, N=3 if VENDOR else 1)

wrapper(None)
""",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    finders, folders = list(sys.meta_path), list(sys.path)
    root = tmp_path_factory.mktemp("code") / "cache_of_kernels"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    try:
        yield load(root / "ops.py", "wrapper", traced=False)[0]
    finally:
        sys.meta_path[:], sys.path[:] = finders, folders
        for name in [name for name in sys.modules if name.startswith("cache_of_kernels")]:
            del sys.modules[name]


@pytest.mark.parametrize("name", ["kept", "tuned", "tabled"])
def test_a_kernel_is_found_under_decorators_that_launch_it_in_their_own_way(package, name):
    found = getattr(package, name)
    assert type(found).__module__.startswith("triton.runtime") or isinstance(found, triton.runtime.Autotuner)


def test_a_tuner_that_cannot_be_had_leaves_its_configurations(package):
    assert [config.kwargs for config in package.tabled.configs] == [{"N": 32}]
    assert definition(package.tabled.base_fn)[0].name == "tabled"


def test_what_a_package_does_to_set_itself_up_is_done_and_a_benchmark_is_not(package):
    assert package.wrapper.__name__ == "wrapper"  # its decorator is given what a build makes
    assert package.VENDOR == "nvidia"  # and wrapper(None), which would fail, was not run
    assert not package.HEAVY, "what is optional may take seconds to import"
    assert package.needs() == "zipapp"


TWICE = """
import torch
from tilewright.workers.intake.source.torch_library import register_nothing
for _ in range(2):
    register_nothing()
import torch._inductor.inductor_prims
print(torch.ops.prims.inductor_seed.default._schema)
"""


def test_a_name_that_is_not_there_is_refused_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    head = "import triton\nimport triton.language as tl\nfrom nobody_has_this import twice\n"
    (tmp_path / "mine.py").write_text(f"{head}\n@triton.jit\ndef own(x):\n    tl.store(x, twice(tl.load(x)))\n")
    kernels = Kernels()
    kernels.add(load(tmp_path / "mine.py", None)[0].own)
    assert [why for _, why in kernels.refusals] == [
        "twice is not there: ModuleNotFoundError: No module named 'nobody_has_this'"
    ]


@pytest.mark.slow
def test_torch_registers_its_own_operations_after_several_files_were_read():
    made = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True)
    assert made.stdout.startswith("prims::inductor_seed"), made.stderr
