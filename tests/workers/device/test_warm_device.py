"""A device that is started before the campaign, and what becomes of the champion of its first job."""

from dataclasses import replace

import pytest

from tilewright.fitness.targets import load_target
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.session import JobLimits, SessionDied
from tilewright.workers.device.station import Champion, Entry, LocalStation, entry_id


def champion(name, fitness):
    return Champion(Entry(name, "source", {}), fitness, ())


def test_a_station_inherits_the_better_champion():
    station = LocalStation(load_target("interpreter").gpu)
    station.inherit(champion("first", 2.0))
    station.inherit(champion("slower", 1.0))
    assert station.champion().entry.id == "first"
    station.inherit(champion("faster", 3.0))
    assert station.champion().entry.id == "faster"
    other = station.for_next_campaign()
    assert other.champion() is None and other.operand_seed(7) == 7
    other.end()
    assert station.claim("a contender"), "it has not ended"


class Deaf:
    """Keeps what it is asked, and answers nothing."""

    cpu_seconds, replaced = 0.0, 0

    def hello(self):
        return {}

    def run(self, job, limits):
        return ChildOutcome(Ending.DONE)


def test_a_station_remembers_the_plans_that_came_with_jobs():
    station = LocalStation(load_target("interpreter").gpu)
    station._keeper = Deaf()
    source, params = "a kernel", {"tile": 64}
    entry = Entry(entry_id(source, params), source, params, plans={"small": b"1", "large": b"2"})
    again = replace(entry, id=f"{entry.id}/again", plans={"small": b"3"})
    for names in (["small"], ["large"]):
        blobs = {**entry.blobs(names), **again.blobs(names)}
        station.run(Frame("time", {"entries": [entry.data(), again.data()]}, blobs=blobs), JobLimits(1.0, 1.0))
    assert station.plans(source, params) == {"small": b"1", "large": b"2"}
    assert station.plans(source, {"tile": 32}) == {}


def test_nobody_waits_for_a_station_that_has_ended():
    station = LocalStation(load_target("interpreter").gpu)
    assert station.claim("a contender") and not station.claim("another")
    station.end()
    for asked in (
        lambda: station.claim("another"),
        lambda: station.run(Frame("check"), JobLimits(1.0, 1.0)),
        station.hello,
    ):
        with pytest.raises(SessionDied, match="has ended"):
            asked()
