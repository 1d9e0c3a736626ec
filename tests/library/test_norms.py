"""Norms of a converted model: which modules are seen to be root mean square norms, and what is kept of them."""

import pytest

torch = pytest.importorskip("torch")
convert, RMSNorm = (
    getattr(pytest.importorskip("tilewright.library.torch_modules"), n) for n in ("convert", "RMSNorm")
)


class Norm(torch.nn.Module):
    """As Hugging Face's Llama has it, with what a case makes of it."""

    def __init__(self, size, shift=0.0, above=0.0, wide=False, cut=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, size, dtype=torch.bfloat16))
        self.epsilon, self.options = 1e-6, (shift, above, wide, cut)

    def forward(self, x):
        shift, above, wide, cut = self.options
        y = x.float() - above * x.float().mean(-1, keepdim=True)
        y = y * torch.rsqrt(y[..., :cut].square().mean(-1, keepdim=True) + self.epsilon)
        y = (self.weight + shift) * y.to(x.dtype)
        return y.float() if wide else y


@pytest.mark.parametrize(
    ("options", "one"),
    [
        ({}, True),
        ({"shift": 1.0}, False),
        ({"above": 1.0}, False),
        ({"wide": True}, False),
        ({"cut": 64}, False),
    ],
    ids=["Llama's", "Gemma's", "mean taken off", "float32 answer", "part of the row"],
)
def test_a_module_that_computes_a_norm_is_one_kernel(options, one):
    model, x = torch.nn.Sequential(Norm(128, **options)), torch.randn(4, 128).bfloat16()
    state, wanted, generator = model.state_dict(), model(x), torch.get_rng_state()
    convert(model)
    assert isinstance(model[0], RMSNorm) is one and torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(model(x), wanted) and all(
        v is model.state_dict()[n] or torch.equal(v, model.state_dict()[n]) for n, v in state.items()
    )


@pytest.mark.parametrize("case", ["two floats", "a hook's forward", "torch's own", "not asked for"])
def test_other_modules_stay(case):
    norm = torch.nn.RMSNorm(128) if case == "torch's own" else Norm(128)
    if case == "two floats":
        norm.dropout = 0.1
    if case == "a hook's forward":
        norm.forward = norm.forward
    kind = type(norm)
    assert type(convert(torch.nn.Sequential(norm), norms=case != "not asked for")[0]) is kind
