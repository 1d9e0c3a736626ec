"""Arrays as torch tensors, operands made on a device, and what is read back of outputs."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tilewright.seeds.sampled import places, stream
from tilewright.workers.child.frames import Frame, dtype_named

Tensors = dict[str, torch.Tensor]

OPERAND_SETS = 2
"""Seeds whose operands stay on the device."""

KIND_BYTES = 16 << 30
"""Of operands of other kinds that stay on the device."""

PIECE = 1 << 26
"""Elements made at a time."""

SUMMED = 1 << 24
"""Words summed at a time."""

_RAW = {
    1: (np.uint8, torch.uint8),
    2: (np.int16, torch.int16),
    4: (np.int32, torch.int32),
    8: (np.int64, torch.int64),
}
"""Integers of the same width, by bytes: numpy and torch share no 8-bit or 16-bit float types."""


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype that numpy or ml_dtypes calls ``name``. Raises TypeError for one torch lacks."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch has no dtype {name}")
    return found


def bits_of(tensor: torch.Tensor) -> torch.dtype:
    """The integer dtype of the same width."""
    return _RAW[tensor.element_size()][1]


def to_torch(array: np.ndarray, device: str) -> torch.Tensor:
    """The same bits on ``device``, in memory of its own."""
    raw, bits = _RAW[array.dtype.itemsize]
    plain = torch.from_numpy(np.ascontiguousarray(array).view(raw).copy())
    return plain.to(device).view(bits).view(torch_dtype(array.dtype.name))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same bits as an array of the dtype of that name."""
    name = str(tensor.dtype).removeprefix("torch.")
    raw, bits = _RAW[tensor.element_size()]
    plain = tensor.detach().cpu().contiguous().view(bits).numpy().view(raw)
    return plain.view(dtype_named(name))


class Checksums:
    """Sums over tensors' bits that depend on their places, in a way only this process can tell."""

    def __init__(self, device: str) -> None:
        self._salt = int.from_bytes(os.urandom(4)) | 1
        self._device = device
        self._weights = self._made(0)

    def of(self, tensors: Tensors) -> list[int]:
        """One for each tensor."""
        sums = [self._sum(tensor.view(-1).view(torch.uint8)) for tensor in tensors.values()]
        return [int(total) for total in torch.stack(sums).tolist()] if sums else []

    def _sum(self, octets: torch.Tensor) -> torch.Tensor:
        words = octets.view(torch.int64) if octets.numel() % 8 == 0 else octets
        total = torch.zeros((), dtype=torch.int64, device=self._device)
        if (longest := min(words.numel(), SUMMED)) > self._weights.numel():
            self._weights = self._made(longest)
        for number, start in enumerate(range(0, words.numel(), SUMMED)):
            piece = words[start : start + SUMMED]
            total += (number * self._salt + 1) * (piece * self._weights[: piece.numel()]).sum()
        return total

    def _made(self, count: int) -> torch.Tensor:
        """Weights of so many places: memory that nobody needs takes a short job longer than its kernel."""
        places = torch.arange(count, device=self._device, dtype=torch.int64) + self._salt
        return places * places


class Operands:
    """Operands of timed workloads, kept for a few seeds."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._checksums = Checksums(device)
        self._sets: OrderedDict[int, dict[str, Tensors]] = OrderedDict()
        self._sums: dict[tuple[int, str], list[int]] = {}
        self._kinds: OrderedDict[tuple[int, str, str], tuple[Tensors, list[int]]] = OrderedDict()

    def on_kind(self, job: Frame, workload: Mapping[str, Any], kind: str) -> Tensors:
        """Operands of another kind: those used last are kept while there is room, unless a kernel changed them."""
        key = (int(job.data["seed"]), workload["id"], kind)
        held = self._kinds.pop(key, None)
        if held is None or self._checksums.of(held[0]) != held[1]:
            made = {spec["name"]: self._made(job, *key, spec) for spec in workload["inputs"]}
            held = made, self._checksums.of(made)
        self._kinds[key] = held
        while len(self._kinds) > 1 and sum(map(_size, (t for t, _ in self._kinds.values()))) > KIND_BYTES:
            self._kinds.popitem(last=False)
        return held[0]

    def kind_changed(self, job: Frame, workload: Mapping[str, Any], kind: str) -> bool:
        """Whether a kernel wrote to what ``on_kind`` made last."""
        tensors, sums = self._kinds[int(job.data["seed"]), workload["id"], kind]
        return self._checksums.of(tensors) != sums

    def of(self, job: Frame, workload: Mapping[str, Any]) -> Tensors:
        """Made from a table the job brings (see ``seeds.sampled``), or sent."""
        seed, name = int(job.data["seed"]), workload["id"]
        sets = self._sets.setdefault(seed, {})
        self._sets.move_to_end(seed)
        while len(self._sets) > OPERAND_SETS:
            old, _ = self._sets.popitem(last=False)
            self._sums = {key: value for key, value in self._sums.items() if key[0] != old}
        if name not in sets:
            sets[name] = {spec["name"]: self._made(job, seed, name, "", spec) for spec in workload["inputs"]}
            self._sums[seed, name] = self._checksums.of(sets[name])
        return sets[name]

    def changed(self, seed: int, name: str) -> bool:
        """Whether a kernel wrote to a workload's operands; then none of those kept are used again."""
        found = self._checksums.of(self._sets[seed][name]) != self._sums[seed, name]
        if found:
            self._sets.clear()
        return found

    def others_changed(self, seed: int, names: Collection[str]) -> bool:
        """Whether a kernel wrote to operands that are kept for other workloads than these of this seed."""
        kept = [
            (s, name) for s, sets in self._sets.items() for name in sets if s != seed or name not in names
        ]
        return any(self.changed(*one) for one in kept)

    def _made(self, job: Frame, seed: int, name: str, kind: str, spec: Mapping[str, Any]) -> torch.Tensor:
        own = f"{kind}/{spec['name']}" if kind else spec["name"]
        table = job.arrays.get(f"table/{own}")
        if table is None:
            return to_torch(job.arrays[f"{name}/{own}"], self._device)
        values, key = to_torch(table, self._device), stream(seed, name, spec["name"])
        tensor = torch.empty(spec["shape"], dtype=torch_dtype(spec["dtype"]), device=self._device)
        flat, bits = tensor.view(-1), bits_of(tensor)
        for start in range(0, flat.numel(), PIECE):
            index = torch.arange(start, min(start + PIECE, flat.numel()), device=self._device)
            flat.view(bits)[start : start + PIECE] = values.view(bits)[places(index, key)]
        return tensor


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


class DeviceElements:
    """As ``seeds.sampled.Elements``, made again on a device."""

    def __init__(
        self,
        seed: int,
        workload: str,
        shapes: Mapping[str, tuple[int, ...]],
        tables: Mapping[str, np.ndarray],
        device: str,
    ) -> None:
        self._seed, self._workload, self._shapes, self._device = seed, workload, shapes, device
        self._tables = {name: to_torch(table, device) for name, table in tables.items()}

    def at(self, operand: str, *axes: np.ndarray) -> torch.Tensor:
        """The elements where these indices along each axis cross."""
        table, key = self._tables[operand], stream(self._seed, self._workload, operand)
        index = torch.zeros((), dtype=torch.int64, device=self._device)
        for place, (size, along) in enumerate(zip(self._shapes[operand], axes, strict=True)):
            shape = [-1 if n == place else 1 for n in range(len(axes))]
            index = index * size + torch.from_numpy(along.astype(np.int64)).to(self._device).view(shape)
        flat, shape = index.reshape(-1), list(index.shape)
        found = torch.empty(flat.numel(), dtype=bits_of(table), device=self._device)
        for start in range(0, flat.numel(), PIECE):
            found[start : start + PIECE] = table.view(bits_of(table))[
                places(flat[start : start + PIECE], key)
            ]
        return found.view(table.dtype).view(shape)


class Sampler:
    """Where the job asks for an output's values; all of them where it does not ask."""

    def __init__(self, job: Frame, workload: Mapping[str, Any], device: str, kind: str = "") -> None:
        self._axes: dict[str, list[torch.Tensor]] = {}
        for spec in workload["outputs"]:
            axes = self._axes.setdefault(spec["name"], [])
            own = f"{kind}/{spec['name']}" if kind else spec["name"]
            while (where := job.arrays.get(f"where/{workload['id']}/{own}/{len(axes)}")) is not None:
                axes.append(torch.from_numpy(where.copy()).to(device))

    def values(self, outputs: Mapping[str, torch.Tensor]) -> Tensors:
        """Copies, on the device; nothing waits for them."""
        return {name: self._values(output, self._axes[name]) for name, output in outputs.items()}

    @staticmethod
    def _values(output: torch.Tensor, axes: Sequence[torch.Tensor]) -> torch.Tensor:
        tensor = output.view(bits_of(output))
        for number, axis in enumerate(axes):
            tensor = tensor.index_select(number, axis)
        return (tensor if axes else tensor.clone()).view(output.dtype)
