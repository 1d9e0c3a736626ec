"""Functions of the device's library, and what the kernel's language says in their place."""

import ast

_OWN = (
    "abs exp exp2 log log2 sqrt rsqrt sin cos erf floor ceil fma div_rn sqrt_rn umulhi fdiv maximum minimum "
    "fast_expf=exp fast_logf=log fast_sinf=sin fast_cosf=cos fast_dividef=fdiv fast_log2f=log2 fmax=maximum "
    "fmin=minimum llabs=abs rsqrt_rn=rsqrt max=maximum min=minimum div_full=fdiv fabs=abs"
)
SAME = {name.partition("=")[0]: f"tl.{name.rpartition('=')[2]}" for name in _OWN.split()}
"""Functions of the device's library that the language has itself."""

OLD_HOMES = ("tl.libdevice", "tl.math", "tl.extra.cuda.libdevice", "triton.language.libdevice", "triton.language.math")
"""Where the library's functions once stood."""

WRITTEN = {
    "tanh": "def tanh(x):\n    return 2.0 * tl.sigmoid(2.0 * x) - 1.0\n",
    "log1p": "def log1p(x):\n    return tl.log(1.0 + x)\n",
    "expm1": "def expm1(x):\n    return tl.exp(x) - 1.0\n",
    "pow": "def pow_of(x, y):\n    y = tl.zeros_like(x) + y\n    size = tl.exp2(y * tl.log2(tl.abs(x)))\n"
    "    odd = y - 2.0 * tl.floor(y * 0.5) == 1.0\n    return tl.where((x < 0) & odd, -size, size)\n",
    "pow2": "def power_2(x):\n    return x * x\n",
    "pow3": "def power_3(x):\n    return x * x * x\n",
    "pow4": "def power_4(x):\n    x2 = x * x\n    return x2 * x2\n",
    "rint": "def rint(x):\n    return (x.to(tl.float32) + 12582912.0) - 12582912.0\n",
    "nearbyint": "def rint(x):\n    return (x.to(tl.float32) + 12582912.0) - 12582912.0\n",
    "trunc": "def trunc(x):\n    return tl.where(x >= 0, tl.floor(x), tl.ceil(x))\n",
    "round": "def round_away(x):\n    return tl.where(x >= 0, tl.floor(x + 0.5), tl.ceil(x - 0.5))\n",
    "llrint": "def whole(x):\n    return ((x.to(tl.float32) + 12582912.0) - 12582912.0).to(tl.int64)\n",
    "llround": "def whole_away(x):\n    return tl.where(x >= 0, tl.floor(x + 0.5), tl.ceil(x - 0.5)).to(tl.int64)\n",
    "isinf": 'def isinf(x):\n    return tl.abs(x) == float("inf")\n',
    "isfinited": 'def isfinite(x):\n    return tl.abs(x) < float("inf")\n',
    "finitef": 'def isfinite(x):\n    return tl.abs(x) < float("inf")\n',
    "sigmoid": "def sigmoid_of(x):\n    return tl.sigmoid(x)\n",
    "cosh": "def cosh(x):\n    return 0.5 * (tl.exp(x) + tl.exp(-x))\n",
    "sinh": "def sinh(x):\n    return 0.5 * (tl.exp(x) - tl.exp(-x))\n",
    "tan": "def tan(x):\n    return tl.sin(x) / tl.cos(x)\n",
    "exp10": "def exp10(x):\n    return tl.exp2(x * 3.321928094887362)\n",
    "log10": "def log10(x):\n    return tl.log2(x) * 0.3010299956639812\n",
    "hypot": "def hypot(x, y):\n    return tl.sqrt(x * x + y * y)\n",
    "fmod": "def fmod(x, y):\n    q = x / y\n    return x - y * tl.where(q >= 0, tl.floor(q), tl.ceil(q))\n",
    "copysign": "def copysign(x, y):\n    return tl.where(y < 0, -tl.abs(x), tl.abs(x))\n",
    "erfc": "def erfc(x):\n    return 1.0 - tl.erf(x)\n",
    "isnan": "def isnan(x):\n    return x != x\n",
    "mul_rn": "def mul_rn(x, y):\n    return x * y\n",
    "add_rn": "def add_rn(x, y):\n    return x + y\n",
    "float2int_rd": "def float2int_rd(x):\n    return tl.floor(x).to(tl.int32)\n",
    "float2int_rn": "def float2int_rn(x):\n    return ((x.to(tl.float32) + 12582912.0) - 12582912.0).to(tl.int32)\n",
    "int2float_rn": "def int2float_rn(x):\n    return x.to(tl.float32)\n",
    "ilogb": "def ilogb(x):\n    bits = tl.abs(x).to(tl.int32, bitcast=True)\n"
    "    scaled = (tl.abs(x) * 8388608.0).to(tl.int32, bitcast=True)\n"
    "    power = tl.where(bits < 8388608, (scaled >> 23) - 150, (bits >> 23) - 127)\n"
    "    power = tl.where(bits >= 2139095040, 2147483647, power)\n"
    "    return tl.where((bits == 0) | (bits > 2139095040), -2147483648, power)\n",
}
"""Functions of the device's library that the language can say. What rounds by an addition does so in float32: 64 bits
would keep the fraction, and 16 would overflow."""

WRITTEN["fast_powf"] = WRITTEN["pow"]


def whole_exponent(node: ast.Call) -> int:
    """A whole exponent that a few products say; else 0."""
    last = node.args[-1] if len(node.args) == 2 else None
    value = last.value if isinstance(last, ast.Constant) else 0
    return value if isinstance(value, int) and value in (2, 3, 4) else 0
