"""A program as users see it: recorded, its ceiling said, tuned, proved, and written as ``faster.py``."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.program import folder as files
from tilewright.evolve.program.screen import Ceiling, ceiling, figure_kind, page
from tilewright.evolve.record.home import home_folder
from tilewright.workers.child.launch import own_environment

if TYPE_CHECKING:
    from tilewright.evolve.intake.winner import Tuned

MOST_ENDS = 4
"""Processes that a search may end, one after another."""

LEAST_WALL = 900.0
"""Seconds that the process may take beside its budgets."""


@dataclass
class Program:
    """A step of a file, and the folder that what is found about it is written to.

    Parameters:
        path: the file.
        step: the function of the file that is one step.
        setup: the function of the file whose result the step takes; empty for a step without arguments.
        folder: where record, report and ``faster.py`` go; made when the first of them is written. A search that was
            stopped goes on from what it left there.
        home: the folder in which ``tilewright status`` and MLflow find the program.

    Example:
        program = tw.program("train.py:step", setup="setup")
        print(program.ceiling().sources)
        program.prove(seconds=120, fp8=True)
    """

    path: Path
    step: str
    setup: str = ""
    folder: Path = Path("step_faster")
    home: Path = Path(".tilewright")
    answer: dict[str, Any] = field(default_factory=dict)

    def record(self) -> Mapping[str, Any]:
        """Run the step a few times and say where its time goes: kernels, launches, linear layers, device.

        Raises:
            UserError: the step fails, or launches nothing.
        """
        if "record" not in self.answer:
            self._ask(part="record")
        found: Mapping[str, Any] = self.answer["record"]
        return found

    def ceiling(self) -> Ceiling:
        """The most that each source of gain could give to the step. Nothing is searched for it."""
        return ceiling(self.record())

    def tune(self, seconds: float = 60.0) -> list[Mapping[str, Any]]:
        """Search a faster configuration of each Triton kernel, and write ``faster.py`` with what was found.

        Parameters:
            seconds: the budget of the search.

        Returns:
            A row for each launch that was searched: kernel, arguments, seconds, gain with its interval.
        """
        self._ask(part="tune", seconds=seconds)
        self._write(proof=None)
        self._note("tuned")
        return list(self.answer["found"])

    def prove(
        self,
        seconds: float = 60.0,
        prove_seconds: float = 90.0,
        fp8: bool | str = False,
        faster: str | Path | None = None,
        winners: Sequence["str | Path | Tuned"] = (),
    ) -> Mapping[str, Any]:
        """Tune, prove each replacement in the step, take out what does not pay, and write ``faster.py``.

        Parameters:
            seconds: the budget of the search.
            prove_seconds: the budget of the proof, with the comparison of answers.
            fp8: replace linear layers by the library's blockwise FP8 too, which changes numerics. ``"kept"``: the
                weights of a step that differentiates nothing do not change, and are quantised once.
            faster: a file whose ``REPLACEMENTS`` are proved instead of searched ones.
            winners: what ``tilewright.tune`` returned, or its files: each is proved in place of its function.

        Returns:
            The proof: ``gain`` with ``interval``, what was ``kept`` and what was ``left_out`` with reasons.
        """
        given = str(Path(faster).resolve()) if faster is not None else ""
        paths = [str((Path(w) if isinstance(w, str | Path) else w.module).resolve()) for w in winners]
        if len({Path(path).name for path in paths}) < len(paths):
            raise UserError(
                "--winner: two files have one name, under which they would lie beside faster.py; rename one."
            )
        self._ask(part="prove", seconds=seconds, prove_seconds=prove_seconds, fp8=fp8, faster=given, winners=paths)
        proof: dict[str, Any] = {**self.answer["proof"], "kind": figure_kind(self.answer["record"])}
        self._write(proof)
        self._note("proved")
        return proof

    def mirror(self) -> str:
        """Write the program into MLflow: a run with a child for each kernel that was searched.

        Returns:
            Why that was not possible; empty where it was.
        """
        from tilewright.evolve.mlflow_mirror.process import ARTIFACTS, mirror_environment, store_uri

        command = [sys.executable, "-m", "tilewright.evolve.mlflow_mirror.program_runs"]
        command += ["--uri", store_uri(self.home), "--artifacts", str((self.home / ARTIFACTS).resolve())]
        content = json.dumps(files.mlflow_content(self.folder, self.ceiling(), self.answer.get("found", ())))
        done = subprocess.run(
            command, env=mirror_environment(os.environ), capture_output=True, text=True, check=False, input=content
        )
        if done.returncode == 0:
            return ""
        return (done.stdout or done.stderr or "no reason given").strip().splitlines()[-1]

    def _note(self, state: str) -> None:
        try:
            files.note_program(self.home, self.folder, self.name, state)
        except OSError as error:
            raise UserError(f"home: cannot write {self.home}: {error.strerror}.") from error

    @property
    def name(self) -> str:
        return f"{self.path.name}:{self.step}"

    def _ask(self, **request: Any) -> None:
        """Run the program in a process of its own. Raises UserError."""
        budget = float(request.get("seconds", 0.0)) + float(request.get("prove_seconds", 0.0))
        self._save({})  # before minutes are spent on what cannot be written
        with tempfile.TemporaryDirectory(prefix="tilewright-program-") as name:
            asked, answered = Path(name) / "request.json", Path(name) / "answer.json"
            given = {"path": str(self.path.resolve()), "step": self.step, "setup": self.setup, **request}
            given["kept"] = str((self.folder / files.KEPT).resolve())
            asked.write_text(json.dumps(given), encoding="utf-8")
            command = [sys.executable, "-m", "tilewright.workers.program.main", str(asked), str(answered)]
            try:
                for _ in range(MOST_ENDS):
                    known = files.ended_searches(Path(given["kept"]))
                    done = subprocess.run(
                        command,
                        stdout=sys.stderr,
                        stderr=subprocess.PIPE,
                        text=True,
                        env=own_environment(),
                        timeout=LEAST_WALL + 4 * budget,
                        check=False,
                    )
                    if answered.is_file() or files.ended_searches(Path(given["kept"])) <= known:
                        break
                    sys.stderr.write("  a search ended the process: again, without what was searched then\n")
            except KeyboardInterrupt:  # the process has ended, wherever it was
                if files.forget_unfinished(self.folder / files.KEPT):
                    self._note("stopped; the same command goes on")
                raise
            except subprocess.TimeoutExpired as error:
                raise UserError(f"{self.name}: took more than {LEAST_WALL + 4 * budget:.0f} s.") from error
            if not answered.is_file():
                lines = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", done.stderr, re.MULTILINE)
                lines = lines or [f"signal {-done.returncode}" if done.returncode < 0 else "no reason given"]
                raise UserError(f"{self.name}: its process ended without an answer: {lines[-1]}")
            answer = json.loads(answered.read_text(encoding="utf-8"))
        if "why" in answer:
            with contextlib.suppress(OSError):  # it holds an earlier run's files
                self.folder.rmdir()
            raise UserError(f"{answer['why']}.")
        self.answer = answer
        record = json.dumps(answer["record"], indent=1)
        self._save({files.RECORD: record, files.PAGE: page(answer["record"], self.ceiling())})

    def _write(self, proof: Mapping[str, Any] | None) -> None:
        """``faster.py`` with its receipt; neither where there is nothing to install."""
        record, replacements = self.answer["record"], self.answer["replacements"]
        texts = {files.PAGE: page(record, self.ceiling(), proof)}
        if proof is not None:
            facts = {"program": self.name, "device": record["device"], "shares": self.ceiling().shares}
            texts[files.RECEIPT] = json.dumps({**facts, **proof}, indent=1)
        else:
            (self.folder / files.RECEIPT).unlink(missing_ok=True)
        if replacements or self.answer["layers"]:
            texts[files.FASTER] = files.faster_text(
                self.name, replacements, self.answer["layers"], record["device"]["product"], proof
            )
            for path, name in self.answer.get("winners", {}).items():
                texts[name] = Path(path).read_text(encoding="utf-8")
        else:
            (self.folder / files.FASTER).unlink(missing_ok=True)
        self._save(texts)

    def _save(self, texts: Mapping[str, str]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                (self.folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out: cannot write {self.folder}: {error.strerror}.") from error


def program(
    step: str | Callable[..., Any], setup: str = "", out: str | Path | None = None, home: str | Path | None = None
) -> Program:
    """See ``tilewright.program``."""
    if isinstance(step, str):
        file, colon, name = step.rpartition(":")
        if not colon or not name.isidentifier() or Path(file).suffix != ".py":
            raise UserError(f"{step!r} names no step; write FILE.py:function.")
        path = Path(file)
    else:
        code = getattr(step, "__code__", None)
        name = getattr(step, "__name__", "")
        if code is None or not name.isidentifier() or getattr(step, "__qualname__", name) != name:
            raise UserError(f"{step!r} is not a function of a file; write FILE.py:function.")
        path = Path(code.co_filename)
    if not path.is_file():
        raise UserError(f"{path} does not exist; write FILE.py:function.")
    folder = Path(out) if out is not None else Path(f"{name}_faster")
    return Program(path, name, setup, folder, home_folder(None if home is None else str(home)))
