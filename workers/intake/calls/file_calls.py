"""The calls that a user's file makes, as texts, and their values.

``python -m tilewright.workers.intake.calls.file_calls OF VALUES FILE NAME ...``. OF is the file of the function that is
called, whose package the calls may import although parts of it are not installed; VALUES is the file to write tensors
to (see ``kept_values``), or empty; NAME may be empty.

A FILE runs once, in this process. It holds its calls under ``calls``, or makes them in a function of that name: a list
of tuples of arguments, of which the last may be a dictionary of keywords; one such tuple will do, and so will texts as
``--args`` has them. ``get_inputs`` and ``inputs`` are one call. Where there is no GPU, tensors asked for on one
are made on the host.
"""

import contextlib
import json
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tilewright.workers.intake.calls.call_values import arguments_of, call_text, value_text
from tilewright.workers.intake.calls.kept_values import values_of, write
from tilewright.workers.intake.source.load import package_of

NAMES = ("calls", "CALLS", "get_calls")
ONE = ("get_inputs", "inputs", "create_inputs", "args")
"""Names of many calls, and of one."""


@contextlib.contextmanager
def _on_host() -> Iterator[None]:
    """While it is entered, tensors that are asked for on a GPU lie on the host, where there is none."""
    import torch
    from torch.overrides import TorchFunctionMode

    def is_gpu(value: Any) -> bool:
        return isinstance(value, str | torch.device) and str(value).startswith("cuda")

    class OnHost(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            name = getattr(func, "__name__", "")
            if name == "cuda":
                return args[0]
            given = [torch.device("cpu") if is_gpu(a) else a for a in args] if name == "to" else args
            options = {k: torch.device("cpu") if k == "device" and is_gpu(v) else v for k, v in (kwargs or {}).items()}
            return func(*given, **options)

    if torch.cuda.is_available():
        yield
        return
    plain = torch.Generator
    with OnHost(), mock.patch.object(torch, "Generator", side_effect=lambda *_, **__: plain()):
        yield


def calls(path: Path, name: str = "", torch: bool = True, bare: bool = False) -> list[Any]:
    """The calls of a file, which may use ``torch``: its import takes seconds. Raises LookupError where it has none, and
    whatever the file raises."""
    sys.path[:0] = [str(Path.cwd()), str(path.parent)]
    with _on_host() if torch else contextlib.nullcontext():
        return _calls(path, name, bare and torch)


def _calls(path: Path, name: str, bare: bool) -> list[Any]:
    module = runpy.run_path(str(path))
    found = next((n for n in ((name,) if name else (*NAMES, *ONE)) if n in module), None)
    if found is None:
        wanted = f"named {name}" if name else f"no {' or '.join((*NAMES, *ONE))}"
        raise LookupError(f"{path.name} has {'nothing ' if name else ''}{wanted}")
    value = module[found]
    if callable(value):
        made = _without_memory(value) if bare else None
        value = value() if made is None else made
    many = isinstance(value, list) and value and all(isinstance(c, tuple | list | dict | str) for c in value)
    return list(value) if many and (found not in ONE or isinstance(value[0], tuple)) else [value]


def _without_memory(make: Callable[[], Any]) -> Any:
    """What a function makes, on tensors without memory; None where it, or the text, asks for their values."""
    import torch

    with contextlib.suppress(Exception), torch.device("meta"):
        made = make()
        value_text(made)
        return made
    return None


def main() -> None:
    """Write the texts as JSON, and the values; of a file without calls, one sentence."""
    answer: dict[str, Any]
    of, values, *places = sys.argv[1:]
    rows: dict[str, list[Any]] = {}
    text = Path(of).read_text(encoding="utf-8-sig") if of else ""
    torch = "triton" in text or "pallas" not in text
    file = ""
    try:
        if of and (package := package_of(Path(of))) is not None:
            sys.meta_path.insert(0, package)
        for file, name in zip(places[::2], places[1::2], strict=True):
            for made in calls(Path(file), name, torch, not values):
                if isinstance(made, str):
                    rows.setdefault(made, [])
                    continue
                given = arguments_of(made)
                if "<run_path>" in (call := call_text(*given)):
                    raise LookupError("a class of this file is an argument's; put it into a module to import")
                rows.setdefault(call, values_of(*given) if values else [])
        answer = {"calls": list(rows)}
        if values:
            write(Path(values), list(rows.values()))
    except Exception as error:  # noqa: BLE001 - whatever the user's file raises is told
        why = str(error) if isinstance(error, LookupError) else f"it raises {type(error).__name__}: {error}"
        if isinstance(error, SyntaxError):
            why += f"; this is Python {sys.version.split()[0]}, and that file may be written for a newer one"
        answer = {"why": f"{file}: {why}"}
    sys.stderr.flush()
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
