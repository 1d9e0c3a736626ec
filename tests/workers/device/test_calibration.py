"""Devices on one scale: what is related to what, what is left out, and figures that follow."""

import numpy as np
import pytest

from tilewright.workers.child.session import SessionDied
from tilewright.workers.cluster.ray_stations import RemoteStation
from tilewright.workers.device.comparison import CARRIED, Comparison, in_service
from tilewright.workers.device.station import DeviceRatio


def timed(speed, seed=0, genome="seed", rounds=5):
    """A device that takes ``speed`` times as long, with a thousandth of noise."""
    rng = np.random.default_rng(seed)
    times = {
        shape: {genome: [[base * speed * float(rng.normal(1, 1e-3)) for _ in range(3)] for _ in range(rounds)]}
        for shape, base in (("small", 1e-4), ("large", 3e-3))
    }
    return Comparison("h200", {}, times, {}, {})


def test_devices_are_related_to_the_first():
    kept, scales = in_service([("A", "gpu a", timed(1.0, 1)), ("B", "gpu b", timed(1.03, 2))], "seed")
    assert kept == ["A", "B"]
    assert scales["gpu a"].ratio == 1.0
    assert scales["gpu b"].ratio == pytest.approx(1.03, abs=3e-3)
    assert scales["gpu a"].error == 0 and CARRIED < scales["gpu b"].error < 1.1 * CARRIED


def test_a_device_that_is_far_off_or_there_twice_is_left_out():
    answers = [
        ("A", "gpu a", timed(1.0)),
        ("B", "gpu b", timed(1.3)),
        ("C", "gpu a", timed(1.0)),
        ("D", "gpu d", timed(0.98)),
    ]
    kept, scales = in_service(answers, "seed")
    assert kept == ["A", "D"] and set(scales) == {"gpu a", "gpu d"}


def test_a_reference_that_fails_leaves_one_device_and_no_scale():
    failed = Comparison("h200", {}, {}, {}, {"seed": "crashed"})
    assert in_service([("A", "gpu a", failed), ("B", "gpu b", failed)], "seed") == (["A"], {})
    kept, scales = in_service([("A", "gpu a", failed), ("B", "gpu b", timed(1.0))], "seed")
    assert kept == ["B"] and scales == {}, "one device needs no scale"


def test_an_uncalibrated_device_gives_no_figures(monkeypatch):
    scales = {"gpu a": DeviceRatio("gpu a"), "gpu b": DeviceRatio("gpu b", 1.02)}
    station = RemoteStation(None, scales)
    monkeypatch.setattr(station, "hello", lambda: {"identity": "gpu b"})
    assert station.scale() == scales["gpu b"]
    assert RemoteStation(None, {}).scale() == DeviceRatio()
    monkeypatch.setattr(station, "hello", lambda: {"identity": "gpu c"})
    with pytest.raises(SessionDied, match="gpu c was never calibrated"):
        station.scale()
