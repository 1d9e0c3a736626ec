"""Benchmarks' files at the command line: what is tuned, how it is called, by what it is judged."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import tune
from tilewright.evolve.intake.problems import Options, is_problem, plan
from tilewright.fitness.targets import load_target
from tilewright.workers.intake.calls.kept_values import kept_value, write_renamed

HERE, TPU = load_target("interpreter"), load_target("tpu7x")
NOTHING = Options()
MODEL = (
    "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x\n\n"
    "def get_inputs():\n    return [torch.rand(4, 8)]\n"
)


def test_a_function_is_called_as_its_references_problem_says(tmp_path):
    problem, kernel = tmp_path / "23_rows.py", tmp_path / "answer.py"
    problem.write_text(MODEL)
    kernel.write_text("class ModelNew:\n    pass\n")
    asked = Options("ModelNew", str(problem), ())
    assert is_problem(kernel, asked) and not is_problem(kernel, Options("ModelNew", str(problem), ("f32[8]",)))
    assert not is_problem(kernel, NOTHING) and is_problem(problem, NOTHING)
    found = plan(kernel, asked, HERE, tmp_path)
    assert found.request.calls == ("f32[4, 8]",) and found.request.reference == f"{problem}:Model"
    assert found.name == "answer"
    with pytest.raises(UserError, match=r"--reference: which function of .*answer.py\? Write"):
        tune.resolve_reference(str(kernel))

    with pytest.raises(UserError, match=r"no kernel to begin with\. Write a kernel, or let a language model"):
        plan(problem, NOTHING, HERE, tmp_path)
    with pytest.raises(UserError, match=r"23_rows\.py is for torch, and tpu7x is not: use --target"):
        plan(problem, NOTHING, TPU, tmp_path)


TASK = {
    "task/task.yml": "files:\n  - {name: utils.py, source: ../utils.py}\nlang: py\n"
    "benchmarks:\n  - {rows: 64, seed: 3}\n  - {rows: 32, seed: 3}\n",
    "task/reference.py": "import torch\nfrom utils import scaled\n\n"
    "def ref_kernel(data):\n    return scaled(data[0])\n\n"
    "def generate_input(rows, seed):\n    made = torch.Generator(device='cuda').manual_seed(seed)\n"
    "    return (torch.randn(rows, 16, device='cuda', generator=made), torch.arange(4, device='cuda') * 5)\n",
    "task/submission.py": "def custom_kernel(data):\n    return data[0] * 2\n",
    "utils.py": "def scaled(x):\n    return x * 2\n",
}


def test_a_folder_of_gpu_mode_gives_calls_with_values_and_a_reference(tmp_path):
    for name, text in TASK.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    request = plan(tmp_path / "task", NOTHING, HERE, tmp_path / "made").request
    assert request.calls == ("[f32[64, 16], i64[4].offsets(15, 5)]", "[f32[32, 16], i64[4].offsets(15, 5)]")
    assert request.reference == f"{tmp_path}/made/reference.py:ref_kernel" and request.made == str(tmp_path / "made")
    write_renamed(Path(request.values), tmp_path / "v.npz", ["64", "32"], ["x", "slots"])
    assert list(kept_value(str(tmp_path / "v.npz"), "32", "slots", "int64", (4,))) == [0, 5, 10, 15]
    with pytest.raises(UserError, match=r"is a folder without reference\.py, submission\.py, task\.yml"):
        plan(tmp_path / "made", NOTHING, HERE, tmp_path / "again")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("k.py", "import torch\nkernel = torch.cuda.RawKernel(1)\n", "CUDA C++: put the kernel into a .cu file"),
        ("k.py", "import tilelang\n", "TileLang: tune takes functions that launch Triton or Pallas"),
        ("k.py", "import helion\n@helion.kernel()\ndef f(x): ...\n", "Helion: name the Triton file"),
    ],
)
def test_a_file_of_another_language_is_named_as_such(tmp_path, name, text, complaint):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=re.escape(f"{name} is {complaint}")):
        tune.parse_place(f"{tmp_path / name}:f" if name.endswith(".py") else str(tmp_path / name))


OUTPUT = """
import torch
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
triton_poi_0 = async_compile.triton('triton_poi_0', '''
import triton
import triton.language as tl

@triton_heuristics.pointwise(size_hints={'x': 1024})
@triton.jit
def triton_poi_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 800
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tl.store(out_ptr0 + xindex, tl.load(in_ptr0 + xindex, xmask) * 2.0, xmask)
''', device_str='cuda')

def call(args):
    arg0_1, = args
    args.clear()
    assert_size_stride(arg0_1, (8, 100), (100, 1))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((8, 100), (100, 1), torch.float32)
        stream0 = get_raw_stream(0)
        triton_poi_0.run(arg0_1, buf0, 800, stream=stream0)
        del arg0_1
    return (buf0, )

def benchmark_compiled_module(times=10, repeat=10):
    arg0_1 = rand_strided((8, 100), (100, 1), device='cuda:0', dtype=torch.float32)
"""


def test_what_inductor_writes_is_a_plain_file_with_its_own_call(tmp_path):
    (tmp_path / "output_code.py").write_text(OUTPUT)
    found = plan(tmp_path / "output_code.py", NOTHING, HERE, tmp_path / "made")
    text = found.request.path.read_text()
    assert found.request.calls == ("float32[8, 100]",) and found.request.function == "call"
    assert "triton_poi_0[triton.cdiv(800, 64),](arg0_1, buf0, 800, XBLOCK=64)" in text
    assert "assert_size_stride(arg0_1, (8, 100), (100, 1))" in text and "get_raw_stream" not in text
    compile(text, "plain", "exec")
