"""One recorded launch, run again on its recorded values with any configuration: timed, and compared."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from tilewright.library.launch_replacement import Configuration, innermost, launch
from tilewright.workers.intake.judge.bounds import CAP, EXPECTED_DB, PRODUCTS_DB
from tilewright.workers.program.launches import Launch

NARROW = ("bfloat16", "float16", "float32", "float64")
GUARD, CANARY = 1 << 16, 0xA5
"""Bytes on either side of each storage, and what they hold."""

LEAST_NOISE_DB = 10.0
"""Of a kernel that is nearer to itself than this, something can be told by its answers."""

NOISE_ROOM_DB = 6.0
"""A kernel that adds in an order of its own differs from itself; another one may differ by so much more."""


class Replay:
    """A launch that has values. ``derived``: the floats are scaled by numbers between a half and one, drawn anew."""

    def __init__(self, recorded: Launch, derived: bool = False, winner: Any = None) -> None:
        assert recorded.values is not None
        self.launch, self.values = recorded, recorded.values
        self.original = innermost(recorded.outer)
        self.kernel = self.original if winner is None else innermost(winner)
        self._places = {name: n for n, name in enumerate(self.kernel.arg_names)}
        self._given = [s.clone() for s in self.values.storages] if derived else self.values.storages
        if derived:
            _rescale(self.values.tensors(self._given), self.values.views)
        self.storages = self._given  # until it is launched, which may write
        self.tensors = self.values.tensors(self.storages)
        self._dtypes = {n: dtype for n, dtype, *_ in self.values.views.values()}
        self._written: list[int] = []
        self._outputs: list[int | str] = []
        self._expected: list[torch.Tensor] = []
        self._bound = 0.0
        self._guards: list[torch.Tensor] = []

    def call(self, configuration: Configuration, warmup: bool = False, original: bool = False) -> None:
        """Launch with a configuration over what the program's own tuner had chosen."""
        recorded = self.launch
        args = [self.tensors.get(n, v) for n, v in enumerate(recorded.args)]
        named = {k: self.tensors.get(k, v) for k, v in recorded.kwargs.items()}
        chosen = {**recorded.chosen, **configuration}
        kernel = self.original if original else self.kernel
        launch(kernel, self._places, chosen, recorded.grid, args, named, warmup)

    def reset(self) -> None:
        """The values as they were before the launch, outputs poisoned."""
        for n in self._written or range(len(self.storages)):
            self.storages[n].copy_(self._given[n])
        for at in self._outputs:
            self.tensors[at].fill_(math.nan)

    def learn(self) -> str:
        """Run the original: which storages it writes, which tensors it fills whatever they held, what it answers. Why
        nothing can be told by that; empty where it can."""
        around = [torch.full((s.numel() + 2 * GUARD,), CANARY, dtype=s.dtype, device=s.device) for s in self._given]
        self._guards = [edge for buffer in around for edge in (buffer[:GUARD], buffer[-GUARD:])]
        self.storages = [buffer[GUARD:-GUARD].copy_(s) for buffer, s in zip(around, self._given, strict=True)]
        self.tensors = self.values.tensors(self.storages)
        first = self._answers(None, original=True)
        self._written = self._changed(first)
        if not self._written:
            # the memory of an output may hold the answer already: that of the step before, given out again
            given, self._given = self._given, [s.clone() for s in self._given]
            _rescale(self.values.tensors(self._given), self.values.views)
            written = self._changed(self._answers(None, original=True))
            self._given = given
            self.reset()
            self._written = written
        if not self._written:
            return "it changes none of the tensors that it is given"
        expected = [first[n] for n in self._written]
        noise = self._distance(expected, [self._answers(None, original=True)[n] for n in self._written])
        if not noise >= LEAST_NOISE_DB:
            return f"its own answers differ from each other ({noise:.1f} dB)"
        for at, (n, dtype, *_) in self.values.views.items():
            if n not in self._written or not dtype.is_floating_point:
                continue
            self._outputs.append(at)
            poisoned = [self._answers(None, original=True)[n] for n in self._written]
            if not self._distance(expected, poisoned) >= min(noise, 200.0) - NOISE_ROOM_DB:
                self._outputs.pop()
        self._expected = [self._answers(None, original=True)[n] for n in self._written]
        self._bound = min(self._explained(), noise - NOISE_ROOM_DB)
        return ""

    def _changed(self, found: list[torch.Tensor]) -> list[int]:
        return [n for n, (a, b) in enumerate(zip(found, self._given, strict=True)) if not torch.equal(a, b)]

    def _answers(self, configuration: Configuration | None, original: bool = False) -> list[torch.Tensor]:
        self.reset()
        self.call(configuration or {}, original=original)
        return [s.clone() for s in self.storages]

    def _explained(self) -> float:
        """Decibels that the data types leave."""
        found = {str(dtype).rpartition(".")[2] for _, dtype, *_ in self.values.views.values()}
        narrow = next((name for name in NARROW if name in found), "float32")
        products = narrow == "float32" and "dot(" in self.launch.source
        return PRODUCTS_DB["float32"] if products else EXPECTED_DB[narrow]

    def _distance(self, expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
        """The least signal-to-noise ratio of any storage, dB."""
        least = math.inf
        for n, a, b in zip(self._written, expected, found, strict=True):
            least = min(least, decibels([(a.view(self._dtypes[n]), b.view(self._dtypes[n]))]))
        return least

    def wrong(self, configuration: Configuration) -> str:
        """Why a configuration's answers are not the original's; empty where they are. ``learn`` comes first."""
        for guard in self._guards:
            guard.fill_(CANARY)
        try:
            found = self._answers(configuration)
            if self.storages[0].is_cuda:
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - a compiler or a launch may raise anything
            return f"{type(error).__name__}: {error}".splitlines()[0][:160]
        if not bool((torch.cat(self._guards) == CANARY).all()):
            return "it writes beyond its tensors"
        for n, (answer, given) in enumerate(zip(found, self._given, strict=True)):
            if n not in self._written and not torch.equal(answer, given):
                return "it writes a tensor that the original does not write"
        for n, answer in zip(self._written, self._expected, strict=True):
            dtype = self._dtypes[n]
            a, b = answer.view(dtype), found[n].view(dtype)
            db = decibels([(a, b)])
            if not db >= self._bound:
                return f"{db:.1f} dB from the original's answer where {self._bound:.1f} dB are explained"
            cap = CAP.get(str(dtype).rpartition(".")[2], 2.0**-4)
            if not (worst := _worst(a, b)) <= cap:
                return f"an element is {worst:.3g} of what is usual away from the original's"
        return ""


def _rescale(tensors: dict[Any, torch.Tensor], views: dict[Any, Any]) -> None:
    done = set()
    for at, tensor in tensors.items():
        n = views[at][0]
        if n in done or not tensor.dtype.is_floating_point or tensor.element_size() == 1:
            continue
        done.add(n)
        tensor.mul_(torch.rand_like(tensor, dtype=torch.float32).mul_(0.5).add_(0.5).to(tensor.dtype))


def decibels(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Signal over noise of all pairs of an expected and a found tensor together, dB; infinite where they are equal,
    minus infinite where integers differ, or values that are not finite lie elsewhere."""
    signal = noise = 0.0
    for expected, found in pairs:
        if not expected.dtype.is_floating_point:
            if not torch.equal(expected, found):
                return -math.inf
            continue
        a, b = expected.float(), found.float()
        finite = torch.isfinite(a)
        if not torch.equal(finite, torch.isfinite(b)):
            return -math.inf
        a, b = torch.where(finite, a, 0.0), torch.where(finite, b, 0.0)
        noise += float((a - b).norm(dtype=torch.float64)) ** 2
        signal += float(a.norm(dtype=torch.float64)) ** 2
    if noise == 0.0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _worst(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Most that an element is off, as a share of itself and the usual size."""
    a, b = (torch.nan_to_num(t.float(), nan=0.0, posinf=0.0, neginf=0.0) for t in (expected, found))
    usual = float(a.norm() / max(1.0, a.numel() ** 0.5))
    return float(((a - b).abs() / (a.abs() + usual + 1e-30)).max()) if a.numel() else 0.0
