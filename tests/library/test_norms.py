"""Norms of a converted model: which modules are seen to be root mean square norms, and what is kept of them."""

import pytest

torch = pytest.importorskip("torch")

from tilewright.library.torch_modules import RMSNorm, convert  # noqa: E402


class Norm(torch.nn.Module):
    """As Hugging Face's Llama has it, with what a case makes of it."""

    def __init__(self, shift=0.0, above=0.0, wide=False, cut=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, 128, dtype=torch.bfloat16))
        self.epsilon, self.options = 1e-6, (shift, above, wide, cut)

    def forward(self, x):
        shift, above, wide, cut = self.options
        y = x.float() - above * x.float().mean(-1, keepdim=True)
        y = y * torch.rsqrt(y[..., :cut].square().mean(-1, keepdim=True) + self.epsilon)
        y = (self.weight + shift) * y.to(x.dtype)
        return y.float() if wide else y


@pytest.mark.parametrize(
    ("options", "attributes", "one"),
    [({}, {}, True), ({"shift": 1.0}, {}, False), ({"above": 1.0}, {}, False), ({"wide": True}, {}, False),
     ({"cut": 64}, {}, False), ({}, {"dropout": 0.1}, False), ({}, {"forward": lambda x: x}, False)],
    ids=["Llama's", "Gemma's", "less its mean", "float32 answer", "part of the row", "two floats", "forward replaced"],
)  # fmt: skip
def test_a_module_that_computes_a_norm_is_one_kernel(options, attributes, one):
    norm, x = Norm(**options), torch.randn(4, 128).bfloat16()
    vars(norm).update(attributes)
    wanted, state, generator = norm(x), norm.state_dict(), torch.get_rng_state()
    assert type(convert(norm, norms=False)) is Norm
    assert isinstance(convert(norm), RMSNorm) is one and torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(norm(x), wanted) and torch.equal(norm.state_dict()["weight"], state["weight"])
