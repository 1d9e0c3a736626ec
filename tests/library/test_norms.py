"""Norms of a converted model: which modules are seen to be root mean square norms, and what is kept of them."""

import pytest

torch = pytest.importorskip("torch")

from tilewright.library.torch_modules import RMSNorm, convert  # noqa: E402


def unit(x):
    return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, 128, dtype=torch.bfloat16))
        self.epsilon = 1e-6

    def forward(self, x):
        return self.function(x, self.weight)


OTHERS = {
    "one more than the weight": {"function": lambda x, w: (1 + w) * unit(x)},
    "less its mean": {"function": lambda x, w: w * unit(x - x.mean(-1, keepdim=True))},
    "in float32": {"function": lambda x, w: w.float() * unit(x).float()},
    "no epsilon": {"function": lambda x, w: w * unit(x * 1024)},
    "two floats": {"dropout": 0.1},
    "forward replaced": {"forward": unit},
}


@pytest.mark.parametrize("kind", ["Hugging Face's", *OTHERS])
def test_a_module_that_computes_a_norm_is_one_kernel(kind):
    norm, x, state = Norm(), torch.randn(4, 128).bfloat16(), torch.get_rng_state()
    vars(norm).update({"function": lambda x, w: w * unit(x), **OTHERS.get(kind, {})})
    wanted, weight = norm(x), norm.weight
    assert type(convert(norm, norms=False)) is Norm
    assert isinstance(convert(norm), RMSNorm) is (kind not in OTHERS)
    assert torch.equal(norm(x), wanted) and norm.state_dict().keys() == {"weight"} and norm.weight is weight
    assert torch.equal(torch.get_rng_state(), state)
