"""Row quantisation of a bf16 matrix, and its transpose in 128 x 128 blocks, from one read, in Gluon with TMA loads.

For a weight gradient whose activations are in blocks as weights are: that product then has the forward one's scales.
The schedule is ``quant_dual_tma``'s: programs walk over 128 x 128 tiles, a ring of shared tiles is filled by TMA
``stages`` tiles ahead, and every thread holds a piece_m x piece_k piece, so that both copies leave in vectors without a
transpose through shared memory.
"""

from tilewright.seeds.gemm_fp8_blockwise.kernels.quant_dual_tma import (
    CONSTRAINTS,
    DEFAULTS,
    SPACE,
    dual_launch,
)


def launch(inputs, params):
    return dual_launch(inputs, params, True)
