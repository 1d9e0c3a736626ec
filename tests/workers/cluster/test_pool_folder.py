"""A pool on this machine leaves no file and no process behind, however it ends."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from testkit.pool import pool_settings
from tilewright.workers.cluster import ray_start
from tilewright.workers.cluster.pool_folder import PoolFolder, sweep
from tilewright.workers.cluster.ray_pool import RayPool
from tilewright.workers.cluster.settings import PoolUnavailable


@pytest.fixture
def base(monkeypatch):
    """A short folder for temporary files, empty."""
    with tempfile.TemporaryDirectory(prefix="tw", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        yield Path(folder)


def test_a_start_that_fails_leaves_no_file_and_no_process(base, monkeypatch):
    children: list[subprocess.Popen[bytes]] = []

    def start_half(**options):
        folder = str(options["_temp_dir"])
        Path(folder, "session_1").mkdir()
        Path(folder, "session_1", "raylet.err").write_text("no")
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", folder]))
        raise Exception("the node did not start in time")

    monkeypatch.setattr(ray_start.ray, "init", start_half)
    broken = RayPool(pool_settings())
    try:
        with pytest.raises(PoolUnavailable, match="did not start in time"):
            broken.start()
    finally:
        broken.close()
    assert not list(base.iterdir())
    assert children[0].wait(timeout=30) != 0


def test_what_ray_writes_past_python_is_logged_and_a_missing_token_is_named(base, monkeypatch, capfd):
    def refuse(**options):
        os.write(2, b"gcs_client.cc:210: RPC error: InvalidAuthToken: Authentication token is missing\n")
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(ray_start.ray, "init", refuse)
    with pytest.raises(PoolUnavailable, match="cannot be joined: it wants a token, and this process has none"):
        ray_start.start_ray("auto", 1, 0)
    os.write(2, b"ours")
    assert capfd.readouterr().err == "ours"


def test_what_a_killed_driver_left_is_removed_by_the_next_one(base):
    code = (
        "import os; from tilewright.workers.cluster.pool_folder import PoolFolder; "
        "PoolFolder(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(base)}, check=False)
    (left,) = base.iterdir()
    mine = PoolFolder()
    try:
        assert left.exists(), "young: its owner may not hold it yet"
        for folder in (left, mine.path):
            os.utime(folder, (time.time() - 3600,) * 2)
        sweep(base)
        assert not left.exists()
        assert mine.path.exists(), "its owner lives"
    finally:
        mine.close()
    assert not list(base.iterdir())


def test_a_head_that_is_gone_for_long_is_told(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = "{}:{}".format(*listener.getsockname())
        now = 100.0
        monkeypatch.setattr(ray_start.time, "monotonic", lambda: now)
        head = ray_start.Head(address)
        head.require()
    now += ray_start.HEAD_SECONDS
    head.require()  # it may come back
    now += ray_start.ASK_SECONDS
    with pytest.raises(PoolUnavailable, match=f"the head of the Ray cluster at {address} is gone"):
        head.require()
