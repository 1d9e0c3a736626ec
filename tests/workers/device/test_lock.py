"""The lock that keeps two campaigns of one machine from timing each other's work."""

import itertools
import multiprocessing
import os
import tempfile
import time

import pytest

from tilewright.workers.device.lock import exclusive, lock_path


def hold(device, spans, seconds):
    with exclusive(device):
        began = time.monotonic()
        time.sleep(seconds)
        spans.put((began, time.monotonic()))


def die_holding(device):
    with exclusive(device):
        os._exit(9)


@pytest.fixture
def spawn(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return multiprocessing.get_context("fork")


def test_holders_take_turns(spawn):
    spans = spawn.Queue()
    holders = [spawn.Process(target=hold, args=("GPU-1", spans, 0.2)) for _ in range(3)]
    for holder in holders:
        holder.start()
    held = sorted(spans.get(timeout=30) for _ in holders)
    for holder in holders:
        holder.join()
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(held))


def test_a_dead_holder_holds_nothing_and_devices_are_apart(spawn):
    dying = spawn.Process(target=die_holding, args=("GPU-1",))
    dying.start()
    dying.join()
    with exclusive("GPU-1"), exclusive("GPU-2"), exclusive(None):
        pass
    assert lock_path("GPU-1") != lock_path("GPU-2")


def test_a_link_in_its_place_is_not_followed(spawn, tmp_path):
    (tmp_path / "elsewhere").write_text("")
    lock_path("GPU-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), exclusive("GPU-1"):
        pass
