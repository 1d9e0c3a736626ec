"""Children forked from a template end like spawned ones, and a lost template is replaced."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tilewright.workers.child.ending import Ending
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.launch import ROOT
from tilewright.workers.child.run_once import ChildLimits, environment, run_child
from tilewright.workers.child.session import JobLimits
from tilewright.workers.child.template import Branch, SharedTemplate, Template, TemplateLost

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


def templates() -> list[int]:
    """Ids of this process's templates: those whose command line names the program and this parent."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if (
                any(word.endswith(b"workers/child/template_main.py") for word in words)
                and str(os.getpid()).encode() in words
            ):
                found.append(int(folder.name))
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


@pytest.fixture
def shared(tmp_path):
    made = SharedTemplate((), environment(tmp_path, {}))
    yield made
    made.close()


def test_several_share_one_template_at_the_same_time(others, shared, tmp_path):
    """One hangs in its child while the other is served; neither's end is the other's."""
    one, other = Branch(shared.address), Branch(shared.address)
    (tmp_path / "hangs").mkdir()
    job = Frame("pallas.trace", {"source": "while True: pass", "chip": {"kind": "TPU7x", "cores": 1}})
    with ThreadPoolExecutor(1) as beside:
        hanging = beside.submit(
            run_child, job, ChildLimits(2.5, memory_bytes=8 << 30), tmp_path / "hangs", launcher=one
        )
        outcome = run_child(Frame("no such job"), LIMITS, tmp_path, launcher=other)
        assert outcome.first("started") is not None and not hanging.done()
        other.close()
        assert hanging.result().ending is Ending.TIMEOUT
    assert one.cpu_seconds > 0.2, "of its child, which is no descendant of this process's own"
    shared.close()
    with pytest.raises(TemplateLost):
        run_child(Frame("too late"), LIMITS, tmp_path, launcher=one)
    assert set(templates()) <= others


def test_a_confined_process_gets_no_template(shared):
    """A candidate that found the address would order processes of its own choosing."""
    program = "\n".join([
        "import socket, sys",
        f"sys.path.insert(0, {str(ROOT)!r})",
        "from tilewright.workers.child.confine import give_up_privileges",
        "give_up_privileges() if sys.argv[1] == 'confined' else None",
        "asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        f"asked.connect(chr(0) + {shared.address!r})",
        "print(asked.recv(100))",
    ])  # fmt: skip
    said = {
        how: subprocess.run([sys.executable, "-c", program, how], capture_output=True, check=True).stdout
        for how in ("confined", "free")
    }
    assert said["confined"].strip() == b"b''" and b"pid" in said["free"]


def test_children_have_a_template_of_their_own_where_none_is_shared(others, shared, tmp_path):
    children = ForkedChildren("x.", (), {}, {}, tmp_path, address=shared.address)
    limits = JobLimits(20.0, 20.0)
    assert "x.one" in children.run(Frame("one"), limits).log
    assert children.elsewhere
    shared.close()
    with pytest.raises(TemplateLost):
        children.run(Frame("two"), limits)
    assert "x.three" in children.run(Frame("three"), limits).log
    assert not children.elsewhere
    children.close()
    assert set(templates()) <= others
