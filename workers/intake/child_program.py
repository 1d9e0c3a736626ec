"""What the intake's programs share: one request as JSON on stdin, one answer as JSON on stdout."""

import importlib.util
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.workers.intake.calls.objects import absent

Request = Mapping[str, Any]
Answer = dict[str, Any]


class Refusal(Exception):
    """Why a function cannot be tuned. ``line`` of the user's file, 0 if unknown."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(what)
        self.what, self.line = what, line


def show_step(step: str) -> None:
    """Name this process after what it does now, in at most 15 characters: whoever waits for it may read that."""
    Path("/proc/self/comm").write_text(step)


def undefined(file: str, name: str, module: object) -> Refusal:
    """Of a name that a file does not define."""
    return Refusal(absent(file, name, module))


def refused(what: str, line: int = 0, **more: object) -> Answer:
    """The answer that holds one refusal."""
    return {"refusals": [{"line": line, "what": what, **more}]}


def loaded_module(path: Path) -> ModuleType:
    """A winner's module."""
    spec = importlib.util.spec_from_file_location(f"tilewright_tuned_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


def first_line(error: BaseException) -> str:
    """An exception as one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def answer_request(answer_to: Callable[[Request], Answer], own_folder: bool = False) -> None:
    """Read a request, write the answer. Exceptions become refusals, with the user's line that raised.

    ``own_folder``: the line may be of any file in the folder of the request's file, else of that file alone.
    """
    request = json.load(sys.stdin)
    show_step("loading it")
    sys.path.append(os.getcwd())
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the user's code prints is no answer
    try:
        answer = answer_to(request)
    except Refusal as refusal:
        answer = refused(refusal.what, refusal.line)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        if isinstance(error, LookupError) and str(error).startswith("--reference"):
            answer = refused(str(error))
        else:
            traceback.print_exc()
            path = Path(request["path"])
            answer = {"refusals": [refusal_of(error, str(path.resolve().parent if own_folder else path))]}
    json.dump(answer, out)
    out.close()
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(0)  # torch takes most of a second to end


def refusal_of(error: Exception, home: str) -> dict[str, Any]:
    """The refusal of a call that raises: the exception, and the last line below ``home`` that it left."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(home)]
    place: dict[str, Any] = {"line": 0}
    if frames:
        place = {"line": frames[-1].lineno or 0, "file": frames[-1].filename}
    first, _, rest = str(error).strip().partition("\n")
    text = f"{first} {' '.join(rest.split())}" if first.endswith(":") else first
    text = text[:200] or (frames[-1].line or "" if frames else "")
    return {**place, "what": f"the call raises {type(error).__name__}: {text}"}
