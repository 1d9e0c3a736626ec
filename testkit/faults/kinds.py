"""Every fault by name: what is injected into a campaign, and what its journal must say afterwards.

A fault takes a fresh folder and a seed, runs the campaign to its end, and returns the journal's path. Without
``changes`` the journal must equal the one of a campaign without faults; with it, one candidate has another verdict.
"""

import itertools
import os
import resource
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from testkit.faults.campaigns import Table, driven, finish, forked
from testkit.faults.cluster import Cluster, pool_of
from testkit.toy_campaign import content, go, plan
from tilewright.evolve.campaign.loop import StopReason
from tilewright.evolve.errors import JournalError
from tilewright.evolve.mlflow_mirror import process as mirror_process
from tilewright.fitness.evaluation import Verdict
from tilewright.workers.cluster.jobs import Job

VICTIM = 1
"""Which of the table's failing candidates a fault befalls: its verdict is a failure either way."""


@dataclass(frozen=True)
class Fault:
    """``changes``: verdicts, one of which the victim of the fault must have; none where nothing may differ."""

    name: str
    inject: Callable[[Path, int, dict[str, Any]], Path]
    changes: tuple[Verdict, ...] = ()


def victim(wanted: dict[str, Any]) -> int:
    """The index of the candidate that a fault befalls."""
    return [i for i, e in wanted["evaluations"].items() if e["verdict"] == "incorrect"][VICTIM]


# -- workers and nodes ----------------------------------------------------------------------------------


def in_pool(*faults: str, everywhere: bool = False) -> Callable[[Path, int, dict[str, Any]], Path]:
    """What happens to the attempts at one candidate, or at every one, on a cluster of four."""

    def inject(folder: Path, seed: int, wanted: dict[str, Any]) -> Path:
        x = -1 if everywhere else _x_of(wanted, victim(wanted))
        cluster, path = Cluster(np.random.default_rng(seed), {x: faults}), folder / "j.sqlite"
        with pytest.MonkeyPatch.context() as patch:
            assert go(path, plan(), pool_of(cluster, 4, patch)) is StopReason.EVALUATIONS
        return path

    return inject


def _x_of(wanted: dict[str, Any], index: int) -> int:
    return int(wanted["candidates"][index][3].removeprefix("x="))


# -- the driver and its machine -------------------------------------------------------------------------


def killed(folder: Path, seed: int, wanted: dict[str, Any]) -> Path:
    """SIGKILL at random moments until a driver gets through."""
    path, rng = folder / "j.sqlite", np.random.default_rng(seed)
    for life in range(12):
        if not driven(path, seed + life, float(rng.uniform(0.0, 0.1))):
            return path
    finish(path)
    return path


def disk_full(folder: Path, seed: int, wanted: dict[str, Any]) -> Path:
    """The disk has room for some ten rows at a time, again and again."""
    path = folder / "j.sqlite"

    def cramped() -> object:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        held = max(file.stat().st_size for file in folder.iterdir()) if any(folder.iterdir()) else 60_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (held + 90_000, held + 90_000))
        try:
            return go(path, plan(), Table(np.random.default_rng(seed)))
        except JournalError:
            return None

    lives = 1
    while forked(cramped) == 2 and lives < 60:
        lives += 1
    assert 1 < lives < 60, lives
    finish(path)
    return path


def torn(folder: Path, seed: int, wanted: dict[str, Any]) -> Path:
    """The write-ahead log loses its tail, as in a power cut."""
    path, rng = folder / "j.sqlite", np.random.default_rng(seed)

    def die(job: Job) -> None:
        if job.index == 17:
            os.kill(os.getpid(), signal.SIGKILL)  # the journal is not closed

    assert forked(lambda: go(path, plan(), Table(rng, fault=die))) == -signal.SIGKILL
    log = Path(f"{path}-wal")
    whole = log.read_bytes()
    keep = int(rng.integers(0, len(whole)))
    log.write_bytes(whole[:keep] + bytes(rng.bytes(min(100, len(whole) - keep))))
    finish(path)
    return path


def locked(folder: Path, seed: int, wanted: dict[str, Any]) -> Path:
    """A backup holds the file for half a second at a time."""
    path = folder / "j.sqlite"
    with pytest.raises(KeyboardInterrupt):
        go(path, plan(), Table(np.random.default_rng(seed), die_after=2))
    stop = threading.Event()

    def hold() -> None:
        while not stop.wait(0.05):
            with sqlite3.connect(path, timeout=20.0, isolation_level=None) as db:
                db.execute("BEGIN IMMEDIATE")
                stop.wait(0.3)
                db.execute("ROLLBACK")

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        go(path, plan(), Table(np.random.default_rng(seed)), stop_after=6)
    finally:
        stop.set()
        holder.join()
    finish(path)
    return path


def clock_back(folder: Path, seed: int, wanted: dict[str, Any]) -> Path:
    """The clock is set back an hour amid the campaign, and once more amid its resume."""
    path, looks = folder / "j.sqlite", itertools.count()
    back = mock.Mock(side_effect=lambda: 1.7e9 + (n := next(looks)) - 3600.0 * (n // 15))
    with mock.patch("tilewright.evolve.record.journal.time.time", back):
        with pytest.raises(KeyboardInterrupt):
            go(path, plan(), Table(np.random.default_rng(seed), die_after=11))
        finish(path)
    assert next(looks) > 30, "it was set back twice"
    return path


def monotonic_clock(folder: Path, seed: int, wanted: dict[str, Any]) -> Path:
    """The machine is suspended for days between two looks at the clock."""
    path, days = folder / "j.sqlite", mock.Mock(side_effect=itertools.count(0.0, 86_400.0))
    with mock.patch("tilewright.evolve.campaign.loop.time.monotonic", days):
        assert go(path, plan(), Table(np.random.default_rng(seed))) is StopReason.EVALUATIONS
    return path


# -- MLflow ---------------------------------------------------------------------------------------------


@contextmanager
def mirroring(path: Path, uri: str) -> Iterator[mirror_process.MirrorProcess]:
    environment = {**os.environ, mirror_process.URI_VARIABLE: uri}
    mirror = mirror_process.start_mirror(path, path.parent, environment)
    try:
        yield mirror
    finally:
        mirror._process.kill()
        mirror._process.wait()


def mlflow_down(folder: Path, seed: int, wanted: dict[str, Any]) -> Path:
    """Nobody listens at the tracking address, from the first evaluation to the last."""
    path = folder / "j.sqlite"
    with pytest.raises(KeyboardInterrupt):
        go(path, plan(), Table(np.random.default_rng(seed), die_after=0))
    with mirroring(path, "http://127.0.0.1:9") as mirror:
        finish(path, seed)
        assert mirror.lag() == len(content(path)["evaluations"]), "nothing was mirrored, and it is known"
    return path


def mirror_killed(folder: Path, seed: int, wanted: dict[str, Any]) -> Path:
    """The mirror dies at birth, again and again; it is revived a few times, and the campaign goes on."""
    path = folder / "j.sqlite"
    with pytest.raises(KeyboardInterrupt):
        go(path, plan(), Table(np.random.default_rng(seed), die_after=0))
    stillborn = mock.patch.object(mirror_process, "mirror_command", return_value=["false"])
    with stillborn, mirroring(path, "x") as mirror:
        finish(path, seed)
        for _ in range(mirror_process.REVIVALS + 2):
            mirror._process.wait()
            assert mirror.lag() > 0
    return path


FAULTS = (
    Fault("worker: actor killed", in_pool("dies")),
    Fault("worker: every actor killed at once", in_pool("all die")),
    Fault("worker: an actor killed by each job's first try", in_pool("dies", everywhere=True)),
    Fault("worker: does not answer", in_pool("hangs")),
    Fault("worker: a bug in it", in_pool("task")),
    Fault("worker: scratch disk full", in_pool("scratch")),
    Fault("node: lost with its workers, for good", in_pool("node lost", everywhere=True)),
    Fault("device: fell off, twice", in_pool("device", "device")),
    Fault("device: falls off at every try", in_pool("device", "device", "device"), (Verdict.INFRA_ERROR,)),
    Fault("driver: SIGKILL at random moments", killed),
    Fault("disk: full at every tenth row", disk_full),
    Fault("journal: torn at its tail", torn),
    Fault("journal: held by a backup", locked),
    Fault("clock: set back an hour, twice", clock_back),
    Fault("clock: suspended for days", monotonic_clock),
    Fault("MLflow: down for the whole campaign", mlflow_down),
    Fault("MLflow: its mirror dies at birth", mirror_killed),
)


def differences(fault: Fault, found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What of a journal is not as stated; empty when all is well."""
    lines = []
    if found["candidates"] != wanted["candidates"]:
        lines.append("other candidates")
    if set(found["evaluations"]) != set(wanted["evaluations"]):
        lines.append("other evaluations")
    different = [i for i, e in wanted["evaluations"].items() if found["evaluations"].get(i) != e]
    if not fault.changes:
        return lines + [f"evaluation {i} differs" for i in different]
    if different != [victim(wanted)]:
        lines.append(f"evaluations {different} differ")
    for index in different:
        verdict = found["evaluations"][index]["verdict"]
        if verdict not in [wish.value for wish in fault.changes]:
            lines.append(f"evaluation {index} is {verdict}")
    return lines
