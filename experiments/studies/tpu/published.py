"""Kernel times of TPUs that others have published: facts with their sources, nothing of our own.

* ``pallas guide``: outputs kept in github.com/jax-ml/jax, docs/pallas/tpu/matmul.ipynb (one TPU v5e, bfloat16), read at
  commit cec06d1. Wall times of one call, hence with the host's dispatch in them.
* ``ironwood``: github.com/AI-Hypercomputer/accelerator-microbenchmarks, Ironwood/Ironwood_Microbenchmarks_readme.md,
  "GEMM Results" (jnp.matmul, bfloat16 by its gemm_multiple_run_more.yaml), commit 0ddd4b8. TFLOP/s of one device, one
  TensorCore of a TPU7x, from the profiler.
* ``gmm decode``: github.com/vllm-project/tpu-inference/issues/3520, one TPU7x core, profiler: weights streamed by a
  grouped matmul with few rows, and its copy reference of 3.21 TB/s. Bound by HBM: bytes and time.
* ``logits``: github.com/vllm-project/tpu-inference/issues/3127, one TPU v5e, profiler: element-wise operations on
  f32[512, 256000]. Bound by HBM: bytes and time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Matmul:
    """A product of square bfloat16 matrices. ``kernel``: ``xla``, or a Pallas kernel's (bm, bk, bn) and what it fuses.

    ``published``: seconds; ``dispatch`` says whether the host's part is in it.
    """

    source: str
    chip: str
    size: int
    tiles: tuple[int, int, int] | None
    variant: str
    published: float
    dispatch: bool

    @property
    def kernel(self) -> str:
        """For a table."""
        if self.tiles is None:
            return "XLA"
        extra = "" if self.variant == "plain" else f", {self.variant}"
        return f"Pallas {'x'.join(map(str, self.tiles))}{extra}"


@dataclass(frozen=True)
class Stream:
    """An operation bound by HBM: ``size`` in bytes moved, ``published`` in seconds."""

    source: str
    chip: str
    what: str
    size: float
    published: float


SMALL, LARGE = (128, 128, 128), (512, 1024, 1024)

_GUIDE = {
    (None, "plain"): (0.00011943008983507753, 0.0008272899803705514, 0.006047147869830951),
    (SMALL, "plain"): (0.00029766598949208854, 0.011771515250438824, 0.09183577066054567),
    (LARGE, "plain"): (0.00012708659982308746, 0.00088908776990138, 0.006099433819763363),
    (SMALL, "transposed rhs"): (0.0003029372810851783, 0.012017967159627005, 0.09500920018996112),
    (LARGE, "transposed rhs"): (0.00012131539988331496, 0.0008790623804088682, 0.006107717020204291),
    (SMALL, "relu"): (0.00030103540048003196, 0.011807117109419778, 0.09181861146935262),
    (LARGE, "relu"): (0.00012622540001757442, 0.000896632740041241, 0.006130605939542875),
}
_IRONWOOD = {
    128: 2.589961271,
    256: 18.28645367,
    512: 105.0783466,
    1024: 349.7270639,
    2048: 679.284728,
    4096: 892.9445127,
    16384: 950.1286983,
    32768: 956.3824592,
}

MATMULS: tuple[Matmul, ...] = (
    *(
        Matmul("pallas guide", "v5e", size, tiles, variant, seconds, dispatch=True)
        for (tiles, variant), times in _GUIDE.items()
        for size, seconds in zip((1024, 4096, 8192), times, strict=True)
    ),
    *(
        Matmul("ironwood", "tpu7x", size, None, "plain", 2 * size**3 / (rate * 1e12), dispatch=False)
        for size, rate in _IRONWOOD.items()
    ),
)

_LOGITS = 512 * 256_000

STREAMS: tuple[Stream, ...] = (
    Stream("gmm decode", "tpu7x", "fp8 weights, 30 groups of 4096x2048", 240 * 2**20, 81.9e-6),
    Stream("gmm decode", "tpu7x", "bf16 weights, 30 groups of 4096x2048", 480 * 2**20, 159.8e-6),
    Stream("gmm decode", "tpu7x", "streamed copy, per GB", 1e9, 1e9 / 3.21e12),
    Stream("logits", "v5e", "copy f32[512,256000]", 8 * _LOGITS, 1561.98e-6),
    Stream("logits", "v5e", "bf16 to f32 [512,256000]", 6 * _LOGITS, 1236.7e-6),
    Stream("logits", "v5e", "argmax over f32[512,256000]", 4 * _LOGITS, 696.2e-6),
)
