"""The second wall: what a hostile child can and cannot do. Children here are plain Python, without jax."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from testkit.children import child
from tilewright.workers.child import launch
from tilewright.workers.child.ending import Ending
from tilewright.workers.child.run_once import ChildLimits, temporary_folder


@pytest.mark.parametrize(
    ("code", "ending", "detail"),
    [
        ("os._exit(0)", Ending.CRASHED, "exit code 0 before it had answered"),
        ("answer('hello'); os._exit(3)", Ending.CRASHED, "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", Ending.CRASHED, "killed by SIGSEGV"),
        (
            "sys.stderr.write('F0101 1:2 x.cc:3] too much\\n'); sys.stderr.flush(); os.abort()",
            Ending.CRASHED,
            "killed by SIGABRT: too much",
        ),
        ("raise ValueError('no')", Ending.CRASHED, "exit code 1 before it had answered: ValueError: no"),
        ("os.write(result, b'score: 1e9' * 10)", Ending.GARBAGE, "does not start with a frame"),
        ("os.write(result, encode(Frame('done'))[:20])", Ending.CRASHED, "exit code 0"),
        ("while True: os.write(1, b'x' * 65536)", Ending.FLOOD, "bytes of output"),
        ("while True: answer('more', x='y' * 60000)", Ending.FLOOD, "bytes of results"),
        ("x = bytearray(4 << 30)", Ending.CRASHED, "MemoryError"),
        ("x = b'x' * (3 << 29); time.sleep(60)", Ending.MEMORY, "more than 1 GiB of memory"),
        ("x = os.fork() or b'x' * (3 << 29); time.sleep(60)", Ending.MEMORY, "more than 1 GiB of memory"),
        ("open('big', 'wb').write(b'x' * (2 << 20))", Ending.CRASHED, ""),
    ],
)
def test_every_bad_ending_has_a_name(code, ending, detail, tmp_path):
    outcome = child(code, tmp_path)
    assert outcome.ending is ending, outcome
    assert detail in outcome.detail


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(60)",
        "os.close(result); os.close(1); os.close(2); time.sleep(60)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass",
    ],
)
def test_a_child_that_hangs_is_killed(code, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "WARDEN_SECONDS", 1.0)
    began = time.monotonic()
    outcome = child(code, tmp_path, ChildLimits(1.0, memory_bytes=1 << 30))
    assert outcome.ending is Ending.TIMEOUT
    assert time.monotonic() - began < 40, "before it ends by itself"


def test_nothing_of_the_environment_reaches_it(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    outcome = child("answer('env', **os.environ); answer('done')", tmp_path, extra_environment={"X": "1"})
    seen = outcome.first("env").data
    assert "secret" not in json.dumps(dict(seen))
    assert set(seen) <= {"PATH", "HOME", "TMPDIR", "LANG", "LC_CTYPE", "PYTHONDONTWRITEBYTECODE", "X"}


PROBES = {
    "write_outside": "open({outside!r}, 'w')",
    "read_outside": "open({secret!r}).read()",
    "list_outside": "os.listdir({folder!r})",
    "parent_environment": "open(f'/proc/{{parent}}/environ').read()",
    "kill_parent": "os.kill(parent, signal.SIGUSR1)",
    "unlink": "os.unlink({secret!r})",
}


@pytest.mark.parametrize("name", sorted(PROBES))
def test_files_and_processes_outside_are_out_of_reach(name, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = outside / "journal.sqlite"
    secret.write_text("secret")
    probe = PROBES[name].format(outside=str(outside / "new"), secret=str(secret), folder=str(outside))
    code = f"""
    answer('isolation', files=files)
    try:
        {probe}
        answer('reached')
    except OSError as error:
        answer('refused', what=type(error).__name__)
    answer('done')
    """
    received = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
    try:
        with temporary_folder(tmp_path) as folder:
            outcome = child(code, folder)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    if not outcome.first("isolation").data["files"]:
        pytest.skip("this kernel has no Landlock")
    if name == "kill_parent" and outcome.first("reached"):
        pytest.skip("this kernel's Landlock does not scope signals")
    assert outcome.first("refused") is not None, outcome
    assert secret.read_text() == "secret" and not received


def test_it_has_no_network(tmp_path):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        code = f"""
        answer('isolation', network=network, files=files)
        try:
            socket.create_connection(('127.0.0.1', {port}), timeout=3)
            answer('reached')
        except OSError as error:
            answer('refused')
        answer('done')
        """
        outcome = child(code, tmp_path)
    if not any(outcome.first("isolation").data.values()):
        pytest.skip("this kernel permits neither network namespaces nor Landlock")
    assert outcome.first("refused") is not None, outcome


def test_waiting_for_a_processor_does_not_count_as_running(tmp_path):
    """A child shares its processor with five others: what its thread takes is mostly waiting."""
    spins = """
    import threading
    def spin():
        while time.thread_time() < 0.9: pass
    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()
    answer("done")
    """
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(ours)])  # what is started from here on inherits it
    alone = {"start_new_session": True}  # Linux shares a processor among sessions, then among their processes
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"], **alone) for _ in range(5)]
    try:
        outcome = child(spins, tmp_path, ChildLimits(4.0, memory_bytes=1 << 30))
    finally:
        os.sched_setaffinity(0, ours)
        for other in others:
            other.kill()
            other.wait()
    assert outcome.ending is Ending.DONE, outcome.detail
    assert outcome.seconds > 4


def test_a_deadline_waits_for_the_thread_that_feeds_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_own_waiting", iter([1.0, 2.0]).__next__)
    deadline = launch.Deadline(os.getpid(), 0.05)
    time.sleep(0.06)
    assert 0 < deadline.seconds_left() < launch.WAITING_FACTOR * 0.05
