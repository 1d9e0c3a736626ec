"""A promoted operator as a Python package of its own: the promoted kernels, the rule that chooses one, and the receipt.

The package needs torch and Triton, or JAX, and nothing else. It has no reference implementation: a shape that no kernel
serves raises an error.
"""

from __future__ import annotations

import re
from importlib import resources

from tilewright.evolve.export.promoted import Disagreement, PromotedTable

_HEAD = '''"""{operator} for {target}: the promoted kernel that serves a shape. What was verified where: receipt.json.

    from {package} import run
    {results} = run({inputs})

Operands: {operands}. Raises LookupError for a shape that no kernel serves.
"""

from __future__ import annotations

{imports}

DIMENSIONS = {dimensions!r}
OPERANDS = read({shapes!r}, DIMENSIONS)
CONSTANTS = {constants!r}
REACH = {reach!r}
RECEIPT = {receipt!r}

KERNELS = {{
{kernels}
}}
"""Name to (module, parameters, constraints)."""

REGIONS = [
{regions}
]
"""Verified shapes, each with the kernel that serves its surroundings."""

SHARES = {shares}
"""Of the roofline, by region."""

_ENTRIES = [
    (dims, Legality(KERNELS[name][2], {{**CONSTANTS, **KERNELS[name][1]}})) for _, dims, name in REGIONS
]
_CHOSEN: dict = {{}}


def serves(*dims: int) -> str:
    """The name of the kernel that serves these dimensions. Raises LookupError."""
    return REGIONS[nearest(_ENTRIES, dict(zip(DIMENSIONS, dims, strict=True)), REACH, SHARES)][2]


def _inputs(given):
    for operand, array in zip(OPERANDS.inputs, given, strict=True):
        if str(array.dtype).removeprefix("torch.") != operand.dtype:
            raise TypeError(f"{{operand.name}} must be {{operand.dtype}}, not {{array.dtype}}")
    return OPERANDS.dims([tuple(array.shape) for array in given])

'''

_TORCH = '''
def run({inputs}):
    """{results}, on the device of the operands."""
    given = [tensor.contiguous() for tensor in ({inputs},)]
    dims = _inputs(given)
    if dims not in _CHOSEN:
        _CHOSEN[dims] = KERNELS[serves(*dims)]
    module, params, _ = _CHOSEN[dims]
    device = given[0].device
    with torch.device(device), torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        found = module.launch(dict(zip({names!r}, given, strict=True)), dict(params))
    return found[0] if len(found) == 1 else tuple(found)
'''

_JAX = '''
def run({inputs}):
    """{results}; also under ``jit``: the kernel is chosen while tracing."""
    given = ({inputs},)
    dims = _inputs(given)
    if dims not in _CHOSEN:
        module, params, _ = KERNELS[serves(*dims)]
        _CHOSEN[dims] = module.build(dict(params))
    return _CHOSEN[dims](*given)
'''


def of_operator(table: PromotedTable) -> dict[str, str]:
    """Path to text of the package. Raises Disagreement."""
    name = package_name(table)
    init = f'"""{table.operator} for {table.target}; see main."""\n\nfrom .main import run, serves\n\n'
    init += '__all__ = ["run", "serves"]\n'
    return {f"{name}/{path}": text for path, text in {"__init__.py": init, **modules(table)}.items()}


def package_name(table: PromotedTable) -> str:
    """``gemm_fp8_blockwise_gemm_nt_h200``."""
    return re.sub(r"\W", "_", f"{table.operator}_{table.target}")


def modules(table: PromotedTable) -> dict[str, str]:
    """File to text: ``main.py`` with ``run``, and what it needs. Raises Disagreement."""
    if table.language not in ("triton", "gluon", "pallas"):
        raise Disagreement(f"{table.operator} is in {table.language}, which has no launcher of its own.")
    pallas, kernels = table.language == "pallas", table.kernels.values()
    inputs, outputs = table.operands.inputs, table.operands.outputs
    imports = ["import jax  # noqa: F401"] if pallas else ["import contextlib", "", "import torch"]
    imports += ["", *(f"from . import {kernel.module}" for kernel in kernels)]
    imports += ["from .dispatch_rule import Legality, nearest", "from .operands import read"]
    entries = (f"    {k.name!r}: ({k.module}, {dict(k.params)!r}, {k.constraints!r})," for k in kernels)
    regions = (f"    ({workload!r}, {dict(dims)!r}, {kernel!r})," for workload, dims, kernel in table.regions)
    fields = {
        "package": package_name(table),
        "operator": table.operator,
        "target": table.target,
        "inputs": ", ".join(operand.name for operand in inputs),
        "results": ", ".join(operand.name for operand in outputs),
        "operands": "; ".join(f"{o.name} {o.dtype} [{', '.join(o.shape)}]" for o in (*inputs, *outputs)),
        "imports": "\n".join(imports),
        "dimensions": table.dimensions,
        "shapes": table.operands.data(),
        "constants": dict(table.constants),
        "reach": table.reach,
        "receipt": table.receipt_name,
        "kernels": "\n".join(entries),
        "regions": "\n".join(regions),
        "shares": list(table.shares) if table.shares else None,
        "names": [operand.name for operand in inputs],
    }
    return {
        "main.py": _HEAD.format(**fields) + (_JAX if pallas else _TORCH).format(**fields),
        **{f"{kernel.module}.py": kernel.source for kernel in kernels},
        "dispatch_rule.py": _source("dispatch_rule.py"),
        "operands.py": _source("operands.py"),
        "receipt.json": table.receipt.decode("utf-8"),
    }


def _source(name: str) -> str:
    return resources.files("tilewright.library").joinpath(name).read_text("utf-8")
