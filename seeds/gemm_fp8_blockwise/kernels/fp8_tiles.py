"""x . w^T in blockwise FP8 from x in bf16, in CUDA C++ for Hopper: x is quantised by a launch that the product does not
wait for to fetch weights. The product is ``fp8_block``'s, where a tile has rows of x and columns of w (see
``fp8_block.cu``).
"""

from tilewright.seeds.gemm_fp8_blockwise.kernels.fp8_block import CUDA, EXPECTED, product

SPACE = {
    "WGS": (1, 2),
    "WAVES": ("one", "down", "across"),
    "WN": (32, 48, 64, 80, 96, 112, 128, 160, 192),
    "STAGES": (3, 4, 5, 6, 7, 8, 10, 12),
    "SHARE": ("none", "a", "b"),
    "GROUP": (2, 4, 8, 16, 32),
    "AXIS": (0, 1),
    "UNR": (1, 2),
    "OUTCS": (0, 1),
    "CTAS": (132, 264),
}
DEFAULTS = {
    "WGS": 1,
    "WAVES": "one",
    "WN": 64,
    "STAGES": 8,
    "SHARE": "none",
    "GROUP": 8,
    "AXIS": 0,
    "UNR": 2,
    "OUTCS": 0,
    "CTAS": 132,
}
CONSTRAINTS = {
    "STAGES * (WGS * (64 + 64 * (WAVES == 'down')) * 132 + WN * (1 + (WAVES == 'across')) * 128 + 32)"
    " + WGS * 64 * 144 + 1280 <= 232448 * 132 // CTAS": "the ring and the stores' pieces share the shared memory",
    "WAVES != 'down' or WN <= 128": "a thread keeps 256 numbers",
    "WAVES != 'across' or WN <= 128 and (WN % 128 == 0 or 64 % WN == 0)": (
        "a copy brings 256 rows of w, and waves keep to granules of its scales"
    ),
    "CTAS == 132 or WGS == 1 and WN <= 64 and WAVES == 'one'": "two CTAs of a multiprocessor share its registers",
    "N % 8 == 0": "rows of y begin at 16 bytes",
    "K % 128 == 0": "a step of K is one scale block",
}


def launch(inputs, params):
    (m, k), n = inputs["x"].shape, inputs["w_q"].shape[0]
    wgs, ctas = params["WGS"], params["CTAS"]
    # copies of rows that are not there cost more than those of rows nobody wrote: scratch has whole tiles
    defines, step, whole = product(m, n, k, params, "q", "s", "w_q", "w_s", "y")
    ahead = {
        "kernel": "quantise",
        "grid": -(-m // 4) * -(-k // 512),
        "block": 256,
        "arguments": ("x", "q", "s", {"i32": m}, {"i32": k}, {"i32": whole}),
        "programmatic": True,
    }
    more = {
        "AHEAD": 1,
        "BLOCKS": ctas // 132,
        "CREG": 240 if wgs == 2 else 232 if ctas == 132 else 208,
        "PREG": 24 if wgs == 2 else 40,
    }
    return {
        "options": {"default_device": True},
        "defines": {**defines, **more},
        "scratch": {"q": ("float8_e4m3fn", (whole, k)), "s": ("float32", (k // 128, whole))},
        "steps": (ahead, {**step, "programmatic": True}),
    }
