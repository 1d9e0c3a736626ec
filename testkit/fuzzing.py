"""Inputs of the parsers of foreign text: honest ones, and those that a coverage-guided search kept.

Each of ``testkit/corpus/fuzz`` took a new branch (``experiments/records/robustness/fuzz.md``).
"""

import base64
import functools
import json
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from testkit import CORPUS
from testkit.evaluations import candidate, failed
from testkit.journals import journal_content
from tilewright.evolve.campaign.config import load_config
from tilewright.evolve.errors import JournalError, UserError
from tilewright.evolve.proposers.llm.proposer import EditError, read_reply
from tilewright.evolve.record.journal import Journal
from tilewright.fitness import dialect
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.tpu.llo import ParseError, read_profile, scan_bundles, vmem_bytes
from tilewright.fitness.tpu.timeline import read_critical_path, read_diagnosis
from tilewright.library.store import NotServed, load_table
from tilewright.workers.child.frames import Frame, FrameError, FrameReader, encode


@dataclass(frozen=True)
class Parser:
    """``read`` may raise ``errors`` and nothing else. ``samples`` are honest inputs."""

    read: Callable[[bytes, Path], object]
    errors: tuple[type[Exception], ...]
    samples: tuple[bytes, ...]


BUNDLES = (
    b"0x0: bundle slots:\n  %0 = dma.hbm_to_vmem [x] /*size_in_granules=*/8192\n"
    b"0x1: bundle slots:\n  %1 = vst [vmem:$0xa_spill] %v1\n"
    b"  %2 = vmatmul.mubr.f8e4m3fn.gmra.mrb[0].mxu0 %v14_v1\n"
)
CRITICAL = (
    b"Length to end: 1000, %0 = dma.hbm_to_vmem [x] /*size_in_granules=*/8192\nLength to end: 60, %2 = vadd %v1\n"
)
ALLOCATION = b"#allocation2 [shape = 'f32[8,128]', space=vmem, size = 0x12000, scoped]\n"
PROFILE = b'op_name: "a"\nestimated_cycles: 1000\nnum_equivalent_hlos: 1\n'
REPLY = b"SUMMARY: x\n<<<<<<< SEARCH\n    x = 1\n=======\n    x = 2\n>>>>>>> REPLACE\n```python\nx = 3\n```\n"
PARENT = "def build(params):\n    x = 1\n    return x\n"
YAML = (
    b"name: a\noperator: gemm/x\ntarget: tpu7x\nsuite: tiny\nseed: 1\nbudget: {evaluations: 3}\n"
    b"search: {lag: 4, order: index, proposers: [parameters]}\nworkers: {count: 2}\n"
)
INDEX = b'{"format": 1, "current": "0123456789abcdef", "history": [{"version": "0123456789abcdef"}]}'
FRAME = encode(
    Frame("checked", {"a": [1, 2.5, None]}, {"c": np.arange(6, dtype=np.int16).reshape(2, 3)}, {"m": b"xyz"})
)
EVALUATION = failed().model_dump_json().encode()

SLOW_SECONDS = 5.0


def parsers() -> Mapping[str, Parser]:
    """Parsers by name."""
    return {
        "bundles": Parser(lambda d, _: scan_bundles(d), (ParseError,), (BUNDLES,)),
        "allocations": Parser(lambda d, _: vmem_bytes([_text(d)]), (ParseError,), (ALLOCATION,)),
        "timeline": Parser(_timeline, (ParseError,), (BUNDLES + CRITICAL,)),
        "profile": Parser(lambda d, _: read_profile(_text(d)), (ParseError,), (PROFILE,)),
        "frames": Parser(_frames, (FrameError,), (FRAME, FRAME + FRAME)),
        "yaml": Parser(_yaml, (UserError,), (YAML,)),
        "journal rows": Parser(_rows, (JournalError,), (b"{}", b"[]", EVALUATION)),
        "journal file": Parser(_file, (JournalError,), (_journal_bytes(),)),
        "reply": Parser(lambda d, _: read_reply(_text(d), PARENT), (EditError,), (REPLY,)),
        "library index": Parser(_index, (NotServed,), (INDEX,)),
        "dialect": Parser(lambda d, _: dialect.check(_text(d)), (), (PARENT.encode(),)),
    }


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _frames(data: bytes, folder: Path) -> object:
    """In two pieces, as a pipe may deliver them."""
    reader, half = FrameReader(1 << 20), len(data) // 2
    return [*reader.feed(data[:half]), *reader.feed(data[half:])]


def _timeline(data: bytes, folder: Path) -> object:
    cut = data.find(b"Length to end")
    return read_diagnosis(data[:cut], read_critical_path(data[cut:], 1000), 1000, CHIPS["tpu7x"])


def _yaml(data: bytes, folder: Path) -> object:
    (folder / "campaign.yaml").write_bytes(data)
    return load_config(folder / "campaign.yaml")


def _index(data: bytes, folder: Path) -> object:
    place = folder / "a" / "b"
    place.mkdir(parents=True, exist_ok=True)
    (place / "index.json").write_bytes(data)
    return load_table("a/b", "interpret", folder)


@functools.cache
def _journal_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        with Journal(path, write=True, create=True) as journal:
            journal.add_candidate(candidate(0))
            journal.add_evaluation(0, failed())
            journal.add_event("started")
        return path.read_bytes()


def _rows(data: bytes, folder: Path) -> object:
    """A journal with one cell of a candidate, an evaluation or an event replaced."""
    path = folder / "journal.sqlite"
    for name in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (folder / name).unlink(missing_ok=True)
    path.write_bytes(_journal_bytes())
    column = ("params", "parents", "kind", "evaluation", "detail")[len(data) % 5]
    table = {"evaluation": "evaluations", "detail": "events"}.get(column, "candidates")
    db = sqlite3.connect(path)
    db.execute("PRAGMA synchronous = OFF")  # the disk is waited for in no other way
    with db:
        db.execute(f"DROP TRIGGER {table}_update")
        db.execute(f"UPDATE {table} SET {column} = ?", (_text(data),))
    db.close()
    with Journal(path) as journal:
        return list(journal.candidates()), list(journal.evaluations()), journal.events()


def _file(data: bytes, folder: Path) -> object:
    """A journal's file itself, damaged."""
    for name in ("damaged.sqlite-wal", "damaged.sqlite-shm"):
        (folder / name).unlink(missing_ok=True)
    (folder / "damaged.sqlite").write_bytes(data)
    with Journal(folder / "damaged.sqlite") as journal:
        return journal_content(journal), journal.events()


def attempt(parser: Parser, data: bytes, folder: Path) -> str | None:
    """What is wrong with how a parser takes ``data``; None when nothing is."""
    begun = time.process_time()
    try:
        parser.read(data, folder)
    except parser.errors as error:
        if not str(error):
            return "an error without a message"
    except Exception as error:  # noqa: BLE001 - what is looked for
        return f"{type(error).__name__}: {error}"[:200]
    spent = time.process_time() - begun
    return "more CPU time than allowed" if spent > SLOW_SECONDS else None


def corpus(name: str) -> list[bytes]:
    """The inputs that an earlier search kept for a parser."""
    path = CORPUS / "fuzz" / f"{name.replace(' ', '_')}.json"
    texts = json.loads(path.read_text()) if path.is_file() else []
    return [zlib.decompress(base64.b64decode(text)) for text in texts]
