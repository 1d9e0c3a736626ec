"""Steps of programs with kernels of other packages, for ``tilewright program``; small ones where there is no GPU.

pip install transformers liger-kernel flash-linear-attention
tilewright program examples/programs.py:step --setup llama --fp8
tilewright program examples/programs.py:step --setup gla
tilewright program examples/programs.py:step --setup compiled_llama
tilewright program examples/programs.py:step --setup decoder --fp8-kept
"""

import torch

CUDA = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
WIDTH, LAYERS, WORDS, SHAPE = (2048, 6, 128256, (4, 2048)) if CUDA else (64, 1, 128, (1, 8))


def step(once):
    return once()


def _training(model, words):
    model = model.to(DEVICE, DTYPE).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    tokens = torch.randint(0, words, SHAPE, device=DEVICE)

    def once():
        optimiser.zero_grad(set_to_none=True)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        return loss

    return once


def _llama(words):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": LAYERS, "vocab_size": words}
    with torch.device(DEVICE):  # where a billion random numbers take no time
        return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=16, num_key_value_heads=4))


def llama():
    """A Llama with all of Liger's kernels for it."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama()
    return _training(_llama(WORDS), WORDS)


def compiled_llama():
    """A Llama whose kernels Inductor generates."""
    return _training(torch.compile(_llama(32000)), 32000)


def gla():
    """Gated linear attention, layers as wide as those of the package's model of 340 million parameters."""
    from fla.models import GLAConfig, GLAForCausalLM

    sizes = {"hidden_size": WIDTH // 2, "num_hidden_layers": LAYERS, "num_heads": 4, "vocab_size": WORDS // 4}
    with torch.device(DEVICE):
        model = GLAForCausalLM(GLAConfig(**sizes))
    return _training(model, WORDS // 4)


class Decoder(torch.nn.Module):
    """Layers that attend to a cache of keys and values which stays where it is."""

    def __init__(self, batch, length, heads=16):
        from liger_kernel.transformers import LigerRMSNorm

        super().__init__()
        self.norms = torch.nn.ModuleList(LigerRMSNorm(WIDTH) for _ in range(2 * LAYERS))
        self.products = torch.nn.ModuleList(
            torch.nn.Linear(a * WIDTH, b * WIDTH, bias=False) for a, b in ((1, 3), (1, 1), (1, 8), (4, 1)) * LAYERS
        )
        self.cache = torch.zeros(2 * LAYERS, batch, heads, length, WIDTH // heads, dtype=DTYPE)

    def forward(self, x, place):
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        for n in range(LAYERS):
            qkv, out, up, down = self.products[4 * n : 4 * n + 4]
            q, k, v = qkv(self.norms[2 * n](x)).view(len(x), 3, self.cache.shape[2], 1, -1).unbind(1)
            for cache, new in ((self.cache[2 * n], k), (self.cache[2 * n + 1], v)):
                cache.index_copy_(2, place, new)
            y = torch.nn.functional.scaled_dot_product_attention(q, *self.cache[2 * n : 2 * n + 2])
            x = x + out(y.reshape(x.shape))
            x = x + down(LigerSiLUMulFunction.apply(*up(self.norms[2 * n + 1](x)).chunk(2, -1)))
        return x


@torch.no_grad()
def decoder(batch=16, length=1024 if CUDA else 8):
    """One token of each sequence, captured in a CUDA graph; what the graph reads lives as long as the step does."""
    with torch.device(DEVICE):
        model = Decoder(batch, length).to(DTYPE)
    x = torch.randn(batch, WIDTH, device=DEVICE, dtype=DTYPE)
    place = torch.tensor([length - 1], device=DEVICE)
    if not CUDA:
        return lambda: torch.no_grad()(model)(x, place)
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # loads every kernel before the capture, which allows none to be loaded
        model(x, place)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        y = model(x, place)

    def once():
        graph.replay()
        return y

    once.reads = (model, x, place)
    return once
