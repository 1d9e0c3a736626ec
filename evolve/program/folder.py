"""The files that are written about a program, ``faster.py`` among them, and the list of programs in a home."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.evolve.program.screen import Ceiling
from tilewright.evolve.report.page import write_atomically
from tilewright.library import launch_replacement
from tilewright.workers.program import ENDED

RECORD, PAGE, FASTER, RECEIPT = "record.json", "program.html", "faster.py", "receipt.json"
KEPT = "search.json"
"""The outcomes by kernel that a stopped search goes on from."""

PROGRAMS = "programs"


def read_json(path: Path) -> dict[str, Any]:
    """A file's object; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def ended_searches(path: Path) -> set[str]:
    """Of a file of outcomes, the launches and options whose search ended the process."""
    kept = read_json(path)
    launches = {name for name, row in kept.get("launches", {}).items() if row["why"] == ENDED}
    return launches | {name for name, noted in kept.get("options", {}).items() if not noted}


def forget_unfinished(path: Path) -> bool:
    """Take what was being searched when the user stopped it out of the file of outcomes; whether there is one."""
    kept = read_json(path)
    if kept:
        kept["launches"] = {name: row for name, row in kept["launches"].items() if row["why"] != ENDED}
        kept["options"] = {name: noted for name, noted in kept["options"].items() if noted}
        write_atomically(path, json.dumps(kept, indent=1))
    return bool(kept)


def mlflow_content(folder: Path, found: Ceiling, searched: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What MLflow gets of a program (``mlflow_mirror.program_runs``). ``searched``: launches with their outcomes."""
    record, receipt = read_json(folder / RECORD), read_json(folder / RECEIPT)
    uid, device = _key(str(folder.resolve())), record["device"]
    metrics = {"step_ms": 1e3 * found.wall, "device_busy_ms": 1e3 * found.busy}
    metrics |= {
        f"ceiling/{re.sub('[^a-z0-9]+', '_', s.name.lower())}": found.factor(s) for s in found.sources if found.busy
    }
    if receipt.get("gain"):
        low, high = receipt["interval"]
        metrics |= {
            "gain": receipt["gain"],
            "gain_low": low,
            "gain_high": high,
            "predicted_gain": receipt["predicted"],
            "step_after_ms": 1e3 * receipt["seconds"],
        }
    kept = {row["label"]: row for row in receipt.get("kept", ())}
    kernels = []
    for row in searched:
        function = f"{row['module']}.{row['name']}"
        figures = {"us": 1e6 * row["seconds"], "kernel_gain": row["gain"], "tried": row["tried"]}
        figures["wrong"] = len(row["wrong"])
        if function in kept:
            figures |= {"step_gain": kept[function]["gain"], "step_gain_low": kept[function]["interval"][0]}
        launch_params = {"function": function, "arguments": row["arguments"]}
        kernels.append(
            {
                "key": _key(f"{uid}/{function}/{row['arguments']}"),
                "name": row["kernel"],
                "metrics": figures,
                "params": {**launch_params, "configuration": str(row["configuration"] or row["why"])},
            }
        )
    files = [str(folder / name) for name in (RECORD, PAGE, RECEIPT, FASTER) if (folder / name).is_file()]
    params = {name: str(device[name]) for name in ("product", "torch", "triton")}
    facts = {"uid": uid, "name": record["name"], "params": params, "metrics": metrics}
    return {**facts, "files": files, "kernels": kernels}


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def note_program(home: Path, folder: Path, name: str, state: str) -> None:
    """Note where a program's files are, for ``tilewright status``. Raises OSError."""
    noted = {"name": name, "folder": str(folder.resolve()), "state": state}
    (home / PROGRAMS).mkdir(parents=True, exist_ok=True)
    write_atomically(home / PROGRAMS / f"{_key(noted['folder'])}.json", json.dumps(noted))


def program_lines(home: Path) -> Iterator[str]:
    """A line for each program whose folder is still there, the one last touched last."""
    paths = sorted((home / PROGRAMS).glob("*.json"), key=lambda path: path.stat().st_mtime)
    for noted in map(read_json, paths):
        folder = Path(str(noted.get("folder", "")))
        if folder.is_dir():
            yield f"program {noted['name']}  {noted['state']}  {_figures(folder)}{folder}"


def _figures(folder: Path) -> str:
    receipt: Mapping[str, Any] = read_json(folder / RECEIPT)
    if receipt.get("gain"):
        low, high = receipt["interval"]
        return f"{receipt['gain']:.3f} x ({low:.3f} to {high:.3f}; {receipt['kind']})  "
    searched = len(read_json(folder / KEPT).get("launches", ()))
    return f"{searched} launch(es) searched  " if searched else ""


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
    program: str, replacements: Sequence[str], layers: str, device: str, proof: Mapping[str, Any] | None
) -> str:
    """The file's text. ``replacements``: the expressions that make them; ``layers``: that of FP8 layers, or empty."""
    verdict = "not proved"
    if proof and proof.get("gain"):
        low, high = proof["interval"]
        verdict = f"proved {proof['gain']:.3f} x end to end ({low:.3f} to {high:.3f}; {proof['kind']})"
    runtime = Path(str(launch_replacement.__file__)).read_text(encoding="utf-8")
    note = (
        f'"""Faster kernels for {program}: {verdict}. Made by tilewright program.\n\n'
        "    import faster; faster.install()      # or: with faster.installed(): ...\n\n"
        "``counts()`` says how often each winner ran. Launches that were not recorded go to the original kernels.\n"
        '"""\n'
    )
    body = runtime.split('"""', 2)[2]
    rows = "".join(f"    {text},\n" for text in replacements)
    made = "LAYERS = None"
    if layers:
        made = "from tilewright_library.torch_linear_replacement import LinearLayers\n\n"
        made += f"LAYERS = {layers}  # blockwise FP8: changes numerics"
    return note + body + _END.format(replacements=rows, device=device, layers=made)
