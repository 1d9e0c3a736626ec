"""What a child starts ends with it, wherever it went."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testkit import twins
from tilewright.workers.child.ending import Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.launch import ROOT, Spawn, Template
from tilewright.workers.child.run_once import ChildLimits, environment, run_child

LIMITS = ChildLimits(60.0, memory_bytes=8 << 30)
SCATTER = (
    twins.REAL_IMPORT
    + """
os, time, signal = real("os"), real("time"), real("signal")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for n in range(16):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(600)
{ending}
"""
)
ENDINGS = {"waits": "time.sleep(600)", "leaves": "os._exit(0)", "is killed": "os.kill(os.getpid(), 9)"}


def left_in(folder):
    """Processes whose working directory is, or was, this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if where.startswith(str(folder)):
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("how", "ending"), [*(("template", ending) for ending in ENDINGS), ("spawned", "leaves"), ("spawned", "is killed")]
)
def test_nothing_is_left_of_a_child_that_scatters_processes(tmp_path, how, ending):
    template = Template((), environment(tmp_path, {})) if how == "template" else None
    folder = tmp_path / "child"
    folder.mkdir()
    data = {"source": SCATTER.format(ending=ENDINGS[ending]), "params": {}, "workloads": []}
    job = Frame("pallas.trace", {**data, "chip": {"kind": "TPU7x", "cores": 1}})
    limits = ChildLimits(4.0, memory_bytes=8 << 30) if ending == "waits" else LIMITS
    outcome = run_child(job, limits, folder, launcher=template or Spawn())
    assert outcome.ending is (Ending.TIMEOUT if ending == "waits" else Ending.CRASHED), outcome.detail
    assert left_in(folder) == []
    if template:
        template.close()


WARDEN = """
import os, sys, time
sys.path.insert(0, {root!r})
from tilewright.workers.child.descendants import become_wardens_child
become_wardens_child({parent})
for n in range(8):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(600)
print("scattered", flush=True)
{ending}
"""


def warden(tmp_path, ending, parent=None):
    program = WARDEN.format(root=str(ROOT), parent=parent or os.getpid(), ending=ending)
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 11)", -11)])
def test_a_warden_ends_as_its_child_does(tmp_path, ending, code):
    process = warden(tmp_path, ending)
    assert process.wait(30) == code
    assert left_in(tmp_path) == []


def left_after_a_while(folder):
    """What lives on: a process that was killed may take a moment to be gone."""
    deadline = time.monotonic() + 20
    while left_in(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left_in(folder)


def test_a_warden_whose_parent_is_gone_starts_nothing(tmp_path):
    process = warden(tmp_path, "time.sleep(600)", parent=1)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert process.stdout.read() == b""
    assert left_in(tmp_path) == []


def test_a_warden_whose_parent_dies_ends_everything(tmp_path):
    program = WARDEN.format(root=str(ROOT), parent="os.getppid()", ending="time.sleep(600)")
    parent = (
        "import os, subprocess, sys\n"
        f"os.chdir({str(tmp_path)!r})\n"
        f"child = subprocess.Popen([sys.executable, '-c', {program!r}], stdout=subprocess.PIPE)\n"
        "print(child.stdout.readline().decode(), end='', flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, timeout=30, check=False)
    assert done.stdout == b"scattered\n"
    assert left_after_a_while(tmp_path) == []
