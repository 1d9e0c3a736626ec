"""Which semaphore (flag) a simulated kernel's copies signal and its waits name, followed through registers.

A dump names a flag by its allocation or by a register. Registers are numbered in the order of execution, each written
once, so where one comes from can be read off: an allocation, another register, or a spill slot of scalar memory, which
holds what was last stored there.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from functools import cached_property

_MADE = re.compile(
    rb"\n  %(s[0-9]{1,15})_\w+ = (?:\([^)\n]*\) )?(?:scalar_lea\.sflag|smov\.u32) \[#allocation([0-9]{1,9})[^\]\n]*\]"
)
_COPIED = re.compile(
    rb"\n  %(s[0-9]{1,15})_\w+ = (?:\([^)\n]*\) )?(?:scalar_lea\.sflag|smov\.u32) %(s[0-9]{1,15})_"
)
_LOADED = re.compile(
    rb"\n  %(s[0-9]{1,15})_\w+ = (?:\([^)\n]*\) )?sld \[smem:\[#allocation([0-9]{1,9})_spill\]\]"
)
_STORED = re.compile(
    rb"\n  %[0-9]{1,15} = (?:\([^)\n]*\) )?sst \[smem:\[#allocation([0-9]{1,9})_spill\]\] %(s[0-9]{1,15})_"
)
_FAR = 64
"""Registers followed before a flag counts as unknown."""


class Flags:
    """Flags of one dump of executed bundles."""

    def __init__(self, bundles: bytes) -> None:
        self._bundles = bundles
        self._made = dict(_MADE.findall(bundles))

    def of(self, register: bytes) -> bytes:
        """The allocation of the flag that a register (``s123``) points to; empty where that cannot be followed."""
        for _ in range(_FAR):
            if register in self._made:
                return self._made[register]
            source = self._source(register)
            if source is None:
                return b""
            register = source
        return b""

    def _source(self, register: bytes) -> bytes | None:
        if register in self._copied:
            return self._copied[register]
        if register not in self._loaded:
            return None
        place, slot = self._loaded[register]
        places, stored = self._stored[slot]
        before = bisect_left(places, place)
        return stored[before - 1] if before else None

    @cached_property
    def _copied(self) -> dict[bytes, bytes]:
        return dict(_COPIED.findall(self._bundles))

    @cached_property
    def _loaded(self) -> dict[bytes, tuple[int, bytes]]:
        return {found[1]: (found.start(), found[2]) for found in _LOADED.finditer(self._bundles)}

    @cached_property
    def _stored(self) -> dict[bytes, tuple[list[int], list[bytes]]]:
        stored: dict[bytes, tuple[list[int], list[bytes]]] = defaultdict(lambda: ([], []))
        for found in _STORED.finditer(self._bundles):
            stored[found[1]][0].append(found.start())
            stored[found[1]][1].append(found[2])
        return stored
