"""The kernel module that a recording becomes, with the parameters of the search that were found in it."""

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.workers.intake.source.knobs import Knob, with_params
from tilewright.workers.intake.triton.kernel_text import Kernels

MOST_CONFIGURATIONS = 16
"""Of a long list as many are tried as a campaign of 64 evaluations can spare a quarter for."""


@dataclass(frozen=True)
class WrapperText:
    """``conditions``: expressions over the operands that a call must meet; ``made``: assignments before them, of
    tensors without memory. ``returned``: an expression over operands and the module's results; empty where there is
    none. ``writes``: operand to the number of the result that it holds after the call. ``exact``: only calls of the
    recorded sizes are known to do the same. ``asks_gradients``: see ``Trace``."""

    conditions: tuple[str, ...]
    made: tuple[str, ...]
    returned: str
    writes: Mapping[str, int]
    exact: bool
    pair: "PairText | None" = None
    asks_gradients: bool = False


@dataclass(frozen=True)
class PairText:
    """``outputs``: numbers of the results that a pair's forward returns, in its order; ``gradients``: by operand the
    number of the result that is its gradient; ``given``: operands that are gradients of the outputs, by the numbers of
    those. ``once``: the backward writes what the forward kept, and so can be run once."""

    outputs: tuple[int, ...]
    gradients: Mapping[str, int]
    given: Mapping[str, int]
    once: bool


@dataclass
class KernelModule:
    """A kernel module as text. ``outputs``: the recorded tensors that it returns; ``ties``: echoes that follow a knob,
    by name."""

    source: str
    knobs: list[Knob]
    outputs: list[torch.Tensor]
    kernels: Kernels
    notes: list[str] = field(default_factory=list)
    ties: dict[str, str] = field(default_factory=dict)
    wrapper: WrapperText | None = None
    left_out: list[str] = field(default_factory=list)
    """What the wrapper does and the module does not."""
    meant: dict[str, int] = field(default_factory=dict)
    """Numbers that are no knobs by what the kernels do with them."""

    @property
    def outline(self) -> str:
        """The source with its knobs by number: what a wrapper chooses by sizes, such as a block, may differ in it."""
        numbers = itertools.count()
        places: dict[str, int] = defaultdict(lambda: next(numbers))
        return re.sub(r"params\[['\"](\w+)['\"]\]", lambda knob: f"params[{places[knob[1]]}]", self.source)

    def with_space(self, space: Mapping[str, Sequence[Any]], defaults: Mapping[str, Any]) -> str:
        """The module with the knobs that are in ``space``; the others as constants of their default."""
        texts = {knob.name: repr(knob.default) for knob in self.knobs if knob.name not in space}
        texts.update({echo: f'params["{name}"]' for echo, name in self.ties.items() if name in space})
        text = with_params(self.source, texts)
        declared = {name: tuple(values) for name, values in space.items()}
        head = f"SPACE = {_literal(declared)}\nDEFAULTS = {_literal(dict(defaults))}\nCONSTRAINTS = {{}}\n"
        return text.replace("SPACE = {}\n", head, 1)

    def configurations(self, space: Mapping[str, Sequence[Any]], defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The points of ``space`` that the file's own tuners choose between, without the default one: at most
        ``MOST_CONFIGURATIONS``, spread over their list."""
        tuned = {knob.name: knob.configured for knob in self.knobs if knob.configured and knob.name in space}
        count = max(map(len, tuned.values()), default=0)
        points = [
            {**{n: defaults[n] for n in space}, **{n: values[i] for n, values in tuned.items() if i < len(values)}}
            for i in range(count)
        ]
        distinct = [p for i, p in enumerate(points) if p not in points[:i] and p != dict(defaults)]
        wanted = min(len(distinct), MOST_CONFIGURATIONS)
        return [distinct[i * len(distinct) // wanted] for i in range(wanted)]


def _literal(value: Mapping[str, Any]) -> str:
    inner = "".join(f"    {k!r}: {v!r},\n" for k, v in value.items())
    return ("{\n" + inner + "}").replace("'", '"') if value else "{}"


ResultTypes = Sequence[tuple[tuple[int, ...], torch.dtype]] | None
"""Shapes and dtypes of the results that are judged; None: all there are."""


@dataclass(frozen=True)
class Origin:
    """What is known beside a recording: where it is from, operands' dimensions, and the device's figures by atom."""

    title: str
    dims: Mapping[str, Sequence[int | str]]
    device: Mapping[str, int]
    keeps_arguments: bool = False
    """Whether arguments that kernels write keep what they held elsewhere."""
