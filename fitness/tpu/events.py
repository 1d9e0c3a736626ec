"""A kernel's copies and the work between them, as the simulator executed them, to be timed again under other rules.

libtpu's simulator gives every copy a fixed latency and a rate that no other copy takes from, so its cycles are right
about the core and wrong about memory. What it executed is kept instead: the copies in the order in which they were
started, what each wait waits for, and how many cycles the core worked in between, its waits for copies left out.
``fitness.tpu.memory`` runs that again with one memory that all copies share.
"""

import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from tilewright.fitness.tpu.llo import GRANULE_BYTES, ParseError
from tilewright.fitness.tpu.timeline import WAITS, CriticalPath, first_instructions, issue_cycles

_EVENT = re.compile(rb"\n  %[a-z]*([0-9]{1,15})(?![0-9])[^\n=]* = (?:\([^)\n]*\) )?dma\.([\w.]+)([^\n]*)")
_GRANULES = re.compile(rb"size_in_granules=\*/([0-9]{1,15})(?![0-9])")
_DESTINATION = re.compile(rb"dst_syncflagno=\*/(?:%(s[0-9]{1,15})_|\[#allocation([0-9]{1,9}))")
_WAIT = re.compile(rb"^(?: \[[^\]\n]*\])? *(?:%(s[0-9]{1,15})_\w+|\[#allocation([0-9]{1,9})[^\]\n]*\]), ([0-9]{1,15})")

_MADE = re.compile(
    rb"\n  %(s[0-9]{1,15})_\w+ = (?:\([^)\n]*\) )?(?:scalar_lea\.sflag|smov\.u32) \[#allocation([0-9]{1,9})[^\]\n]*\]"
)
_COPIED = re.compile(rb"\n  %(s[0-9]{1,15})_\w+ = (?:\([^)\n]*\) )?(?:scalar_lea\.sflag|smov\.u32) %(s[0-9]{1,15})_")
_LOADED = re.compile(rb"\n  %(s[0-9]{1,15})_\w+ = (?:\([^)\n]*\) )?sld \[smem:\[#allocation([0-9]{1,9})_spill\]\]")
_STORED = re.compile(
    rb"\n  %[0-9]{1,15} = (?:\([^)\n]*\) )?sst \[smem:\[#allocation([0-9]{1,9})_spill\]\] %(s[0-9]{1,15})_"
)
_FAR = 64
"""Registers followed before a flag counts as unknown."""


class Kind(IntEnum):
    """What happens at an event: a copy into the core starts, one out of it, one inside it, or the core waits."""

    READ = 0
    WRITE = 1
    LOCAL = 2
    WAIT = 3


@dataclass(frozen=True)
class Events:
    """One operation: its events in order.

    ``work``: core cycles before each event, and after the last one (one more than there are events). ``kinds`` as in
    ``Kind``, ``sizes`` in bytes (of what is copied or waited for). ``ready``: of a wait the number of the last event
    (a start) that it waits for, -1 for a start and for a wait that finds nothing to wait for.
    """

    work: np.ndarray
    kinds: np.ndarray
    sizes: np.ndarray
    ready: np.ndarray

    @classmethod
    def idle(cls, cycles: int) -> "Events":
        """An operation without copies."""
        none = np.zeros(0, np.int64)
        return cls(np.array([cycles], np.int64), none, none, none)


def read_events(bundles: bytes, path: CriticalPath, cycles: int) -> Events:
    """The events of one operation from its bundles and its critical path. Raises ParseError."""
    firsts = first_instructions(bundles)
    if not len(firsts) or np.any(np.diff(firsts) <= 0):
        raise ParseError("a bundle dump whose instructions are not numbered in order")
    issued = issue_cycles(firsts, path, cycles)
    found = _EVENT.findall(bundles)
    numbers = np.array([int(number) for number, _, _ in found], np.int64)
    places = np.maximum(np.searchsorted(firsts, numbers, side="right") - 1, 0)
    spent = np.diff(np.append(issued, cycles))
    # what the core waits for after a bundle is what the last instruction on the critical path waits for
    cause = np.maximum(np.searchsorted(path.issued, issued, side="right") - 1, 0)
    spent = np.where(path.waits[cause] == WAITS.index("dma"), np.minimum(spent, 1), spent)
    before = np.concatenate([[0], np.cumsum(spent)])
    work = np.diff(np.concatenate([[0], before[places], before[-1:]]))
    return Events(work, *_matched_copies(bundles, found))


def _matched_copies(
    bundles: bytes, found: Sequence[tuple[bytes, bytes, bytes]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kinds, sizes and what is waited for. A flag's copies are waited for in the order in which they were started."""
    flags = Flags(bundles)
    kinds = np.zeros(len(found), np.int64)
    sizes = np.zeros(len(found), np.int64)
    ready = np.full(len(found), -1, np.int64)
    open_by_flag: dict[bytes, deque[list[int]]] = defaultdict(deque)
    for place, (_, opcode, operands) in enumerate(found):
        if opcode.startswith(b"done") or b"wait" in opcode:
            kinds[place] = Kind.WAIT
            wait = _WAIT.match(operands)
            if wait is None:
                continue
            sizes[place] = GRANULE_BYTES * int(wait[3])
            flag = wait[2] if wait[2] else flags.of(wait[1])
            ready[place] = _take_bytes(open_by_flag, flag, int(sizes[place]))
        else:
            size = _GRANULES.search(operands)
            if size is None:
                raise ParseError("a DMA whose size is not known before the run")
            kinds[place], sizes[place] = _direction(opcode, operands), GRANULE_BYTES * int(size[1])
            to = _DESTINATION.search(operands)
            flag = b"" if to is None else to[2] if to[2] else flags.of(to[1])
            open_by_flag[flag].append([place, int(sizes[place])])
    return kinds, sizes, ready


def _take_bytes(open_by_flag: dict[bytes, deque[list[int]]], flag: bytes, size: int) -> int:
    """Take ``size`` bytes off the oldest copies of a flag: the number of the last start that they came from."""
    waiting = open_by_flag[flag]
    if not waiting:
        # the flag's number took a way that was not followed: the oldest open copy of that size
        others = [queue for queue in open_by_flag.values() if queue and queue[0][1] == size]
        if not others:
            return -1
        waiting = min(others, key=lambda queue: queue[0][0])
    last = -1
    while size > 0 and waiting:
        last, left = waiting[0]
        amount = min(left, size)
        size -= amount
        if amount == left:
            waiting.popleft()
        else:
            waiting[0][1] -= amount
    return last


def _direction(opcode: bytes, operands: bytes) -> Kind:
    if opcode.startswith(b"hbm_to_hbm"):
        return Kind.WRITE
    if opcode.startswith(b"hbm_to"):
        return Kind.READ
    if opcode.endswith(b"to_hbm"):
        return Kind.WRITE
    if opcode == b"general":  # its comment says between what
        if b"hbm-to-" in operands:
            return Kind.READ
        return Kind.WRITE if b"-to-hbm" in operands else Kind.LOCAL
    return Kind.LOCAL


class Flags:
    """The semaphores ("flags") of one dump of executed bundles that copies signal and waits name.

    A dump names a flag by its allocation or by a register. Registers are numbered in the order of execution and each is
    written once, so the origin of one can be read off: an allocation, another register, or a spill slot of scalar
    memory, which holds what was last stored there.
    """

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
