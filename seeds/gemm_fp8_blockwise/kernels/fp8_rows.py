"""x . w^T in blockwise FP8 for few rows in CUDA C++ for Hopper: x is quantised already, or by a launch that the product
does not wait for to fetch weights (see ``fp8_rows.cu``).

A tile has 64 x WGS rows of w and as many rows of x as fill the fewest tiles of at most MOST; its depth is shared by a
cluster of at most SPLIT, where there are too few tiles for FILL hundredths of the CTAS of each multiprocessor. So a
genome serves many sizes, and sizes that share tiles share code.
"""

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
DEFAULTS = {"MOST": 64, "WGS": 1, "KB": 2, "STAGES": 12, "SPLIT": 4, "FILL": 100, "CN": 1, "CTAS": 2}
CONSTRAINTS = {
    "SPLIT * CN <= 8": "CTAs of a cluster",
    "2 * KB * (WGS * 8192 + MOST * 132) + 2048 * WGS * (MOST // 8 // SPLIT + 1) * (SPLIT - 1)"
    " + 1280 <= 232448 // CTAS": "two stages and the sums of the others lie in shared memory",
    "MOST * 3 // 4 + 40 <= min(255, 65536 // CTAS // (128 * WGS + 64)) or MOST > 128 and WGS == 2 and CTAS == 1": (
        "sums and partials lie in registers"
    ),
    "N % 8 == 0": "rows of y begin at 16 bytes",
    "K % 128 == 0": "a step of K is one scale block",
}

# us on an H200, fitted to 24 layers of 1 to 640 rows: waves of tiles, steps along K, bytes of w
EXPECTED = (
    "1e9 if M <= 64 < MOST or M > 640 else (lambda tiles, rows: (lambda d: (lambda waves, steps: (3.37 + waves * (steps"
    " * (0.0425 + 4.65e-4 * rows) + 0.41 + 0.0114 * rows) + 2.03e-7 * N * K + 0.79 * (d > 1)) if M <= 64 else 3.26"
    " + waves * (steps * (8.45e-4 * rows + WGS * (0.0516 + 7.12e-4 * rows)) + 0.0111 * WGS * rows)"
    " + 1.345e-7 * N * K + 1.09 * (d > 1))(cdiv(tiles * d, 132 - 4 * (d * CN > 2)), K / 128 / d))"
    "(max(d * (d == 1 or d <= SPLIT and tiles * d * 100 <= (132 - 4 * (d * CN > 2)) * CTAS * FILL"
    " and K >= 256 * KB * d) for d in (1, 2, 3, 4, 8))))"
    "(cdiv(M, MOST) * cdiv(N, 64 * WGS * CN) * CN, cdiv(M, cdiv(M, MOST)))"
)


def schedule(m, n, k, params):
    """Sizes of a tile of x and of its waves, CTAs along K, stages, partials at once, registers of consumers."""
    wgs, kb, cn, ctas = (params[name] for name in ("WGS", "KB", "CN", "CTAS"))
    need = -(-m // -(-m // params["MOST"]))
    tiles = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
    rows = min(size for size in tiles if size >= need and size % (8 * cn) == 0)
    wave = rows if rows <= 128 else rows // 2
    units = -(-m // rows) * -(-n // (64 * wgs * cn)) * cn
    split = params["SPLIT"]
    # a cluster of more than two lies in one GPC, of 16 or 18 multiprocessors
    while split > 1 and (
        units * split * 100 > (132 - 4 * (split * cn > 2)) * ctas * params["FILL"] or k // 128 < 2 * kb * split
    ):
        split = 4 if split == 8 else split - 1
    registers = min(255, 65536 // ctas // (wgs * 128 + 64) // 8 * 8)
    creg = 240 if wgs == 2 and (rows + wave) // 2 > 120 else 0
    free = (creg or registers) - 48 - rows // 2
    parts = max(p for p in (1, 2, 4) if p == 1 or (kb * (rows // wave) % p == 0 and p * wave // 2 <= free))
    sums = -(-rows // 8 // split) * (split - 1) * wgs * 2048
    stage = kb * (wgs * 8192 + rows * 132) + 16
    stages = min(params["STAGES"], (232448 // ctas - 1280 - sums) // stage)
    return rows, wave, split, stages, parts, creg, -(-stages * stage // 128) * 128 + sums


def product(m, n, k, params, w, x, s, t, y, scaled=0):
    """Macros, the launch of the product, and rows of whole tiles. ``s`` has ``scaled`` rows, 0: those of whole tiles,
    since copies of rows that are not there cost more than those of rows nobody wrote."""
    wgs, cn = params["WGS"], params["CN"]
    rows, wave, split, stages, parts, creg, shared = schedule(m, n, k, params)
    whole = -(-m // rows) * rows
    defines = {"ROWS": rows, "WAVE": wave, "DEPTHS": split, "RING": stages, "PARTS": parts, "CREG": creg}
    step = {
        "kernel": "product",
        "grid": -(-m // rows) * -(-n // (64 * wgs * cn)) * split * cn,
        "block": wgs * 128 + (128 if creg else 64),
        "cluster": split * cn,
        "shared": shared,
        "arguments": (
            {"map": w, "box": (64 * wgs, 128), "swizzle": 128},
            {"map": x, "box": (rows // cn, 128), "swizzle": 128},
            s,
            {"i32": scaled or whole},
            t,
            y,
            {"i32": m},
            {"i32": n},
            {"i32": k},
        ),
    }
    return defines, step, whole


def launch(inputs, params):
    options = {"default_device": True}
    if "a_q" in inputs:  # rows are quantised already
        (m, k), n = inputs["a_q"].shape, inputs["b_q"].shape[0]
        defines, step, _ = product(m, n, k, params, "b_q", "a_q", "a_s", "b_s", "c", scaled=m)
        return {"options": options, "defines": defines, "steps": (step,)}
    (m, k), n = inputs["x"].shape, inputs["w_q"].shape[0]
    defines, step, whole = product(m, n, k, params, "w_q", "q", "s", "w_s", "y")
    ahead = {
        "kernel": "quantise",
        "grid": -(-m // 4) * -(-k // 512),
        "block": 256,
        "arguments": ("x", "q", "s", {"i32": m}, {"i32": k}, {"i32": whole}),
        "programmatic": True,
    }
    return {
        "options": options,
        "defines": defines,
        "scratch": {"q": ("float8_e4m3fn", (whole, k)), "s": ("float32", (k // 128, whole))},
        "steps": (ahead, {**step, "programmatic": True}),
    }
