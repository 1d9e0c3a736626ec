"""Kernels of a CUDA binary (an ELF file of machine type 190), read without a driver or a device.

The binary comes from a process that ran a stranger's code: every offset in it is looked at before it is used. What is
read here decides whether a launch's arguments fit, since a driver copies as many bytes from its caller as the binary
asks for.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PARAMETER = struct.Struct("<IHHI")

_MACHINE_CUDA, _SECOND_VERSION = 190, 0x41
_SYMTAB, _CUDA_INFO = 2, 0x70000000
_KERNEL = 0x10
"""In a symbol's ``st_other``: a function that the host may launch."""

_ATTRIBUTE_PARAMETER, _ATTRIBUTE_BLOCK, _ATTRIBUTE_REGISTERS = 0x17, 0x10, 0x2F
"""Of ``.nv.info``: a parameter's number, offset and size; the block's size that the kernel was compiled for; a symbol's
number and its registers."""

_GRID_WAIT = 0x2E
_HARMLESS = frozenset((0x182, 0x0B9, 0x119, 0x1C3, 0x005, 0x002, 0x024))
"""Operations of ``sm_90``, the lowest 9 bits of an instruction: ``griddepcontrol.wait``; those that read parameters and
special registers and move numbers."""

_FORMAT_SIZED = 4
"""Of ``.nv.info``: an attribute with a length of its own; all others take four bytes."""

_USER_CONSTANTS = ".nv.constant3"
"""Where ``__constant__`` variables lie: memory that a store through a generic address may reach."""

_RESERVED = (".nv.reservedSmem", "__nv_reservedSMEM")
"""Beginnings of the names of the linker's own symbols."""

_SETTINGS = re.compile(rb"(?:__CUDA_[A-Z_]{1,24}\x00+)+")

MOST_SECTIONS, MOST_SYMBOLS, MOST_PARAMETERS = 4096, 1 << 16, 4096


class CubinError(ValueError):
    """Bytes that are no CUDA binary that may be loaded. The message is one line."""


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter: where it lies in the parameter block, and its size, in bytes."""

    offset: int
    size: int


@dataclass(frozen=True)
class Cubin:
    """``kernels``: by symbol its parameters in order. ``blocks``: threads of a block, where the code fixes them.

    ``architecture`` is 90 for compute capability 9.0. ``registers`` of a thread, where the binary names them.
    """

    architecture: int
    kernels: dict[str, tuple[Parameter, ...]]
    blocks: dict[str, int]
    registers: dict[str, int]


@dataclass(frozen=True)
class Section:
    """A part of a binary: ``size`` bytes from ``offset``."""

    name: str
    kind: int
    offset: int
    size: int


def read_cubin(data: bytes) -> Cubin:
    """Read a binary. Raises CubinError, also for one that keeps variables on the device or needs code from elsewhere.

    A kernel has no honest use for a variable that outlives its launch; one could hold the answer of an earlier call.
    """
    try:
        sections = list(sections_of(data))
        header = _HEADER.unpack_from(data)
        symbols = list(_symbols(data, sections))
        if any(s.name.startswith(".nv.global") and not _named_settings(data, s) for s in sections):
            raise CubinError("the code keeps variables in global memory")
        if any(s.name.startswith(_USER_CONSTANTS) and s.size for s in sections):
            raise CubinError("the code keeps variables in constant memory")
        for name, _, place in symbols:
            if name and place == 0 and not name.startswith(_RESERVED):
                raise CubinError(f"the code needs {name[:60]!r}, which it does not hold")
        names = [name for name, other, place in symbols if other & _KERNEL and place]
        info = {s.name: s for s in sections if s.kind == _CUDA_INFO}
        counts = dict(pair for s in sections if s.name == ".nv.info" for pair in _registers(data, s))
        registers = {symbols[n][0]: count for n, count in counts.items() if n < len(symbols)}
        kernels, blocks = {}, {}
        for name in names:
            section = info.get(f".nv.info.{name}")
            if section is None:
                raise CubinError(f"the code says nothing of the parameters of {name[:60]!r}")
            kernels[name], block = _described(data, section)
            if block is not None:
                blocks[name] = block
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError):  # offsets have 64 bits, an index 63
        raise CubinError("the code is no well-formed CUDA binary") from None
    # the second version of the format has the architecture in another byte of the flags
    architecture = (header[7] >> 8 if header[0][7] == _SECOND_VERSION else header[7]) & 0xFF
    return Cubin(architecture, kernels, blocks, {n: registers[n] for n in kernels if n in registers})


def waits_first(data: bytes, kernel: str) -> bool:
    """Whether all threads of a kernel wait for the grids queued before it ahead of every access of memory.

    Read from the machine code of compute capability 9.0. Raises CubinError.
    """
    for section in sections_of(data):
        if section.name == f".text.{kernel}":
            for place in range(section.offset, section.offset + section.size - 15, 16):
                low = int.from_bytes(data[place : place + 2], "little")
                if low & 0x1FF == _GRID_WAIT:
                    return low >> 12 == 7  # under no condition
                if low & 0x1FF not in _HARMLESS:
                    return False
    return False


def _named_settings(data: bytes, section: Section) -> bool:
    """Whether a section holds nothing, or only names of compiler settings: functions of the device's library that a
    kernel calls (``rsqrt``, ``erf``) leave the name of each setting that they asked about, which nothing reads."""
    if not section.size:
        return True
    held = data[section.offset : section.offset + section.size]
    return section.name == ".nv.global.init" and _SETTINGS.fullmatch(held) is not None


def sections_of(data: bytes) -> Iterator[Section]:
    """The parts of a binary. Raises CubinError; struct.error, UnicodeDecodeError for bytes that are none."""
    identity, _, machine, _, _, segments, start, _, _, long, many, size, count, names = _HEADER.unpack_from(data)
    if not identity.startswith(b"\x7fELF\x02\x01") or machine != _MACHINE_CUDA:
        raise CubinError("the code is no CUDA binary")
    if size != _SECTION.size or not names < count <= MOST_SECTIONS or (many and long != _SEGMENT.size):
        raise CubinError("the code's tables of sections and segments are malformed")
    for place in range(segments, segments + long * many, _SEGMENT.size):
        _, _, offset, _, _, length, _, _ = _SEGMENT.unpack_from(data, place)
        if offset + length > len(data):
            raise CubinError("a segment of the code lies outside of it")
    raw = [_SECTION.unpack_from(data, start + size * n) for n in range(count)]
    table = data[raw[names][4] : raw[names][4] + raw[names][5]]
    for name, kind, _, _, offset, length, *_ in raw:
        if kind != 8 and not offset + length <= len(data):  # 8: nothing of it is in the file
            raise CubinError("a section of the code lies outside of it")
        yield Section(_text(table, name), kind, offset, length)


def _symbols(data: bytes, sections: list[Section]) -> Iterator[tuple[str, int, int]]:
    """Name, ``st_other`` and section of each symbol."""
    strings = next((s for s in sections if s.name == ".strtab"), None)
    if strings is None:
        raise CubinError("the code has no names")
    table = data[strings.offset : strings.offset + strings.size]
    for section in sections:
        if section.kind == _SYMTAB:
            if section.size > MOST_SYMBOLS * _SYMBOL.size:
                raise CubinError("the code has too many symbols")
            for place in range(section.offset, section.offset + section.size, _SYMBOL.size):
                name, _, other, where, _, _ = _SYMBOL.unpack_from(data, place)
                yield _text(table, name), other, where


def _text(table: bytes, start: int) -> str:
    end = table.find(b"\0", start)
    if start > len(table) or end < 0:
        raise CubinError("a name in the code is malformed")
    return table[start:end].decode()


def _attributes(data: bytes, section: Section) -> Iterator[tuple[int, int, int]]:
    """Number, place and size of each attribute of ``.nv.info`` that has a length of its own."""
    place, end = section.offset, section.offset + section.size
    while place < end:
        form, attribute = data[place], data[place + 1]
        place += 4
        if form == _FORMAT_SIZED:
            (size,) = struct.unpack_from("<H", data, place - 2)
            yield attribute, place, size
            place += size


def _registers(data: bytes, section: Section) -> Iterator[tuple[int, int]]:
    """Of symbols by number."""
    for attribute, place, _ in _attributes(data, section):
        if attribute == _ATTRIBUTE_REGISTERS:
            symbol, count = struct.unpack_from("<II", data, place)
            yield symbol, count


def _described(data: bytes, section: Section) -> tuple[tuple[Parameter, ...], int | None]:
    """A kernel's parameters in order, and the threads of its block where the code fixes them."""
    found: dict[int, Parameter] = {}
    block = None
    for attribute, place, _ in _attributes(data, section):
        if attribute == _ATTRIBUTE_PARAMETER:
            _, number, offset, packed = _PARAMETER.unpack_from(data, place)
            found[number] = Parameter(offset, packed >> 18)
        elif attribute == _ATTRIBUTE_BLOCK:
            x, y, z = struct.unpack_from("<III", data, place)
            block = x * y * z
    if len(found) > MOST_PARAMETERS or sorted(found) != list(range(len(found))):
        raise CubinError("the code's parameters are not numbered in order")
    return tuple(found[n] for n in range(len(found))), block
