"""The gates' inputs and the oracle's answers, which stay in the parent and never reach a child."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from tilewright.seeds.operator import Arrays, Operator, Workload

K = TypeVar("K")
V = TypeVar("V")

ENTRIES = 4
"""(shape, seed, kind) triples kept: those of one evaluation, since a campaign reuses a seed for a few in a row."""


class Truth:
    """Makes inputs and references of one operator, and keeps the latest. Not safe for several threads."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._inputs: OrderedDict[tuple[str, int, str], Arrays] = OrderedDict()
        self._references: OrderedDict[tuple[str, int, str], dict[str, Arrays]] = OrderedDict()

    def inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Operands by name, fresh for every seed."""
        key = (workload.id, seed, kind)
        if key not in self._inputs:
            _keep(self._inputs, key, self._operator.make_inputs(workload, seed, kind))
        return self._inputs[key]

    def references(self, workload: Workload, seed: int, kind: str) -> dict[str, Arrays]:
        """What the oracle says to these inputs."""
        key = (workload.id, seed, kind)
        if key not in self._references:
            _keep(self._references, key, self._operator.oracle(workload, self.inputs(workload, seed, kind)))
        return self._references[key]


def _keep(cache: OrderedDict[K, V], key: K, value: V) -> None:
    cache[key] = value
    while len(cache) > ENTRIES:
        cache.popitem(last=False)
