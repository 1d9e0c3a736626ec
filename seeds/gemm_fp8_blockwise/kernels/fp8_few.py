"""Blockwise FP8 GEMM (NT) for few rows in CUDA C++ for Hopper: the product of ``fp8_rows`` on rows that are quantised.

Of a tile 64 x WGS rows of B are the matrix instruction's first operand, and as many rows of A as fill the fewest tiles
of at most MOST the second. A cluster of at most SPLIT shares a tile's depth, where there are too few tiles.
"""

from tilewright.seeds.gemm_fp8_blockwise.kernels.fp8_rows import CUDA, EXPECTED, product

SPACE = {
    "MOST": (16, 32, 64, 128, 192, 256),
    "WGS": (1, 2),
    "KB": (1, 2, 4),
    "STAGES": (2, 3, 4, 6, 8, 12),
    "SPLIT": (1, 2, 4, 8),
    "FILL": (75, 100, 125, 150),
    "CN": (1, 2),
    "CTAS": (1, 2, 3),
}
DEFAULTS = {"MOST": 128, "WGS": 1, "KB": 2, "STAGES": 12, "SPLIT": 4, "FILL": 100, "CN": 1, "CTAS": 1}
CONSTRAINTS = {
    "SPLIT * CN <= 8": "CTAs of a cluster",
    "2 * KB * (WGS * 8192 + MOST * 132) + 2048 * WGS * (MOST // 8 // SPLIT + 1) * (SPLIT - 1)"
    " + 1280 <= 232448 // CTAS": "two stages and the sums of the others lie in shared memory",
    "MOST * 3 // 4 + 40 <= min(255, 65536 // CTAS // (128 * WGS + 64)) or MOST > 128 and WGS == 2 and CTAS == 1": (
        "sums and partials lie in registers"
    ),
    "columns == 0": "tiles of 64 columns have one scale of B",
    "N % 8 == 0": "rows of C begin at 16 bytes",
    "K % 128 == 0": "a step of K is one scale block",
}


def launch(inputs, params):
    (m, k), n = inputs["a_q"].shape, inputs["b_q"].shape[0]
    defines, step, _ = product(m, n, k, params, "b_q", "a_q", "a_s", "b_s", "c", scaled=m)
    return {"options": {"default_device": True}, "defines": defines, "steps": (step,)}
