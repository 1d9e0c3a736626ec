"""A device that is started before the campaign, and what becomes of the champion of its first job."""

from __future__ import annotations

from tilewright.fitness.targets import load_target
from tilewright.workers.device.station import Champion, Entry, LocalStation
from tilewright.workers.device.warm import warm_device


def champion(name: str, fitness: float) -> Champion:
    return Champion(Entry(name, "source", {}), fitness, ())


def test_a_station_inherits_the_better_champion() -> None:
    station = LocalStation(load_target("interpreter").gpu)
    station.inherit(champion("first", 2.0))
    station.inherit(champion("slower", 1.0))
    assert station.champion().entry.id == "first"
    station.inherit(champion("faster", 3.0))
    assert station.champion().entry.id == "faster"


def test_what_is_started_ahead_ends_with_it() -> None:
    device = warm_device(load_target("interpreter"))
    assert device.compiler is None, "the interpreter compiles nothing"
    started = device.station.cpu_seconds
    device.close()
    assert started >= 0.0 and device.station.cpu_seconds == 0.0
    device.close()
