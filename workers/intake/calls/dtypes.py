"""Names of dtypes, as torch and ml_dtypes spell them."""

from typing import Any

import ml_dtypes
import numpy as np

EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
"""Those that numpy does not have."""


def numpy_dtype(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name)) if name in EXTENDED else np.dtype(name)


def is_float(name: str) -> bool:
    return name.startswith(("float", "bfloat"))


def is_narrow(name: str) -> bool:
    """Whether it is a float of eight bits."""
    return name.startswith("float8")
