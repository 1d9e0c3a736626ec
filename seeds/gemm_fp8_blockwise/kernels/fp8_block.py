"""Blockwise FP8 GEMM (NT) in CUDA C++ for Hopper: one producer warp, one or two consumer warpgroups, no barrier
between them (see ``fp8_block.cu``).

A tile has 64 x WGS rows and WN columns, twice as many rows with two waves ``down`` a warpgroup, twice as many columns
with two ``across``. A cluster of two multicasts the operand that it shares. Programs are persistent, and a tile's rows
are stored behind the next wave's products. Measured on an H200 over twelve training shapes: 1.11 times cuBLAS with a
genome for each shape, 1.09 with the defaults (``experiments/records/h200_fp8/cuda_fp8.md``).
"""

SPACE = {
    "WGS": (1, 2),
    "WAVES": ("one", "down", "across"),
    "WN": (16, 32, 48, 64, 80, 96, 112, 128, 160, 192),
    "STAGES": (3, 4, 5, 6, 7, 8, 10, 12, 13, 16),
    "SHARE": ("none", "a", "b"),
    "GROUP": (2, 4, 8, 16, 32),
    "AXIS": (0, 1),
    "UNR": (1, 2, 4),
    "OUTCS": (0, 1),
    "ECW": (32, 64),
    "CREG": (216, 232, 240),
    "PREG": (24, 40),
}
DEFAULTS = {
    "WGS": 2,
    "WAVES": "down",
    "WN": 128,
    "STAGES": 3,
    "SHARE": "a",
    "GROUP": 8,
    "AXIS": 0,
    "UNR": 2,
    "OUTCS": 0,
    "ECW": 64,
    "CREG": 240,
    "PREG": 24,
}
CONSTRAINTS = {
    "STAGES * (WGS * (64 + 64 * (WAVES == 'down')) * 132 + WN * (1 + (WAVES == 'across')) * (128 + 4 * columns) + 32)"
    " + WGS * 64 * (ECW * 2 + 16) + 128 + (8 * groups + 128 * (STAGES // 8 + 1)) * (groups > 0) <= 232448": (
        "the ring and the stores' pieces share 227 KB of shared memory"
    ),
    "WAVES != 'down' or WN <= 128": "a copy brings 256 rows of A, a thread keeps 256 numbers",
    "WAVES != 'across' or WN <= 128 and (WN % 128 == 0 or 64 % WN == 0)": (
        "a copy brings 256 rows of B, and waves keep to granules of B's scales"
    ),
    "groups == 0 or SHARE == 'none'": "of groups one CTA has a tile",
    "WGS > 1 or CREG < 240": "registers of two warpgroups",
    "PREG == 24 or CREG <= 232": "registers of all warpgroups together",
    "columns == 0 or WN * (1 + (WAVES == 'across')) % 32 == 0": "a copy of B's scales begins at 128 bytes",
    "M % 4 == 0 or ahead": "rows of A's scales begin at 16 bytes, where TMA may",
    "N % 8 == 0": "rows of C and of B's scales begin at 16 bytes",
    "K % 128 == 0": "a step of K is one scale block",
}


# us on an H200, fitted to 24 layers of 65 to 640 rows: waves of tiles, steps along K, bytes of w
EXPECTED = (
    "1e9 if M <= 64 and groups == 0 else (lambda rows, columns: (lambda waves: 3.88 + waves * (K / 128 * (0.0247"
    " + 6.63e-4 * rows + 8.01e-4 * columns + 7.91e-6 * rows * columns) + 0.115 + 5.65e-5 * rows * columns)"
    " + 9.52e-8 * N * K)(cdiv(max(groups, 1) * cdiv(M if groups == 0 else M * 3 // 4 // (1 if masked else groups),"
    " rows * (1 + (SHARE == 'b'))) * cdiv(N, columns * (1 + (SHARE == 'a'))) * (1 + (SHARE != 'none')), 132)))"
    "(64 * WGS * (1 + (WAVES == 'down')), WN * (1 + (WAVES == 'across')))"
)


def product(m, n, k, params, a, a_s, b, b_s, c, by_rows=False):
    """Macros and the launch of the product, and its tiles' rows together."""
    wgs, stages = params["WGS"], params["STAGES"]
    down, across = (2 if params["WAVES"] == way else 1 for way in ("down", "across"))
    rows, columns = 64 * wgs * down, params["WN"] * across
    shares_a, shares_b = (params["SHARE"] == operand for operand in ("a", "b"))
    cluster = 2 if shares_a or shares_b else 1
    ring = stages * (rows * 132 + columns * (132 if by_rows else 128) + 32)
    high, wide = rows * (2 if shares_b else 1), columns * (2 if shares_a else 1)
    whole = -(-m // high) * high
    defines = {"MW": down, "NW": across, "CL": cluster, "MCB": 1 if shares_b else 0}
    step = {
        "kernel": "fp8_block",
        "grid": min(whole // high * -(-n // wide), 132 // cluster) * cluster,
        "block": 128 * (wgs + 1),
        "cluster": cluster,
        "shared": -(-ring // 128) * 128 + wgs * 64 * (params["ECW"] * 2 + 16),
        "arguments": (
            {"map": a, "box": (rows // (2 if shares_a else 1), 128), "swizzle": 128},
            {"map": b, "box": (columns // (2 if shares_b else 1), 128), "swizzle": 128},
            {"map": a_s, "box": (1, rows)},
            {"map": b_s, "box": (1, columns)} if by_rows else b_s,
            c,
            {"i32": m},
            {"i32": n},
            {"i32": k},
        ),
    }
    return defines, step, whole


def launch(inputs, params):
    options = {"default_device": True}
    if "x" in inputs:  # quantised by a launch of its own, into whole tiles: copies of rows that are not there cost more
        (m, k), n = inputs["x"].shape, inputs["w_q"].shape[0]
        defines, step, whole = product(m, n, k, params, "q", "s", "w_q", "w_s", "y")
        ahead = {
            "kernel": "quantise",
            "grid": -(-m // 4) * -(-k // 512),
            "block": 256,
            "arguments": ("x", "q", "s", {"i32": m}, {"i32": k}, {"i32": whole}),
            "programmatic": True,
        }
        return {
            "options": options,
            "defines": {**defines, "AHEAD": 1},
            "scratch": {"q": ("float8_e4m3fn", (whole, k)), "s": ("float32", (k // 128, whole))},
            "steps": (ahead, {**step, "programmatic": True}),
        }
    if "count" in inputs:
        return grouped(inputs, params)
    (m, k), n = inputs["a_q"].shape, inputs["b_q"].shape[0]
    by_rows = tuple(inputs["b_s"].shape) == (k // 128, n)  # else by blocks of 128 rows
    defines, step, _ = product(m, n, k, params, "a_q", "a_s", "b_q", "b_s", "c", by_rows)
    return {"options": options, "defines": {**defines, "SB": int(by_rows)}, "steps": (step,)}


def grouped(inputs, params):
    """Products of groups of rows, sorted or with room for M rows each: one launch over the tiles of all groups."""
    g, n, k = inputs["b_q"].shape
    m, masked = inputs["a_q"].shape[-2], len(inputs["a_q"].shape) == 3
    every = g * m if masked else m
    defines, step, _ = product(every, n, k, params, "a_q", "a_s", "b_q", "b_s", "c")
    a, b, scales, *others = step["arguments"]
    a, b = {**a, "shape": (every, k)}, {**b, "shape": (g * n, k)}
    scales = {**scales, "shape": (every * k // 128 // m, m)}
    step = {
        **step,
        "grid": min(132, (every // a["box"][0] + 2 * g) * -(-n // b["box"][0])),
        "shared": step["shared"] + 8 * g + 128 * (params["STAGES"] // 8 + 1),
        "arguments": (a, b, scales, *others[:2], {"i32": m}, *others[3:], "count"),
    }
    defines = {**defines, "SB": 0, "GROUPS": g, "MASKED": int(masked)}
    return {"options": {"default_device": True}, "defines": defines, "steps": (step,)}
