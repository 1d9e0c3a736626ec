"""The guard on what ``launch`` may do beside its kernels: make tensors and look at them in another shape.

Torch computes what it is asked to, vendor libraries included; that would be no kernel of the candidate's. Under
``LaunchGuard`` any other operation raises, and every tensor that ``launch`` makes lies between canaries, so that a
kernel that writes beside it is found out. What ``launch`` does depends on shapes and parameters alone (the dialect
leaves it nothing else, and the guard no look at a value), so one guarded call for each shape speaks for all.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.library.torch_record import FRESH, RESET, VIEWS, ZEROS, ForeignWork

POISON = 0xFF
"""Every byte of fresh memory, every other time: NaN in every float type."""


def poison() -> int:
    """A byte to fill fresh memory with, by lot: what is left as it was must not be known by its looks."""
    return secrets.choice((POISON, secrets.randbelow(POISON)))


KEPT = -1
"""Fresh memory is left with what an earlier call left there: answers to other inputs."""


def poisons(count: int) -> list[int]:
    """For so many calls in a row: NaN and something else in turn, whichever comes first."""
    first = secrets.randbelow(2)
    others = [secrets.choice((KEPT, secrets.randbelow(POISON))) if count > 1 else poison() for _ in range(count)]
    return [POISON if count > 1 and turn % 2 == first else other for turn, other in enumerate(others)]


CANARY = 0xA5
CANARY_BYTES = 1 << 14
"""On either side of a tensor; a multiple of every alignment a kernel may rely on."""


class OutsideWrite(RuntimeError):
    """A kernel wrote beside a tensor it was given."""


class Canaries:
    """Bytes around tensors that nobody has a reason to write to. ``fill``: every byte of fresh memory, or ``KEPT``;
    None: by lot. ``kept``: tensors of an earlier call; ``made``: those of this one."""

    def __init__(self, fill: int | None = None, kept: Sequence[torch.Tensor] = ()) -> None:
        self.fill = fill
        self._kept = kept
        self.made: list[torch.Tensor] = []
        self._rings: list[torch.Tensor] = []
        self._spans: list[tuple[int, int]] = []
        self.read_outside = False

    def allocate(self, like: torch.Tensor, device: torch.device | str, fill: int | None = None) -> torch.Tensor:
        """Contiguous memory of this shape and dtype between two canaries, at a place by lot, all ``fill``, or as the
        canaries say. A library serves operands at any multiple of 16."""
        size = like.numel() * like.element_size()
        start = CANARY_BYTES + 16 * secrets.randbelow(256)
        memory = torch.empty(start + size + CANARY_BYTES, dtype=torch.uint8, device=device)
        middle = memory[start : start + size]
        fill = self.fill if fill is None else fill
        old = [one for one in self._kept if (one.shape, one.dtype) == (like.shape, like.dtype)]
        if fill == KEPT and old:
            middle.copy_(old[-1].reshape(-1).roll(1).view(torch.uint8))
        else:
            middle.fill_(poison() if fill is None or fill == KEPT else fill)
        self._spans.append((middle.data_ptr(), middle.data_ptr() + size))
        for ring in (memory[:start], memory[start + size :]):
            ring.fill_(CANARY)
            self._rings.append(ring)
        return middle.view(like.dtype).view(like.shape)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same values between canaries."""
        made = self.allocate(tensor, tensor.device)
        made.view(-1).view(torch.uint8).copy_(tensor.reshape(-1).view(torch.uint8))
        return made

    def watch(self) -> None:
        """Note whether a kernel in Triton's interpreter reads beside these tensors, from now on in this process."""
        import triton.runtime.interpreter as interpreter

        builder = interpreter.InterpreterBuilder
        plain = builder.plain_load = getattr(builder, "plain_load", builder.create_masked_load)

        def load(own: Any, places: Any, mask: Any, *rest: Any, **more: Any) -> Any:
            at = np.asarray(places.data)[np.asarray(mask.data).astype(bool)]
            low, high = at.min(initial=1 << 63), at.max(initial=0)
            if not any(begin <= low and high < end for begin, end in self._spans):
                inside = sum((at >= begin) & (at < end) for begin, end in self._spans)
                self.read_outside |= not np.all(inside)
            return plain(own, places, mask, *rest, **more)

        builder.create_masked_load = load

    def inspect(self) -> None:
        """After the device is done. Raises OutsideWrite."""
        if not all(bool((ring == CANARY).all()) for ring in self._rings):
            raise OutsideWrite("a kernel writes outside the tensors it was given")


def _no_text(*_: Any, **__: Any) -> str:
    """In place of torch's own: that looks at values with all modes off."""
    raise ForeignWork("work outside the kernel: torch writes a tensor as text")


class LaunchGuard(TorchDispatchMode):
    """While open, torch makes tensors (between ``canaries``, if given) and views and does nothing else.

    Raises ForeignWork out of ``launch``.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: the wrapper that skips it would import torch's compiler, which takes seconds, in every child."""
        return False

    def __init__(self, canaries: Canaries | None = None) -> None:
        super().__init__()
        self._canaries = canaries

    def __enter__(self) -> Any:
        self._text, torch._tensor_str._str = torch._tensor_str._str, _no_text
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        torch._tensor_str._str = self._text
        super().__exit__(*raised)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if name in FRESH or name in ZEROS:
            return self._made(func, args, options, 0 if name in ZEROS else None)
        if name not in VIEWS and name not in RESET:
            raise ForeignWork(f"work outside the kernel: torch computes {name}")
        return func(*args, **options)

    def _made(self, func: Any, args: Sequence[Any], options: dict[str, Any], fill: int | None) -> torch.Tensor:
        if self._canaries is None:
            return func(*args, **options)
        like = func(*args, **{**options, "device": "meta"})
        source = args[0].device if isinstance(args[0], torch.Tensor) else torch.get_default_device()
        if not like.is_contiguous():
            raise ForeignWork("work outside the kernel: torch makes a tensor that is not contiguous")
        self._canaries.made.append(self._canaries.allocate(like, options.get("device") or source, fill))
        return self._canaries.made[-1]
