"""What the runners of torch devices share: a candidate as a module, its operands and what is read of its outputs."""

import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tilewright.seeds.sampled import is_whole, places, stream
from tilewright.workers.child.frames import Frame, dtype_named
from tilewright.workers.runners import bare_module
from tilewright.workers.runners.device_runner import operand_tables, sent_array

Answer = Callable[[Frame], None]

_numbers = itertools.count()


def load_module(source: str) -> ModuleType:
    """The candidate's module, from a real file in the working directory: Triton reads a kernel's source again."""
    number = next(_numbers)
    path = Path(f"candidate{number}.py").absolute()
    path.write_text(source, encoding="utf-8")
    return bare_module.execute(source, f"candidate{number}", str(path))


def checked_results(results: Any, wanted: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """What ``launch`` returned, by name. Raises TypeError unless it is exactly the tensors that are wanted."""
    if not isinstance(results, tuple | list) or len(results) != len(wanted):
        raise TypeError(f"launch returns {type(results).__name__} instead of a tuple of {len(wanted)} tensors")
    for result, spec in zip(results, wanted, strict=True):
        if type(result) is not torch.Tensor or not result.is_contiguous():
            raise TypeError(f"output {spec['name']} is no plain contiguous tensor")
        shape, dtype = list(result.shape), str(result.dtype).removeprefix("torch.")
        if shape != spec["shape"] or dtype != spec["dtype"]:
            expected = f"{spec['dtype']}{spec['shape']}"
            raise TypeError(f"output {spec['name']} is {dtype}{shape} instead of {expected}")
    return {spec["name"]: result for result, spec in zip(results, wanted, strict=True)}


Tensors = dict[str, torch.Tensor]

Key = tuple[int, str, str]
"""Of operands: their seed, workload and kind."""

KEPT_BYTES = 24 << 30
"""Of operands that stay on the device."""

PIECE = 1 << 26
"""Elements made at a time."""

FOLDED, FOLDS = 1 << 12, 1 << 10
"""Bytes that a large tensor's sum takes together, and the least number of such lines."""

_RAW = {1: (np.uint8, torch.uint8), 2: (np.int16, torch.int16), 4: (np.int32, torch.int32), 8: (np.int64, torch.int64)}
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
    plain = torch.from_numpy(np.ascontiguousarray(array).view(raw).copy()).reshape(array.shape)
    return plain.to(device).view(bits).view(torch_dtype(array.dtype.name))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same bits as an array of the dtype of that name."""
    return to_arrays({"": tensor})[""]


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """``to_numpy`` of several, which wait for the device together."""
    flat = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors.values()]
    octets = torch.cat(flat).cpu().numpy() if flat else np.zeros(0, np.uint8)
    pieces = np.split(octets, np.cumsum([piece.numel() for piece in flat])[:-1]) if flat else []
    return {
        name: piece.view(dtype_named(str(tensor.dtype).removeprefix("torch."))).reshape(tensor.shape)
        for (name, tensor), piece in zip(tensors.items(), pieces, strict=True)
    }


class Checksums:
    """Sums over tensors' bits that depend on their places, in a way only this process can tell."""

    def __init__(self, device: str) -> None:
        self._salt = int.from_bytes(os.urandom(4)) | 1
        self._device = device
        self._weights = self._made(0)
        drawn = torch.frombuffer(bytearray(os.urandom(FOLDED * 16)), dtype=torch.int8)
        self._mixed = drawn.to(device).view(16, FOLDED).t()

    def of(self, tensors: Tensors) -> list[int]:
        """One for each tensor."""
        sums = [self._sum(tensor.view(-1).view(torch.uint8)) for tensor in tensors.values()]
        return [int(total) for total in torch.stack(sums).tolist()] if sums else []

    def _sum(self, octets: torch.Tensor) -> torch.Tensor:
        lines = octets.numel() // FOLDED
        if lines >= FOLDS and self._device != "cpu":
            # a product by few columns reads memory once; one by weights writes and reads as much again
            whole = octets[: lines * FOLDED].view(torch.int8).view(lines, FOLDED)
            total = self._sum(torch._int_mm(whole, self._mixed).view(-1).view(torch.uint8))
            rest = octets[lines * FOLDED :]
            return total + self._salt * self._sum(rest) if rest.numel() else total
        words = octets.view(torch.int64) if octets.numel() % 8 == 0 else octets
        if words.numel() > self._weights.numel():
            self._weights = self._made(words.numel())
        return (words * self._weights[: words.numel()]).sum()

    def _made(self, count: int) -> torch.Tensor:
        """Weights of so many places: memory that nobody needs takes a short job longer than its kernel."""
        places = torch.arange(count, device=self._device, dtype=torch.int64) + self._salt
        return places * places


class Operands:
    """Operands of timed workloads: those used last are kept while there is room, unless a kernel wrote to any."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._checksums = Checksums(device)
        self._kept: OrderedDict[Key, tuple[Tensors, list[int]]] = OrderedDict()
        self._changed: set[Key] = set()

    def of(self, job: Frame, workload: Mapping[str, Any], kind: str = "") -> Tensors:
        """Made from a table the job brings (see ``seeds.sampled``), or sent. ``kind``: one beside the first."""
        key = (int(job.data["seed"]), workload["id"], kind)
        if key not in self._kept:
            tables = operand_tables(job, kind)
            made = {spec["name"]: self._made(job, key, spec, tables) for spec in workload["inputs"]}
            self._kept[key] = made, self._checksums.of(made)
            # those of a workload under way are needed, and the first kind of a seed in use by every evaluation
            others = [old for old in self._kept if old[:2] != key[:2] and (old[2] or old[0] != key[0])]
            while others and sum(t.nbytes for some, _ in self._kept.values() for t in some.values()) > KEPT_BYTES:
                self._changed |= self._written(others[:1])
                del self._kept[others.pop(0)]
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def changed(self) -> set[Key]:
        """Those that a kernel wrote to since this was asked last; then none kept are used again."""
        found, self._changed = self._changed | self._written(self._kept), set()
        if found:
            self._kept.clear()
        return found

    def _written(self, keys: Collection[Key]) -> set[Key]:
        sums = iter(self._checksums.of({f"{k}/{n}": t for k in keys for n, t in self._kept[k][0].items()}))
        return {key for key in keys if [next(sums) for _ in self._kept[key][0]] != self._kept[key][1]}

    def _made(self, job: Frame, key: Key, spec: Mapping[str, Any], tables: Mapping[str, np.ndarray]) -> torch.Tensor:
        (seed, workload, kind), name = key, spec["name"]
        table = tables[name] if name in tables else sent_array(job, workload, kind, name)
        values, salt = to_torch(table, self._device), stream(seed, workload, name)
        if name not in tables and is_whole(table, spec["shape"]):
            return values
        tensor = torch.empty(spec["shape"], dtype=torch_dtype(spec["dtype"]), device=self._device)
        flat, bits = tensor.view(-1), bits_of(tensor)
        for start in range(0, flat.numel(), PIECE):
            index = torch.arange(start, min(start + PIECE, flat.numel()), device=self._device)
            flat.view(bits)[start : start + PIECE] = values.view(bits)[places(index, salt)]
        return tensor


class DeviceElements:
    """As ``seeds.sampled.Elements``, made again on a device."""

    def __init__(
        self,
        seed: int,
        workload: str,
        shapes: Mapping[str, tuple[int, ...]],
        tables: Mapping[str, np.ndarray],
        sent: Mapping[str, np.ndarray],
        device: str,
    ) -> None:
        self._seed, self._workload, self._shapes, self._device = seed, workload, shapes, device
        self._sent = sent
        self._tables = {name: to_torch(table, device) for name, table in {**tables, **sent}.items()}

    def at(self, operand: str, *axes: np.ndarray) -> torch.Tensor:
        """The elements where these indices along each axis cross."""
        table, key = self._tables[operand], stream(self._seed, self._workload, operand)
        if is_whole(self._sent.get(operand), self._shapes[operand]):
            return to_torch(np.asarray(self._sent[operand][np.ix_(*axes)]), self._device)
        index = torch.zeros((), dtype=torch.int64, device=self._device)
        for place, (size, along) in enumerate(zip(self._shapes[operand], axes, strict=True)):
            shape = [-1 if n == place else 1 for n in range(len(axes))]
            index = index * size + torch.from_numpy(along.astype(np.int64)).to(self._device).view(shape)
        flat, shape = index.reshape(-1), list(index.shape)
        found = torch.empty(flat.numel(), dtype=bits_of(table), device=self._device)
        for start in range(0, flat.numel(), PIECE):
            found[start : start + PIECE] = table.view(bits_of(table))[places(flat[start : start + PIECE], key)]
        return found.view(table.dtype).view(shape)


class Sampler:
    """Where the job asks for an output's values; all of them where it does not ask."""

    def __init__(self, job: Frame, workload: Mapping[str, Any], device: str) -> None:
        self._axes: dict[str, list[torch.Tensor | None]] = {}
        for spec in workload["outputs"]:
            axes = self._axes.setdefault(spec["name"], [])
            while (where := job.arrays.get(f"where/{workload['id']}/{spec['name']}/{len(axes)}")) is not None:
                whole = np.array_equal(where, np.arange(spec["shape"][len(axes)]))
                axes.append(None if whole else torch.from_numpy(where.copy()).to(device))

    def values(self, outputs: Mapping[str, torch.Tensor]) -> Tensors:
        """Copies, on the device; nothing waits for them."""
        return {name: self._values(output, self._axes[name]) for name, output in outputs.items()}

    @staticmethod
    def _values(output: torch.Tensor, axes: Sequence[torch.Tensor | None]) -> torch.Tensor:
        tensor = output.view(bits_of(output))
        picked = [(number, axis) for number, axis in enumerate(axes) if axis is not None]
        for number, axis in picked:
            tensor = tensor.index_select(number, axis)
        return (tensor if picked else tensor.clone()).view(output.dtype)
