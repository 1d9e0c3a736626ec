"""Blockwise FP8 GEMM (NT) in CUDA C++ for Hopper: one producer warp, one to three consumer warpgroups, no barrier
between them (see ``fp8_block.cu``).

A tile has 64 x MW x WGS rows and WN x NW columns; a warpgroup holds MW waves of rows or NW waves of columns in
registers. A cluster of two multicasts the operand it shares. Programs are persistent, and a tile's rows are stored
behind the next wave's products. Measured by its author on an H200 over twelve training shapes: 1.00 times DeepGEMM,
1.10 times cuBLAS with one genome a shape.
"""

SPACE = {
    "WGS": (1, 2, 3),
    "MW": (1, 2),
    "NW": (1, 2),
    "WN": (16, 32, 48, 64, 80, 96, 112, 128, 160, 192),
    "STAGES": (3, 4, 5, 6, 7, 8, 10, 12, 13, 16),
    "CL": (1, 2),
    "MCB": (0, 1),
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
    "MW": 2,
    "NW": 1,
    "WN": 128,
    "STAGES": 3,
    "CL": 2,
    "MCB": 0,
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
    "STAGES * (WGS * MW * 64 * 132 + WN * NW * 128 + 32) + WGS * 64 * (ECW * 2 + 16) + 128 <= 232448": (
        "the ring and the stores' pieces share 227 KB of shared memory"
    ),
    "MW == 1 or NW == 1": "a warpgroup's waves go one way",
    "DBUF == 0 or MW * NW == 1": "two partials of one wave",
    "DBUF == 0 or ORDER == 0": "turns are for one partial",
    "DBUF == 0 or RSA == 0": "a second partial leaves no registers for A",
    "RSA == 0 or MW == 1": "A's registers serve the waves along N",
    "WGS * MW <= 4": "a copy brings 256 rows of A at most",
    "WN * NW <= 256": "a copy brings 256 rows of B at most",
    "128 % (WN * NW) == 0 or WN * NW % 128 == 0 or WN % 16 == 0 and NW == 1": "waves keep to granules of B's scales",
    "MW * NW * WN <= 256": "a thread's accumulators and partial fit 240 registers",
    "WGS < 3 or CREG <= 160": "registers of four warpgroups",
    "WGS == 3 or CREG >= 216": "consumers take what the producer gives",
    "WGS > 1 or CREG < 240": "registers of two warpgroups",
    "PREG == 24 or CREG <= 232": "registers of all warpgroups together",
    "CL == 2 or MCB == 0": "one CTA shares nothing",
    "columns == 0": "B has scales of 128 x 128 blocks",
    "M % 4 == 0": "rows of A's scales begin at 16 bytes, where TMA may",
    "N % 8 == 0": "rows of C begin at 16 bytes",
    "K % 128 == 0": "a step of K is one scale block",
}


def launch(inputs, params):
    (m, k), n = inputs["a_q"].shape, inputs["b_q"].shape[0]
    rows, columns = 64 * params["WGS"] * params["MW"], params["WN"] * params["NW"]
    stages, cluster = params["STAGES"], params["CL"]
    ring = stages * (rows * 132 + columns * 128 + 32)
    shares_a, shares_b = (cluster == 2 and params["MCB"] == which for which in (0, 1))
    down, across = (2 if shares_b else 1) * rows, (2 if shares_a else 1) * columns
    units = -(-m // down) * -(-n // across)
    return {
        "options": {"default_device": True},
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
                    "b_s",
                    "c",
                    {"i32": m},
                    {"i32": n},
                    {"i32": k},
                ),
            },
        ),
    }
