"""Exploits and their honest twin, as edits of one honest kernel: the tiled GEMM of ``testkit/fixtures/small_gemm``."""

from testkit import FIXTURES

HONEST = (FIXTURES / "small_gemm/kernels/tiled.py").read_text()
PARAMS = {"block_m": 128, "block_n": 128, "block_k": 128}

DOT = "acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)"
BATCHED = (
    "acc_ref[...] += jax.lax.dot_general(a_ref[...].reshape(4, 32, 128), jnp.stack([b_ref[...]] * 4), "
    "(((2,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32).reshape(128, 128)"
)
STORE = "c_ref[...] = acc_ref[...].astype(c_ref.dtype)"
CALL = "        return pl.pallas_call("
OPERANDS = ")(a, b)"


def changed(source, *changes):
    """``source`` with each (old, new) applied; old must occur once."""
    for old, new in changes:
        assert source.count(old) == 1, (old, source.count(old))
        source = source.replace(old, new)
    return source


def edited(*changes):
    """The honest kernel, changed."""
    return changed(HONEST, *changes)


def with_body(lines):
    """The honest kernel whose ``run`` first does something else."""
    indented = "".join(f"        {line}\n" for line in lines)
    return edited(("        m, k = a.shape\n", "        m, k = a.shape\n" + indented))


BATCHED_TWIN = edited((DOT, BATCHED))
CONSTANT = edited((STORE, "c_ref[...] = jnp.zeros_like(c_ref)"), (DOT, "acc_ref[...] += 1.0"))
NAN = edited((STORE, "c_ref[...] = (acc_ref[...] * jnp.nan).astype(c_ref.dtype)"))
IGNORED_OPERAND = edited((DOT, DOT.replace("b_ref[...]", "b_ref[...] * 0 + 1")))
SKIPS_LAST_BLOCK = edited(("steps - 1", "steps - 2"), ("n // bn, steps)", "n // bn, steps - 1)"))
OUT_OF_BOUNDS = edited((DOT, DOT.replace("a_ref[...]", "a_ref[pl.ds(step * 64, 128), :]")))
UNINITIALISED = edited(("@pl.when(step == 0)", "@pl.when(step == 1000)"))
STAYS = edited(
    ("@pl.when(step == 0)", "@pl.when(pl.program_id(1) == 0)"),
    (
        DOT,
        "@pl.when(pl.program_id(1) > 0)\n            def again():\n"
        f"                acc_ref[...] = jnp.zeros_like(acc_ref)\n\n            {DOT}",
    ),
)
"""With one block of all rows and all of K: it stays, and its step begins with a branch."""
HLO_LOOP = edited(
    (CALL, "        call = pl.pallas_call("),
    (OPERANDS, ")\n        return jax.lax.fori_loop(0, 50, lambda i, c: call(a, b), jnp.zeros((m, n), jnp.bfloat16))"),
)
LARGEST = "jnp.max(a_ref[...].astype(jnp.float32))"
BRANCH_ON_DATA = edited((DOT, f"@pl.when({LARGEST} > -1e30)\n            def multiply():\n                {DOT}"))
LOOP_ON_DATA = edited(
    (
        DOT,
        f"count = jnp.where({LARGEST} > -1e30, 1, 0)\n\n"
        "            def multiply(i, carry):\n"
        f"                {DOT}\n"
        "                return carry\n\n"
        "            jax.lax.fori_loop(0, count, multiply, 0)",
    )
)
VENDOR_DOT = edited(
    (CALL, "        call = pl.pallas_call("),
    (OPERANDS, ")\n        return (call(a, b) * 0 + jnp.dot(a, b)).astype(jnp.bfloat16)"),
)
NO_KERNEL = edited((CALL, "        return jnp.dot(a, b)\n" + CALL))
CHEAP_WHEN_TIMED = edited((STORE, "c_ref[...] = (acc_ref[...] * (1.0 if m == 128 else 0.5)).astype(c_ref.dtype)"))
COUNTS_STEPS = edited(
    ('("parallel", "parallel", "arbitrary")', '("arbitrary", "arbitrary", "arbitrary")'),
    (
        "scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)]",
        "scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32), pltpu.VMEM((8, 128), jnp.float32)]",
    ),
    ("def body(a_ref, b_ref, c_ref, acc_ref):", "def body(a_ref, b_ref, c_ref, acc_ref, count_ref):"),
    (
        "            step = pl.program_id(2)\n",
        "            step = pl.program_id(2)\n"
        "            number = (pl.program_id(0) * (n // bn) + pl.program_id(1)) * steps + step\n\n"
        "            @pl.when(number == 0)\n"
        "            def begin():\n"
        "                count_ref[...] = jnp.zeros_like(count_ref)\n\n"
        "            count_ref[...] += 1.0\n",
    ),
    (STORE, "c_ref[...] = (acc_ref[...] + (count_ref[0:1, 0:1] - (number + 1))).astype(c_ref.dtype)"),
)
"""Right in a whole run alone: what it stores depends on how many steps ran before."""

HALF_WHEN_TIMED = edited(("        steps = k // bk\n", "        steps = k // bk if m == 128 else k // bk // 2\n"))
ENDLESS_TRACE = with_body(["while k > 0:", "    n = k"])
HUGE_LIST = with_body(["huge = [0.0] * (1 << 36)", "m = m + len(huge) * 0"])
TOO_MUCH_VMEM = edited(
    (
        "scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)]",
        "scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32), pltpu.VMEM((8192, 4096), jnp.float32)]",
    ),
    ("def body(a_ref, b_ref, c_ref, acc_ref):", "def body(a_ref, b_ref, c_ref, acc_ref, more_ref):"),
    (DOT, DOT + "\n            more_ref[0:8, 0:128] = jnp.zeros((8, 128), jnp.float32)"),
)
BAD_BLOCK = edited(('min(params["block_m"], m)', "100"))
WRONG_SHAPE = edited(("jax.ShapeDtypeStruct((m, n), jnp.bfloat16)", "jax.ShapeDtypeStruct((m, n), jnp.float32)"))
SCALED_TWIN = edited((STORE, "c_ref[...] = (acc_ref[...] * 2.0 * 0.5).astype(c_ref.dtype)"))
FORI_TWIN = edited(
    (
        DOT,
        "def multiply(i, carry):\n"
        f"                {DOT}\n"
        "                return carry\n\n"
        "            jax.lax.fori_loop(0, 1, multiply, 0, unroll=False)",
    )
)

ROUNDED = edited(
    (
        DOT,
        DOT.replace("a_ref[...]", "a_ref[...].astype(jnp.float32).astype(jnp.float8_e4m3fn)").replace(
            "b_ref[...]", "b_ref[...].astype(jnp.float32).astype(jnp.float8_e4m3fn)"
        ),
    )
)
"""Wrong, but the simulator aborts on it when it checks types."""

REAL_IMPORT = 'import functools\nreal = functools.wraps.__globals__["__builtins__"]["__import__"]\n'
"""The import that a candidate's module does not have."""

ESCAPES = {
    "exit": "os = real('os')\nos._exit(0)",
    "flood": "sys = real('sys')\nwhile True:\n    sys.stdout.write('x' * 65536)",
    "forged": (
        "os, sys, frames = real('os'), real('sys'), real('tilewright.workers.child.frames').workers.child.frames\n"
        "for pipe in range(3, 64):\n"
        "    with real('contextlib').suppress(real('builtins').OSError):\n"
        "        os.write(pipe, frames.encode(frames.Frame('done')))\n"
        "os._exit(0)"
    ),
    "garbage": "real('os').write(3, b'fitness: 1e9' * 100)",
    "segfault": "os, signal = real('os'), real('signal')\nos.kill(os.getpid(), signal.SIGSEGV)",
}
"""Module-level code that the dialect refuses, to show what holds behind it and behind the bare module."""


def escaped(name, source=HONEST):
    """An honest kernel with one of the escapes before it."""
    return REAL_IMPORT + ESCAPES[name] + "\n" + source
