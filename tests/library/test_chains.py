"""The layer's chains of plans, with plans that compute in this process's memory: every byte where it belongs."""

import pytest

torch = pytest.importorskip("torch")

from testkit.library.memory_plans import MemoryLauncher  # noqa: E402
from tilewright.library import (  # noqa: E402
    store,
    torch_layer,
    torch_operators,
    torch_record,
)
from tilewright.library.plans.format import Tensor  # noqa: E402
from tilewright.library.torch_layer import Layer  # noqa: E402

M, N, K = 256, 384, 128


@pytest.fixture
def launcher(monkeypatch):
    made = MemoryLauncher()
    monkeypatch.setattr(torch_layer, "LAUNCHER", made)
    held: dict[int, torch.Tensor] = {}

    def raw_alloc(size, stream):
        assert stream == 77
        memory = torch.empty(size, dtype=torch.uint8)
        return held.setdefault(memory.data_ptr(), memory).data_ptr()

    functions = {
        "_cuda_getCurrentRawStream": lambda index: 77,
        "_cuda_getDevice": lambda: 0,
        "_cuda_cudaCachingAllocator_raw_alloc": raw_alloc,
        "_cuda_cudaCachingAllocator_raw_delete": held.__delitem__,
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    yield made
    assert not held, "every workspace went back"


def operands(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*s, generator=generator).bfloat16() for s in ((M, K), (N, K), (M, N))]


def inferred(layer, chain, x, w):
    return layer.infer_at(chain, x.data_ptr(), w.data_ptr(), (len(x), N))


def by_operators(x, w, dy):
    y, kept_x, kept_w = torch_operators.linear(x, w)
    dx, dw = torch_operators.linear_backward(dy, kept_x, kept_w, K, True, True)
    return [y, kept_x, kept_w, dx, dw]


@pytest.mark.parametrize("current", [0, 1], ids=["the current device", "another device"])
def test_a_chain_gives_what_the_operators_give_one_by_one(launcher, monkeypatch, current):
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current, raising=False)
    x, w, dy = operands()
    layer = Layer(M, N, K, torch.device("cpu"))
    plain, kept_x = layer.quantise(x)
    y, kept_w = layer.forward(plain, w, again=False)
    dx, dw = layer.backward(dy, kept_x, kept_w, True, True)
    for ours, wanted in zip((y, kept_x, kept_w, dx, dw), by_operators(x, w, dy), strict=True):
        assert torch.equal(ours, wanted)
    assert torch.equal(inferred(layer, "infer", x, w), torch_operators.linear_forward_only(x, w))
    assert {stream for plan in launcher.plans.values() for _, stream in plan.calls} == {77}


@pytest.mark.parametrize("stream", [77, 0], ids=["a stream", "the default stream"])
@pytest.mark.parametrize("rows", [1, 37, 38, M])
def test_up_to_the_rows_it_was_verified_at_one_operator_serves_the_layer(launcher, monkeypatch, rows, stream):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: stream, raising=False)
    x, w, _ = operands()
    launcher.rows = 37
    kept = torch_operators.quantise_weight(w)
    layer = Layer(rows, N, K, torch.device("cpu"), False)
    found = [inferred(layer, "infer_kept", x[:rows].contiguous(), kept) for _ in range(3)]
    launched = {name for (name, *_), plan in launcher.plans.items() if plan.calls}
    assert launched == ({"linear"} if rows <= 37 else {"quant_1x128", "gemm_nt"})
    assert all(torch.equal(y, torch_operators.linear_infer(x[:rows], w, kept)) for y in found)
    assert torch.equal(inferred(layer, "infer", x[:rows].contiguous(), w), found[0])


@pytest.mark.parametrize("again", [1, M + 1], ids=["quantised again", "kept"])
@pytest.mark.parametrize("rows", [M, M - 56, 1])
def test_autograd_takes_the_same_way_and_odd_rows_are_filled_with_zeros(launcher, monkeypatch, rows, again):
    monkeypatch.setattr(torch_layer, "AGAIN_ROWS", again)
    x, w, dy = (t[:rows].contiguous() if len(t) == M else t for t in operands())
    layer = Layer(rows, N, K, torch.device("cpu"), True)
    xg, wg = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = torch_operators._Linear.apply(xg, wg, layer.quantise(x), layer)
    dx, dw = torch.autograd.grad(y, (xg, wg), dy)
    wanted = by_operators(x, w, dy)
    assert torch.equal(y, wanted[0]) and torch.equal(dx, wanted[3]) and torch.equal(dw, wanted[4])
    plain, kept_x = layer.quantise(x)
    made, _ = layer.forward(plain, w, again=True)
    assert torch.equal(layer.forward_kept(plain, torch_operators.quantise_weight(w)), y)
    again = [made, *layer.backward(dy, kept_x, w, True, True, again=True)]
    again.append(layer.backward(dy, kept_x, w, True, False, again=True)[0])
    assert all(torch.equal(a, b) for a, b in zip(again, (y, dx, dw, dx), strict=True))
    filled = by_operators(
        *(torch.nn.functional.pad(t, (0, 0, 0, M - rows)) if len(t) == rows else t for t in (x, w, dy))
    )
    assert torch.equal(y, filled[0][:rows]) and torch.equal(dw, filled[4])
    y.mul_(2)  # results belong to the caller: no view of something larger


def test_an_operator_without_a_plan_leaves_the_layer_to_the_ops(monkeypatch):
    monkeypatch.setattr(torch_layer, "LAUNCHER", MemoryLauncher(frozenset(("gemm_nt_rows",))))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    layer = Layer(M, N, K, torch.device("cpu"))
    with pytest.raises(store.NotServed, match="no plan"):
        layer.ready(training=True)
    layer.ready(training=False)
    assert torch_layer.entry(M, N, K, torch.device("cpu"), True) is None
    torch_layer._LAYERS.clear()


def test_a_weight_is_kept_by_no_graph(monkeypatch):
    kept = torch_operators.KeptWeight(operands()[1])
    monkeypatch.setattr(torch_operators, "_captures", lambda: True)
    assert kept.copies() is None, "a replay alone would make them"
    monkeypatch.setattr(torch_operators, "_captures", lambda: False)
    assert torch.equal(kept.copies(), torch_operators.quantise_weight(kept.weight))
    monkeypatch.setattr(torch_operators, "_captures", lambda: True)
    assert kept.copies() is kept.copies() is not None


def test_a_launch_is_recorded_within_an_operator_too():
    """Compiled code makes plans there, where torch's composite operations come whole."""
    call = torch_record.RecordedCall([Tensor("x", "float32", (4, 8))], shift=256)
    with torch._C._AutoDispatchBelowAutograd(), call:
        assert call._located(call.inputs["x"][1:].reshape(-1), "rows") == (0, 32)
        with pytest.raises(torch_record.ForeignWork, match="torch computes mm"):
            torch.matmul(call.inputs["x"], call.inputs["x"].T)
