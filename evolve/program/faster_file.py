"""``faster.py``: replacements as one plain Python file, which imports torch and Triton, and for FP8 the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.library import launch_replacement

_END = """
REPLACEMENTS = [
{replacements}]
DEVICE = {device!r}
{layers}
_INSTALLATION = Installation(REPLACEMENTS, DEVICE, LAYERS)
install, uninstall, installed, counts = (
    _INSTALLATION.install, _INSTALLATION.uninstall, _INSTALLATION.installed, _INSTALLATION.counts
)
"""


def faster_text(
    program: str, replacements: Sequence[str], fp8_shapes: Sequence[Sequence[int]], device: str,
    proof: Mapping[str, Any] | None,
) -> str:  # fmt: skip
    """The file's text. ``replacements``: the expressions that make them."""
    told = "not proved"
    if proof and proof.get("gain"):
        low, high = proof["interval"]
        told = f"proved {proof['gain']:.3f} x end to end ({low:.3f} to {high:.3f}; {proof['kind']})"
    runtime = Path(str(launch_replacement.__file__)).read_text(encoding="utf-8")
    note = (
        f'"""Faster kernels for {program}: {told}. Made by tilewright program.\n\n'
        "    import faster; faster.install()      # or: with faster.installed(): ...\n\n"
        "``counts()`` says how often each winner ran. Launches that were not recorded go to the original kernels.\n"
        '"""\n'
    )
    body = runtime.split('"""', 2)[2]
    rows = "".join(f"    {text},\n" for text in replacements)
    layers = "LAYERS = None"
    if fp8_shapes:
        layers = "from tilewright_library.torch_linear_replacement import LinearLayers\n\n"
        layers += (
            f"LAYERS = LinearLayers({list(map(tuple, fp8_shapes))!r})  # blockwise FP8: changes numerics"
        )
    return note + body + _END.format(replacements=rows, device=device, layers=layers)
