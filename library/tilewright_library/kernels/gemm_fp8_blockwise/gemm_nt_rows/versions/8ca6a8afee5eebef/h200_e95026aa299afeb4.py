# gemm_fp8_blockwise/gemm_nt_rows for h200. Promoted by tilewright: do not edit,
# a file whose hash differs from its receipt is not used.
# dispatch.json has the parameters and shapes of the kernels that are made of this source,
# receipt.json has their campaigns, lineages and gains.
#
"""Blockwise FP8 GEMM (NT) in CUDA C++ for Hopper: one producer warp, one to three consumer warpgroups, no barrier
between them (see ``fp8_block.cu``).

A tile has 64 x WGS rows and WN columns, twice as many rows with two waves ``down`` a warpgroup, twice as many columns
with two ``across``. A cluster of two multicasts the operand that it shares. Programs are persistent, and a tile's rows
are stored behind the next wave's products. Measured on an H200 over twelve training shapes: 1.11 times cuBLAS with a
genome for each shape, 1.09 with the defaults (``experiments/records/h200_fp8/cuda_fp8.md``).
"""

SPACE = {
    "WGS": (1, 2, 3),
    "WAVES": ("one", "down", "across"),
    "WN": (16, 32, 48, 64, 80, 96, 112, 128, 160, 192),
    "STAGES": (3, 4, 5, 6, 7, 8, 10, 12, 13, 16),
    "SHARE": ("none", "a", "b"),
    "GROUP": (2, 4, 8, 16, 32),
    "AXIS": (0, 1),
    "UNR": (1, 2, 4),
    "OUTCS": (0, 1),
    "ORDER": (0, 1),
    "DBUF": (0, 1),
    "RSA": (0, 1),
    "ECW": (32, 64),
    "CREG": (160, 216, 232, 240),
    "PREG": (24, 40),
    "CTAS": (132,),
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
    "ORDER": 0,
    "DBUF": 0,
    "RSA": 0,
    "ECW": 64,
    "CREG": 240,
    "PREG": 24,
    "CTAS": 132,
}
CONSTRAINTS = {
    "STAGES * (WGS * (64 + 64 * (WAVES == 'down')) * 132 + WN * (1 + (WAVES == 'across')) * (128 + 4 * columns) + 32)"
    " + WGS * 64 * (ECW * 2 + 16) + 128 <= 232448": "the ring and the stores' pieces share 227 KB of shared memory",
    "DBUF == 0 or WAVES == 'one' and columns == 0": "two partials of one wave, of one scale of B",
    "DBUF == 0 or ORDER + RSA == 0": "a second partial takes no turns and leaves no registers for A",
    "RSA == 0 or WAVES != 'down'": "A's registers serve the waves along N",
    "WAVES != 'down' or WGS <= 2 and WN <= 128": "a copy brings 256 rows of A, a thread keeps 256 numbers",
    "WAVES != 'across' or WN <= 128 and (WN % 128 == 0 or 64 % WN == 0)": (
        "a copy brings 256 rows of B, and waves keep to granules of B's scales"
    ),
    "WGS < 3 or CREG <= 160": "registers of four warpgroups",
    "WGS == 3 or CREG >= 216": "consumers take what the producer gives",
    "WGS > 1 or CREG < 240": "registers of two warpgroups",
    "PREG == 24 or CREG <= 232": "registers of all warpgroups together",
    "columns == 0 or WN * (1 + (WAVES == 'across')) % 32 == 0": "a copy of B's scales begins at 128 bytes",
    "M % 4 == 0": "rows of A's scales begin at 16 bytes, where TMA may",
    "N % 8 == 0": "rows of C and of B's scales begin at 16 bytes",
    "K % 128 == 0": "a step of K is one scale block",
}


def launch(inputs, params):
    (m, k), n = inputs["a_q"].shape, inputs["b_q"].shape[0]
    down, across = (2 if params["WAVES"] == way else 1 for way in ("down", "across"))
    rows, columns = 64 * params["WGS"] * down, params["WN"] * across
    shares_a, shares_b = (params["SHARE"] == operand for operand in ("a", "b"))
    stages, cluster = params["STAGES"], 2 if shares_a or shares_b else 1
    by_rows = tuple(inputs["b_s"].shape) == (k // 128, n)  # else by blocks of 128 rows
    ring = stages * (rows * 132 + columns * (132 if by_rows else 128) + 32)
    units = -(-m // (rows * (2 if shares_b else 1))) * -(-n // (columns * (2 if shares_a else 1)))
    return {
        "options": {"default_device": True},
        "defines": {"MW": down, "NW": across, "CL": cluster, "MCB": 1 if shares_b else 0, "SB": int(by_rows)},
        "steps": (
            {
                "kernel": "fp8_block",
                "grid": min(units, params["CTAS"] // cluster) * cluster,
                "block": 128 * (params["WGS"] + 1),
                "cluster": cluster,
                "shared": -(-ring // 128) * 128 + params["WGS"] * 64 * (params["ECW"] * 2 + 16),
                "arguments": (
                    {"map": "a_q", "box": (rows // (2 if shares_a else 1), 128), "swizzle": 128},
                    {"map": "b_q", "box": (columns // (2 if shares_b else 1), 128), "swizzle": 128},
                    {"map": "a_s", "box": (1, rows)},
                    {"map": "b_s", "box": (1, columns)} if by_rows else "b_s",
                    "c",
                    {"i32": m},
                    {"i32": n},
                    {"i32": k},
                ),
            },
        ),
    }

CUDA = "h200_16fba20fb52fc2a0.cu"
