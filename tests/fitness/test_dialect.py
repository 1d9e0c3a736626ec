"""The first wall: what the syntax tree of a kernel may hold."""

import pytest

from testkit import FIXTURES
from tilewright.fitness import dialect

HONEST = (FIXTURES / "small_gemm/kernels/tiled.py").read_text()
HEAD = "import jax\nimport jax.numpy as jnp\nfrom jax.experimental import pallas as pl\n"
BUILD = HEAD + "def build(params):\n    return params\n"


def said(source, entry="build"):
    return "; ".join(str(violation) for violation in dialect.check(source, entry=entry))


def body(*lines):
    return BUILD + "def helper(x):\n" + "".join(f"    {line}\n" for line in lines)


def test_an_honest_kernel_is_of_the_dialect():
    assert said(HONEST) == ""


def test_cuda_is_for_targets_that_launch():
    assert [("is not compiled for" in said(BUILD + "CUDA = 'x'\n", of)) for of in ("build", "launch")] == [True, False]


@pytest.mark.parametrize(
    "source",
    [
        body("for _ in range(3):", "    x = x + 1", "return x"),
        body("return [y for y in range(x.shape[0])]"),
        body("return jnp.where(x > 0, x, -x).astype(jnp.bfloat16)"),
        body("return x.at[0].set(1.0)"),
        body("return x @ x"),
        "# coding: utf-8\n" + BUILD,
        BUILD + f"X = {'x' * 4096!r}\n",
        BUILD + "TILE = 8 * 16\nKINDS = ('a', 'b')\nF8 = jnp.float8_e4m3fn\n",
        BUILD + "SPACE = {'a': (1, 2)}\nDEFAULTS = {'a': 1}\n",
        BUILD + "def twice(x, *, by=2, dtype=jnp.float32):\n    return x * by\n",
        BUILD + "def call(kernel, num_warps):\n    return kernel(x=1, num_warps=num_warps)\n",
    ],
)
def test_plain_code_is_accepted(source):
    assert said(source) == ""


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("from jax.experimental.pallas import *\n" + BUILD, "import of jax.experimental.pallas.*"),
        ("from . import evil\n" + BUILD, "import from ."),
        ("import jax as jnp2\nimport jax.numpy as jnp2\n" + BUILD, "imported twice"),
        (body("import math", "return math.pi"), "an import inside a function"),
        (BUILD + "X = '\u202e'\n", "a control character"),
        (body("return jax.core.Tracer"), "jax.core"),
        (body("return jnp.linalg.svd(x)"), "jax.numpy.linalg"),
        (body("return pl.debug_print('x')"), "debug_print"),
        (body("return pl.pallas_call(x, out_shape=x, name='a b')"), "not a plain identifier"),
        (body("return pl.pallas_call(x, out_shape=x, name='a' + x)"), "not a plain identifier"),
        (body("return type(x)"), "the name type"),
        (body("return jnp.zeros(x, num_warps=4)"), "the keyword argument num_warps"),
        (body("return x._trace"), "_trace"),
        (body("jnp.dot = x"), "assignment to jax.numpy.dot"),
        (body("jnp = x", "return jnp"), "bound again"),
        (body("range = x", "return range"), "bound again"),
        (body("m = jax", "return m"), "the module jax used as a value"),
        (body("return x(pl)"), "the module pl used as a value"),
        (body("global x2", "x2 = x"), "a global statement"),
        (body("with x:", "    return x"), "a with statement"),
        (body("return DEFAULTS"), "DEFAULTS is for the search"),
        (BUILD + "CACHE = {}\n", "a module-level constant is"),
        (BUILD + "CACHE = []\n", "a module-level constant is"),
        (BUILD + "X = jnp.zeros(3)\n", "a module-level constant is"),
        (BUILD + "SPACE = {'a': helper()}\n", "literals"),
        (BUILD + "def _f(x):\n    return x\n", "starts with an underscore"),
        (HEAD, "0 functions called build"),
        (HEAD + "def build(params, more):\n    return params\n", "build takes exactly 1"),
        (HEAD + "@jax.jit\ndef build(params):\n    return params\n", "undecorated"),
        ("x = (", "not Python"),
        ("x = 1\0", "not Python"),
        *((BUILD + f"X = {'x' * length!r}\n", "a string of more than 4096 characters") for length in (4097, 9000)),
        (BUILD + "# " + "x" * 70000, "bytes, at most"),
        (BUILD + "X = " + "(" * 90 + "1" + ",)" * 90 + "\n", "nests deeper"),
        (BUILD + "X = (" + "1," * 30000 + ")\n", "syntax nodes"),
        ("X = (" + "1," * 30000 + ")\n", "syntax nodes"),
    ],
)
def test_an_escape_is_named(source, why):
    assert why in said(source)


def test_a_name_is_reported_where_it_is_seen():
    functions = ("def one(lost):\n    return lost\n", "def two(x):\n    return lost\n")
    source = BUILD + "".join((*functions, functions[0].replace("one", "three")))
    assert said(source) == f"line {BUILD.count(chr(10)) + 4}: the name lost is not defined here"


LAUNCH = "import triton\ndef launch(inputs, params):\n    x = inputs['x']\n    {}\n    return (x,)\n"


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("n = len(str(x))", True),
        ("n = len(f'{x}')", True),
        ("n = len('%s' % x)", True),
        ("A = len('%s' % x)", True),
        ("n = ('%s', 1)[0] % x", True),
        ("n = params['mode'] % x#DEFAULTS = {'mode': '%s'}", True),
        ("n = isinstance(1, (int, (t := f'{x}')))", True),
        ("n = 'a rest of {}'#CONSTRAINTS = {'n % 2 == 0': 'even'}", False),
        ("n = list(map(str, (x,)))", True),
        ("n = len(f'plain')", False),
        ("n = x.shape[0] % 2", False),
        ("assert x.shape[0] > 1, f'{x.shape} is too short'", False),
        ("n = isinstance(params['mode'], (str, int))", False),
    ],
)
def test_launch_makes_no_text_of_values(line, refused):
    line, _, declared = line.partition("#")
    found = said(LAUNCH.format(line) + declared + "\n", "launch")
    assert ("text made of values" in found) is refused and "not Python" not in found
