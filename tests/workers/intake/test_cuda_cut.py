"""The part of a layer between torch's operations, beside the same part of its reference."""

import contextlib
import importlib.util

import pytest

pytest.importorskip("torch")
pytest.importorskip("tree_sitter_cuda")
pytest.importorskip("cuda.bindings.nvrtc")

import torch
from torch.utils.flop_counter import FlopCounterMode

from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.cuda.cut import cut
from tilewright.workers.intake.cuda.host_function import HostFunction

ANSWER = '''
import torch
from torch.utils.cpp_extension import load_inline
SOURCE = """
__global__ void act(const float* x, const float* b, float* y, int n, int plane, int c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i] + b[(i / plane) % c], 0.f);
}
torch::Tensor run(torch::Tensor x, torch::Tensor b) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    act<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), n,
                                  x.size(2) * x.size(3), x.size(1));
    return y;
}
"""
own = load_inline(name="k", cpp_sources="", cuda_sources=SOURCE, functions=["run"])
LAYER
class ModelNew(Layer):
    def forward(self, x):
        x = own.run(self.conv(x).contiguous(), self.bias)
        return torch.nn.functional.max_pool2d(x, 2)
'''
LAYER = """
class Layer(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, channels, 3, padding=1)
        self.bias = torch.nn.Parameter(torch.randn(channels, 1, 1))
"""
PROBLEM = f"""
import torch
{LAYER}
class Model(Layer):
    def forward(self, x):
        x = torch.relu(self.conv(x) + self.bias)
        return torch.nn.MaxPool2d(2)(x)
def get_inputs(): return [torch.randn(4, 3, 8, 10)]
def get_init_inputs(): return [6]
"""


def request(folder, answer=ANSWER, problem=PROBLEM):
    (folder / "answer.py").write_text(answer.replace("LAYER", LAYER))
    (folder / "problem.py").write_text(problem)
    part = {"multiprocessors": 132, "smem_bytes": 232448, "capability": 90}
    place = {"path": f"{folder}/answer.py", "function": "ModelNew", "reference": f"{folder}/problem.py:Model"}
    return {**place, "calls": ["f32[4, 3, 8, 10]"], "part": part}


def part(folder, asked):
    """The part's file, and its function as it is read in."""
    made = cut(asked, Refusal("torch computes"))
    path = folder / "part.py"
    path.write_text(made["text"])
    place = {"path": str(path), "function": made["function"], "reference": f"{path}:reference"}
    return path, HostFunction({**asked, **place, "calls": [made["call"]]})


def test_torch_before_and_after_is_left_out_on_both_sides(tmp_path):
    path, alone = part(tmp_path, request(tmp_path))
    assert alone.name == "modelnew_kernels" and alone.texts == ["f32[4, 6, 8, 10], f32[6, 1, 1]"]
    assert [o.name for o in alone.every] == ["conv2d1", "bias", "result0"] and not alone.left_out
    spec = importlib.util.spec_from_file_location("part", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, bias = torch.randn(2, 6, 4, 4, dtype=torch.float64), torch.randn(6, 1, 1, dtype=torch.float64)
    assert torch.equal(module.reference(x, bias), torch.relu(x + bias))  # at other sizes than the call's, too
    meta = [torch.empty(t.shape, device="meta") for t in (x, bias)]
    with FlopCounterMode(display=False) as counter:
        module.reference(*meta)
    assert counter.get_total_flops() == 0  # the convolution is nobody's work


def test_a_launch_by_sizes_of_what_is_left_out_keeps_the_sizes(tmp_path):
    place = "own.run(self.conv(x).contiguous(), self.bias)"
    answer = ANSWER.replace(place, "own.run(self.conv(x), self.bias, x.shape[0])").replace("b)", "b, int rows)", 1)
    _, alone = part(tmp_path, request(tmp_path, answer.replace("x.numel()", "rows * x.size(1) * 80")))
    sizes = [tuple(f"D{n}" for n in range(4)) if len(o.shape) == 4 else ("D1", 1, 1) for o in alone.every]
    named = [o.__class__(o.name, o.dtype, size) for o, size in zip(alone.every, sizes, strict=True)]
    text = alone.launch(named, [{f"D{n}": size for n, size in enumerate((4, 6, 8, 10))}])
    assert alone.sized and "(4 * conv2d1.shape[1] * 80" in text


@pytest.mark.parametrize(
    ("answer", "problem", "operands"),
    [
        ("own.run(self.conv(x), self.bias.contiguous().view(-1))", "(x)", ["conv2d1", "bias"]),
        ("own.run(self.conv(x), self.bias).view(4, -1).view(4, 6, 8, 10)", "(x)", ["conv2d1", "bias"]),
        ("own.run(self.conv(x), self.bias).mul_(3).add_(1)", "(x * 3 + 1)", ["conv2d1", "bias"]),
        (
            "own.run(torch.sin(own.run(self.conv(x), self.bias)), self.bias)",
            "(torch.relu(torch.sin(x) + self.bias))",
            ["conv2d1", "bias", "sin2"],
        ),
    ],
)
def test_the_same_operations_in_other_words_are_the_same(tmp_path, answer, problem, operands):
    answer = ANSWER.replace("own.run(self.conv(x).contiguous(), self.bias)", answer)
    _, alone = part(tmp_path, request(tmp_path, answer, PROBLEM.replace("2)(x)", f"2){problem}")))
    assert [o.name for o in alone.every if not o.name.startswith("result")] == operands


@pytest.mark.parametrize(("body", "reason"), [("x[i] = ", ""), ("b[0] = x[i] = ", "changes bias")])
def test_a_kernel_changes_a_copy_of_what_torch_made_but_no_weight(tmp_path, body, reason):
    answer = ANSWER.replace("const float* x, const float* b, float* y", "float* x, float* b")
    for old, new in (("y[i] = ", body), (" y.data_ptr<float>(),", ""), ("return y", "return x")):
        answer = answer.replace(old, new)
    _, alone = part(tmp_path, request(tmp_path, answer))
    sizes = [tuple(f"D{n}" for n in range(4)) if len(o.shape) == 4 else ("D1", 1, 1) for o in alone.every]
    named = [o.__class__(o.name, o.dtype, size) for o, size in zip(alone.every, sizes, strict=True)]
    with pytest.raises(Refusal, match=reason) if reason else contextlib.nullcontext():
        text = alone.launch(named, [{f"D{n}": size for n, size in enumerate((4, 6, 8, 10))}])
        assert '"arguments": ("result0", "conv2d1", ' in text and "void copied(" in alone.code.text


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("max_pool2d(x, 2)", "MaxPool2d(2, stride=1)"),
        ("max_pool2d(x, 2)", "AvgPool2d(2)"),
        ("self.conv(x * 2)", "MaxPool2d(2)"),
        ("self.conv(x.add_(1))", "MaxPool2d(2)"),
        ("torch.nn.functional.dropout(self.conv(x))", "MaxPool2d(2)"),
        ("own.run(self.conv(x), self.bias).exp()", "MaxPool2d(2)"),
        ("torch.sin(own.run(x, x))", "MaxPool2d(2)"),
        ("own.run(self.conv(x).relu_(), self.bias)", "MaxPool2d(2)"),
    ],
)
def test_other_operations_than_the_reference_s_are_refused(tmp_path, answer, problem):
    place = "max_pool2d(x, 2)" if "max_pool" in answer else "self.conv(x).contiguous()"
    place = "own.run(self.conv(x).contiguous(), self.bias)" if "own.run" in answer else place
    asked = request(tmp_path, ANSWER.replace(place, answer), PROBLEM.replace("MaxPool2d(2)", problem))
    with pytest.raises(Refusal, match="torch computes"):
        cut(asked, Refusal("torch computes"))
