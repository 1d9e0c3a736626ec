"""Intake processes that are forked from one which has imported torch or JAX, two seconds of each."""

import functools
import json
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.evolve.intake.child import MAIN, PALLAS, Intake
from tilewright.workers.child.launch import interpreter_environment

SERVER = """
import gc, importlib, json, os, sys
program = importlib.import_module(f"tilewright.workers.intake.{sys.argv[1]}")
gc.freeze()
gc.set_threshold(20_000, 20, 100)
for line in sys.stdin:
    folder, cwd, environment = json.loads(line)
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(environment)
            for number, (name, how) in enumerate((("in", "rb"), ("out", "wb"), ("err", "wb"))):
                with open(f"{folder}/{name}", how) as file:
                    os.dup2(file.fileno(), number)
            sys.stdin = os.fdopen(0)
            if sys.argv[1] == "triton.program":
                program.without_compiler()
            program.answer_request(program.answer_to, own_folder=sys.argv[1] == "pallas.program")
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.waitpid(pid, 0)
    print("done", flush=True)
"""


class WarmIntake(Intake):
    """An ``Intake`` of a process that serves all tests and forks for each request."""

    def __init__(self, program: str = MAIN, interpreted: bool = True, *imported: str) -> None:
        self._own: Intake | None = None
        self.program = program
        if program not in (MAIN, PALLAS) or not interpreted:
            self._own = Intake(program, interpreted, *imported)

    def answer(self, request: Mapping[str, Any], seconds: float, meanwhile: Callable[[], None]) -> tuple[bytes, bytes]:
        if self._own is not None:
            return self._own.answer(request, seconds, meanwhile)
        meanwhile()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "in").write_text(json.dumps(request))
            server = _server(self.program)
            assert server.stdin is not None and server.stdout is not None
            server.stdin.write(json.dumps([name, str(Path.cwd()), interpreter_environment()]) + "\n")
            server.stdin.flush()
            assert server.stdout.readline() == "done\n"
            return (folder / "out").read_bytes(), (folder / "err").read_bytes()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()


@functools.cache
def _server(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=interpreter_environment(),
    )
    weakref.finalize(process, process.communicate)
    return process
