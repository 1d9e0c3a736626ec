"""Functions around kernels in CUDA C++: what is read of their texts, which numbers are parameters, what is refused."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("tree_sitter_cuda")
pytest.importorskip("cuda.bindings.nvrtc")

from tilewright.library import cuda_record
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.cuda.device_code import DeviceCode
from tilewright.workers.intake.cuda.host_function import HostFunction
from tilewright.workers.intake.cuda.knobs import found_knobs, scheduled
from tilewright.workers.intake.cuda.launch_text import launched
from tilewright.workers.intake.cuda.program import CHECKED_ELEMENTS, Intake

KERNEL = """#include <cuda_runtime.h>
#include <cstdint>
#define BLOCK 128
constexpr int ITEMS = 4;
static const float HALF = 0.5f;
template <int BY>
__global__ void __launch_bounds__(BLOCK, 2) scaled(const float *__restrict__ x, float *y, float factor, int64_t n) {
    int at = blockIdx.x * BLOCK * ITEMS + threadIdx.x;
#pragma unroll 2
    for (int k = 0; k < ITEMS; k++, at += BLOCK)
        if (at < n) y[at] = x[at] * factor * HALF * BY + (x[at] > FLT_MAX);
}
"""
LAUNCHER = """extern "C" void run(const float *x, float *y, float factor, int64_t n) {
    scaled<2><<<(n + BLOCK * ITEMS - 1) / (BLOCK * ITEMS), BLOCK>>>(x, y, factor, n);
}
"""
CALL = "f32[96, 200], f32[96, 200], 3.0, 19200"
TENSORS = """torch::Tensor run(torch::Tensor x, double factor) {
    TORCH_CHECK(x.is_cuda(), "on a GPU");
    auto y = torch::empty_like(x);
    const int threads = 256;
    int64_t n = x.numel();
    BODY
    return y;
}
"""
PLAIN = "scaled<2><<<n / 512, threads>>>(x.data_ptr<float>(), y.data_ptr<float>(), factor, n);"
REFERENCE = "def ref(x, factor, n=0):\n    return x * factor\n"


def request(folder, code=KERNEL + LAUNCHER, call=CALL, name="run"):
    (folder / "k.cu").write_text(code)
    (folder / "ref.py").write_text(REFERENCE)
    part = {"multiprocessors": 132, "smem_bytes": 232448, "capability": 90}
    asked = {"path": f"{folder}/k.cu", "function": name, "reference": f"{folder}/ref.py:ref", "calls": [call]}
    return {**asked, "part": part}


def with_tensors(folder, body=PLAIN, kernel=KERNEL, call="f32[96, 200], 3.0"):
    return request(folder, kernel + TENSORS.replace("BODY", body), call)


def settled(function):
    """The launch at the call's own sizes, each axis by a name of its own."""
    named = [o.__class__(o.name, o.dtype, tuple(f"D{n}" for n in range(len(o.shape)))) for o in function.every]
    dims = {f"D{n}": size[0] for n, size in enumerate(function.every[0].shape)}
    return function.launch(named, [dims]), named, dims


def test_a_launcher_with_pointers_becomes_a_module_that_compiles(tmp_path):
    answer = Intake(request(tmp_path)).answer()
    assert answer["refusals"] == [] and answer["call"] == "x, 3.0, 19200"
    assert answer["calls"] == ["f32[96, 200], 3.0, 19200"] and answer["parameters"] == ["x", "factor", "n"]
    assert [row[0] for row in (*answer["operands"], *answer["results"])] == ["x", "y"]
    assert set(answer["space"]) == {"BLOCK", "ITEMS", "RESIDENT_0", "UNROLL_1", "RESTRICT", "TURNS"}
    assert answer["space"]["BLOCK"][0] == 32 and answer["defaults"]["BLOCK"] == 128
    code = answer["source"].partition("CUDA = ")[2]
    assert "#define HALF (0.5f)" in code and not any(word in code for word in ("run", "#include", "int ITEMS"))
    scope = {}
    exec(answer["source"], scope)
    inputs, outputs = ([cuda_record.Tensor(name, "float32", (64, 50))] for name in "xy")
    (step,) = cuda_record.record(scope, {**answer["defaults"], "ITEMS": 2, "TURNS": 4}, inputs, outputs, 90).steps
    assert step.grid == (4, 1, 1) and step.warps == 4 and [a.bits for a in step.arguments[3:]] == [3200, 13]


HOST = """
#define CDIV(a, b) (((a) + (b) - 1) / (b))
#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda(), "no")
template <typename T> __global__ void first(const T *x, T *y, int n, float f) { if (threadIdx.x < n) y[0] = x[0] * f; }
template <typename T, int N> __global__ void second(const T *x, const T *b, float *y) { y[0] = x[0] + N; }
static int blocks_of(int n, int by) { return n / by; }
std::vector<torch::Tensor> run(torch::Tensor x, c10::optional<torch::Tensor> bias, int dim = 1) {
    CHECK_INPUT(x)
    TORCH_CHECK(x.device().is_cuda() && x.scalar_type() == at::ScalarType::Float, "floats on a GPU");
    float share = 0;
    int rounds = 1;
    { int rounds = 5; rounds += 1; share = rounds; }
    TORCH_CHECK(rounds++ == 1 && ++rounds == 3 && share / 4 == 1.5, "as C++ counts");
    const std::tuple<int, int> pair = {3, 4};
    const auto [three, four] = pair;
    TORCH_CHECK(four - three == 1, "bound by structure");
    dim3 kept(5), changed = kept;
    changed.x = 6;
    TORCH_CHECK(kept.x == 5, "a copy");
    const int rows = x.size(0), columns = x.size(-1);
    auto options = torch::TensorOptions().dtype(torch::kFloat32).device(x.device());
    auto sum = torch::zeros({rows, columns / 2}, options);
    std::vector<int64_t> shape = x.sizes().vec();
    shape[dim] = 1;
    auto part = torch::empty(shape, x.options());
    dim3 block = dim3{32, std::vector<int64_t>{4, 5}[0]};
    dim3 grid(CDIV(columns, block.x), blocks_of(rows, 4));
    int shared = 0;
    if (std::is_same<scalar_of_file, double>::value || x[1].size(0) != columns) shared = 1 / 0;
    for (int k = 0; k < 3; ++k) shared += 4 * sizeof(scalar_of_file);
    if (columns > 8 && !bias.has_value()) grid.y *= 2; else grid.z = 7;
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "run", ([&] {
        first<scalar_t><<<grid, block, shared, at::cuda::getCurrentCUDAStream()>>>(
            x.data_ptr<scalar_t>(), part.data_ptr<scalar_t>(), (int)(0.75 * columns), 1.0f / columns);
    }));
    auto none = torch::empty({0}, x.options());
    auto first_of = x.data_ptr<float>() + columns;
    second<float, 4><<<rows > 3 ? 2 : 1, 64>>>(first_of, none.data_ptr<float>(), sum.data_ptr<float>());
    C10_CUDA_CHECK(cudaGetLastError());
    return {sum, part.view({-1})};
}
""".replace("scalar_of_file", "float")


def test_host_code_is_followed(tmp_path):
    function = HostFunction(request(tmp_path, HOST, "f32[8, 100], None"))
    text, named, dims = settled(function)
    assert [tuple(o.shape) for o in function.every] == [((8,), (100,)), ((8,), (50,)), ((8,),)]
    zero, one, two = launched(text, function.own(named), dims, function.knobs)["steps"]
    assert zero == {"zero": "result0"} and function.outputs == ("result0", "result1")
    assert one["kernel"] == "first<float>" and (one["grid"], one["block"]) == ((4, 4, 1), (32, 4, 1))
    assert one["shared"] == 48 and one["arguments"][:3] == (("x", 0), ("result1", 0), {"i32": 75})
    assert one["arguments"][3]["fp32"] == pytest.approx(0.01)
    assert two["kernel"] == "second<float, 4>" and two["grid"] == (2, 1, 1)
    assert two["arguments"] == (("x", 400), {"u64": 0}, ("result0", 0))
    other = launched(text, function.own(named), {"D0": 16, "D1": 64}, function.knobs)["steps"]
    assert other[1]["grid"] == (2, 8, 1) and other[2]["arguments"][0] == ("x", 256)
    assert function.unlike_at({"D0": 16, "D1": 64}) == ""
    assert "launches otherwise" in function.unlike_at({"D0": 2, "D1": 64})  # one block in place of two
    assert "launches otherwise" in function.unlike_at({"D0": 16, "D1": 4})


@pytest.mark.parametrize(
    ("code", "grid", "name", "why"),
    [
        (KERNEL, "", "BLOCK", ""),
        (KERNEL.replace("if (at < n)", "if (at < n && k != ITEMS)"), "", "ITEMS", "selects a branch by equality"),
        (KERNEL.replace("static", "const int B = ITEMS * 2;\nstatic"), "", "ITEMS", "computed from it"),
        (KERNEL, "n / 512 * ITEMS, BLOCK", "ITEMS", "part of the meaning"),
        (KERNEL, "(n + threads - 1) / threads, threads", "THREADS", "do not ask for blockDim"),
        (KERNEL, "96, threads", "ITEMS", "the grid does not follow it"),
        (KERNEL.replace("at < n", "at < n && k < 256"), "n / threads, threads", "THREADS", "same"),
        (KERNEL.replace("at < n", "at < n + blockDim.x"), "96, threads", "THREADS", "the grid does not follow it"),
        (KERNEL, "threads > 300 ? 5 : 6, threads", "THREADS", "absent"),
        (KERNEL.replace("#pragma unroll 2", ""), "", "UNROLL_L0", ""),
        (KERNEL.replace("#pragma unroll 2", "").replace("k < ITEMS", "k < 4"), "", "UNROLL_L0", "absent"),
    ],
)
def test_numbers_with_a_meaning_are_no_parameters(tmp_path, code, grid, name, why):
    grid = grid or "(n + BLOCK * ITEMS - 1) / (BLOCK * ITEMS), BLOCK"
    kernel = HostFunction(with_tensors(tmp_path, PLAIN.replace("n / 512, threads", grid), code))
    text, named, dims = settled(kernel)
    _, certain = scheduled(kernel.code, kernel.knobs)
    knobs = {**kernel.knobs, **certain}
    launcher = lambda changed: launched(text, kernel.own(named), dims, {**knobs, **changed})  # noqa: E731
    space, fixed = found_knobs(knobs, certain, kernel.code, launcher, lambda *_: True)
    assert why in next((row["why"] for row in fixed if row["name"] == name), "absent")
    assert (name in space) == (not why)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("helper(x);", "calls helper, which is not followed"),
        ("if (x.sum().item<float>() > 0) return x;", "computed from a tensor's values"),
        ("int m = n / 3 - 7000; int k = m / 2;" + PLAIN, "divides whole numbers that are not positive"),
        ("int m = n * 1000000;" + PLAIN, "holds 19200000000 as int"),
        ("float m = n + 16777217;" + PLAIN, "rounds a whole number"),
        ('TORCH_CHECK(x.size(0) == 95, "odd");' + PLAIN, "refuses the call"),
        ("CHECK(hidden(x));" + PLAIN, "calls hidden, which is not followed"),
        ("int m = ~threads;" + PLAIN, "is not followed: ~threads"),
        ("m = 3;" + PLAIN, "is not followed: m"),
        ("goto end;", "is not followed: goto end;"),
        (PLAIN.replace("factor, n", "factor"), "launches scaled with arguments that its text does not take"),
        (PLAIN.replace("y.data_ptr<float>()", "n"), "something else than float as y"),
        (PLAIN.replace("y.data_ptr<float>()", "y.data_ptr<double>()"), "takes a tensor of float32 as double"),
        (PLAIN.replace("scaled<2>", "scaled"), "leaves the template BY open"),
        (PLAIN.replace("threads>>>", "warps>>>"), "names warps, which it does not define"),
        (PLAIN + "y = torch::cumsum(y, 1);", "torch computes"),
        (PLAIN.replace("y.data", "x.data"), "a kernel changes x, an argument of the call"),
        (PLAIN + "y = x;", "a result is an argument of the call"),
        ("for (int k = 0; k < 1000000; ++k) n += 1;" + PLAIN, "takes too long"),
        ("return y;", "the call launches no CUDA kernel"),
    ],
)
def test_host_code_that_is_not_followed_is_refused(tmp_path, body, reason):
    with pytest.raises(Refusal, match=reason):
        settled(HostFunction(with_tensors(tmp_path, body)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "absent"}, "defines no host function absent, but run, scaled"),
        ({"name": "scaled"}, "scaled is a kernel, and how it is launched is not said in C"),
        ({"call": "f32[96, 200], 3.0"}, "run is called without factor"),
        ({"call": "bf16[96, 200], f32[96, 200], 3.0, 19200"}, "takes a tensor of bfloat16 as float"),
        ({"code": KERNEL.replace("at = b", "at = none + b") + LAUNCHER}, 'line 8: identifier "none" is undefined'),
    ],
)
def test_what_cannot_be_launched_is_refused(tmp_path, changes, reason):
    with pytest.raises(Refusal, match=reason):
        Intake(request(tmp_path, **changes)).answer()


ANSWER = '''import torch
from torch import nn
from torch.utils.cpp_extension import load_inline
made = load_inline(name="m", cpp_sources="""torch::Tensor run(torch::Tensor x, torch::Tensor w);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &run); }""", cuda_sources=r"""
__global__ void scaled(const float *x, const float *w, float *y, int n) { if (threadIdx.x < n) y[0] = x[0] * w[0]; }
torch::Tensor run(torch::Tensor x, torch::Tensor w) {
    auto y = torch::empty_like(x);
    scaled<<<x.size(0), 128>>>(x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    HOST return y;
}""")
class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.own, self.other, self.unused = nn.Parameter(torch.rand(n)), nn.Linear(n, n), nn.Linear(n, 2)
    def forward(self, x):
        try:
            return made.forward(x, self.own)
        except Exception:
            return x * self.own
'''
PROBLEM = """import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.first, self.weight = nn.Linear(3, n, bias=False), nn.Parameter(torch.rand(n))
    def forward(self, x):
        return x * self.weight
def get_init_inputs():
    return [64]
"""


def answer_of(folder, host=""):
    (folder / "answer.py").write_text(ANSWER.replace("HOST", host))
    (folder / "problem.py").write_text(PROBLEM)
    asked = request(folder, call="f32[32, 64]", name="ModelNew")
    return {**asked, "path": f"{folder}/answer.py", "reference": f"{folder}/problem.py:Model"}


def test_weights_become_arguments_by_the_reference_s_names(tmp_path):
    function = HostFunction(answer_of(tmp_path))
    assert function.parameters == ["x", "weight"] and function.texts == ["f32[32, 64], weight=f32[64]"]
    assert [o.name for o in function.every] == ["x", "weight", "result0"]
    import numpy as np

    from tilewright.workers.intake.judge.reference import run_reference

    inputs = {"x": np.ones((2, 64), np.float32), "weight": np.arange(64, dtype=np.float32)}
    (found,) = run_reference(function.site.judge, "x, weight=weight", inputs, "float64")
    assert (found == np.arange(64)).all()


def test_a_file_that_falls_back_to_torch_is_refused(tmp_path):
    with pytest.raises(Refusal, match="calls unknown, which is not followed"):
        HostFunction(answer_of(tmp_path, "unknown();"))


@pytest.mark.parametrize(
    ("added", "within", "reason"),
    [
        ("__device__ int calls;", "calls++;", "global memory"),
        ("", "static int calls; calls++;", "global memory"),
        ("__constant__ float table[2] = {1.f, 2.f};", "y[0] = table[n & 1];", "constant memory"),
        ("", "int *kept = (int *)malloc(64); kept[0] = n; y[0] = kept[n & 3];", "malloc"),
        ("extern __device__ float answer(float);", "y[0] = answer(x[0]);", "answer"),
        ("__device__ int counted(int n) { return n + 1; }", "y[0] = counted(n);", ""),
        ("", "const float table[2] = {1.f, 2.f}; y[0] = table[n & 1];", ""),
    ],
)
def test_state_and_foreign_code_in_a_file_are_refused_and_their_honest_twins_are_not(tmp_path, added, within, reason):
    code = f"{added}\n{KERNEL.replace('#pragma', within + chr(10) + '#pragma')}{LAUNCHER}"
    intake = Intake(request(tmp_path, code))
    device, certain = scheduled(intake._source.code, intake._source.knobs)
    knobs = {**intake._source.knobs, **certain}
    if reason:
        with pytest.raises(Refusal, match=reason):
            intake.compiled(device, {}, knobs)
    else:
        assert "def launch" in intake.compiled(device, {}, knobs)


def test_torch_between_kernels_becomes_kernels_of_ours(tmp_path):
    body = PLAIN + "y = y.sub(y.mean(1, true)).clamp_min(0.5) + torch::sum(y);"
    intake = Intake(with_tensors(tmp_path, body))
    source, dims = intake._source, {"M": 8, "N": 64}
    steps = launched(intake.text, intake.site.operands, dims, source.knobs)["steps"]
    grids = [(step["kernel"].rstrip("0123456789"), step["grid"][0]) for step in steps[1:]]
    assert grids == [("torch_mean", 8), ("torch_sub", 2), ("torch_clamp_min", 2), ("torch_sum", 1), ("torch_add", 2)]
    mean, sub = (step["arguments"] for step in steps[1:3])
    assert mean[2:] == ({"i64": 64}, {"i64": 1}) and sub[3:] == (*({"i64": n} for n in (8, 64, 64, 1, 1)),)
    assert "__global__ void torch_sum3(" in intake.compiled(source.code.text, {}, source.knobs)


def test_sizes_that_a_launch_says_keep_their_value(tmp_path):
    intake = Intake(with_tensors(tmp_path, PLAIN.replace("factor, n)", "factor, 200)")))
    assert {shape.dims["N"] for shape in intake.shapes()} == {200}


def test_checked_shapes_have_few_elements_whatever_their_rank(tmp_path):
    body = PLAIN.replace("n / 512", "(n + 511) / 512")
    intake = Intake(with_tensors(tmp_path, body, call="f32[16, 64, 32, 64, 64], 3.0"))
    sizes = [shape.inputs["x"].size for shape in intake.shapes()]
    assert len(sizes) == 2 and all(1000 < size <= CHECKED_ELEMENTS for size in sizes)


DIRECT = """import torch
from torch.utils.cpp_extension import load_inline
made = load_inline(name="m", cpp_sources="", functions=["scaled"], cuda_sources='''
extern "C" __global__ void scaled(const float *x, float *y, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) y[at] = x[at] * 2.f;
}''')
def run(x):
    y = torch.empty_like(x)
    n = x.numel()
    made.scaled(GIVEN)
    return y
"""


SIZES = "grid=((n + 255) // 256, 1, 1), block=(256,), shared_mem=8"


@pytest.mark.parametrize(
    "given",
    [f"x, y, n, {SIZES}", f"args=[x.data_ptr(), y.data_ptr(), n], {SIZES}", "(n + 255) // 256, (256, 1), 8, x, y, n"],
)
def test_a_kernel_that_python_launches_by_its_grid_is_launched_so(tmp_path, given):
    asked = request(tmp_path, call="f32[96, 200]")
    (tmp_path / "direct.py").write_text(DIRECT.replace("GIVEN", given))
    function = HostFunction({**asked, "path": f"{tmp_path}/direct.py"})
    text, named, dims = settled(function)
    (step,) = launched(text, function.own(named), {**dims, "D0": 50}, function.knobs)["steps"]
    assert (step["grid"], step["block"], step["shared"]) == ((40, 1, 1), (256, 1, 1), 8)
    assert step["arguments"] == (("x", 0), ("result0", 0), {"i32": 10000})
    assert "torch compiles no such extension" in function.left_out[0]


def test_what_a_kernel_adds_to_is_zeroed_and_headers_are_kept(tmp_path):
    added = KERNEL.replace("y[at] = ", "y[at] += ") + LAUNCHER
    assert '{"zero": "y"}' in settled(HostFunction(request(tmp_path, added)))[0]
    code = DeviceCode(
        "#include <cuda_fp16.h>\n#include <torch/extension.h>\n#include <cub/cub.cuh>\nusing namespace std;\n"
        'extern "C" __global__ void k(const __half *x, float *s) { atomicAdd(&s[0], __half2float(x[0])); }\n'
        "torch::Tensor f(torch::Tensor x) { k<<<1, 1>>>(nullptr, nullptr); return x; }\n"
    )
    assert code.headers and code.text.startswith("#include <cuda_fp16.h>")
    assert "torch" not in code.text and "cub" not in code.text
    assert [(p.kind, p.const) for p in code.kernels["k"].parameters] == [("__half", True), ("float", False)]
