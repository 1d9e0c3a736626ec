"""Children forked from a template end like spawned ones, and a lost template is replaced."""

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tilewright.workers.child.ending import Ending
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.launch import Template, TemplateLost
from tilewright.workers.child.run_once import ChildLimits, environment, run_child
from tilewright.workers.child.session import JobLimits

LIMITS = ChildLimits(20.0, memory_bytes=1 << 30)


@pytest.fixture
def template(tmp_path):
    made = Template((), environment(tmp_path, {}))
    yield made
    made.close()


@pytest.fixture
def others():
    """Templates of other tests in this process."""
    return set(templates())


def templates():
    """Ids of this process's templates."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        children = []
        with contextlib.suppress(OSError):  # a thread that has ended
            children = (task / "children").read_text().split()
        for child in map(int, children):
            with contextlib.suppress(OSError):
                if b"workers/child/template_main.py" in Path("/proc", str(child), "cmdline").read_bytes():
                    found.append(child)
    return found


def test_a_forked_child_has_its_own_exit_code_log_and_folder(template, tmp_path):
    outcome = run_child(Frame("no such job"), LIMITS, tmp_path, launcher=template)
    assert outcome.ending is Ending.CRASHED
    assert "exit code 1" in outcome.detail and "no such job" in outcome.log
    assert outcome.first("started").data["isolation"].keys() == {"network", "files"}


def test_a_lost_template_is_an_error_once(others, template, tmp_path):
    run_child(Frame("first"), LIMITS, tmp_path, launcher=template)
    (process,) = set(templates()) - others
    os.kill(process, signal.SIGKILL)
    with pytest.raises(TemplateLost):
        run_child(Frame("second"), LIMITS, tmp_path, launcher=template)
    outcome = run_child(Frame("third"), LIMITS, tmp_path, launcher=template)
    assert outcome.first("started") is not None


def test_several_threads_have_children_of_one_template(others, template, tmp_path):
    """One hangs in its child while the other is served; neither's end is the other's."""
    one, other = (ForkedChildren("pallas.", (), {}, {}, tmp_path, template=template) for _ in range(2))
    began, limit = time.monotonic(), JobLimits(60.0, 60.0)
    other.run(Frame("no such job"), limit)
    patience = max(2.0, 4 * (time.monotonic() - began))  # of a machine as busy as this one
    job = Frame("trace", {"source": "while True: pass", "chip": {"kind": "TPU7x", "cores": 1}})
    with ThreadPoolExecutor(1) as beside:
        hanging = beside.submit(one.run, job, JobLimits(patience, patience))
        outcome = other.run(Frame("no such job"), limit)
        assert "pallas.no such job" in outcome.log and not hanging.done()
        assert hanging.result().ending is Ending.TIMEOUT
    assert one.cpu_seconds > other.cpu_seconds, "each counts its own children's"
    assert template.cpu_seconds > one.cpu_seconds
    assert len(set(templates()) - others) == 1
    other.close()
    assert len(set(templates()) - others) == 1, "it is the other's, too"
    template.close()
    assert set(templates()) <= others


def test_who_waits_for_a_template_that_is_closed_is_told(template, tmp_path):
    job = Frame("pallas.trace", {"source": "while True: pass", "chip": {"kind": "TPU7x", "cores": 1}})
    limits = ChildLimits(60.0, memory_bytes=8 << 30)
    with ThreadPoolExecutor(1) as beside:
        hanging = beside.submit(run_child, job, limits, tmp_path, launcher=template)
        while template.cpu_seconds < 0.5:  # of its child
            time.sleep(0.05)
        template.close()
        with pytest.raises(TemplateLost):
            hanging.result(20.0)
