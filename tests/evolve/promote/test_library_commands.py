"""The library promotions go into: sabotage is reported and never served, writers lose nothing, old versions return."""

import multiprocessing
from pathlib import Path

import pytest

from testkit.promote_campaign import CHILD, OPERATOR, OTHER, SEED, one_sentence, run
from tilewright.evolve import cli
from tilewright.evolve.promote import library_writer as library_writer
from tilewright.evolve.promote.command import Options
from tilewright.evolve.promote.library_commands import collect, rollback
from tilewright.evolve.promote.library_writer import LibraryError, LibraryWriter
from tilewright.evolve.promote.verify import Refusal
from tilewright.library import store

# -- sabotage ----------------------------------------------------------------------------------------


def damage(writer, how):
    """Damage the current version; words that the report must have."""
    version, _, dispatch = writer.version(OPERATOR)
    folder = writer.place(OPERATOR) / "versions" / version
    if how == "edited kernel":
        path = folder / dispatch["targets"]["tpu7x"]["kernels"][CHILD.id]["file"]
        path.write_text(path.read_text().replace("jnp.float32", "jnp.bfloat16"))
        return "is not what was promoted"
    if how == "missing receipt":
        (folder / store.RECEIPT).unlink()
        return "receipt.json cannot be read"
    if how == "truncated dispatch":
        path = folder / store.DISPATCH
        path.write_bytes(path.read_bytes()[:200])
        return "dispatch.json is not what was promoted"
    if how == "truncated index":
        path = writer.place(OPERATOR) / store.INDEX
        path.write_bytes(path.read_bytes()[:50])
        return "index.json is cut short"
    assert how == "edited receipt"
    path = folder / store.RECEIPT
    path.write_text(path.read_text().replace('"value": 2.0', '"value": 3.0'))
    return "receipt.json is not what was promoted"


SABOTAGE = ("edited kernel", "missing receipt", "truncated dispatch", "truncated index", "edited receipt")


@pytest.mark.parametrize("how", SABOTAGE)
def test_sabotage_is_reported_refused_and_never_served(campaign, writer, how, capsys):
    run(campaign, writer)
    words = damage(writer, how)
    assert cli.main(["library", "verify", "--files", "--library", str(writer.library)]) == 2
    bad = [line for line in capsys.readouterr().out.splitlines() if line.startswith("no")]
    assert len(bad) == 1 and words in bad[0] and one_sentence(bad[0])
    assert cli.main(["library", "list", "--library", str(writer.library)]) == (0 if how == "edited kernel" else 2)
    with pytest.raises(LibraryError, match=words):
        run(campaign, writer, Options(candidate="2"))

    def serve():
        folder = writer.kernels
        return store.load_table(OPERATOR, "interpret", folder).choose((256, 256, 512)).kernel.source()

    with pytest.raises(store.UnsoundLibrary, match=words):
        serve()


def test_a_promotion_behind_the_back_of_another_is_refused(campaign, writer):
    def meanwhile(job, evaluation):
        if job.index == 0 and not writer.root.exists():
            run(campaign, writer, Options(candidate="2"))
        return evaluation

    with pytest.raises(Refusal, match="changed by another promotion meanwhile"):
        run(campaign, writer, spoil=meanwhile)
    assert writer.version(OPERATOR)[1]["targets"]["tpu7x"]["candidates"][0]["genome"] == OTHER.id


def _add_many(library, process):
    writer = LibraryWriter(Path(library))
    for number in range(5):
        files = {"dispatch.json": b"{}", "kernel.py": f"# {process} {number}\n".encode()}
        with writer.writing():
            writer.add("a/b", files, {"process": process, "number": number}, {"action": "promote"})


def test_concurrent_writers_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(str(tmp_path), n)) for n in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join(60)
    writer = LibraryWriter(tmp_path)
    history = writer.index("a/b")["history"]
    assert len(history) == 20 and len(writer.versions("a/b")) == 20
    assert [entry["previous"] for entry in history[1:]] == [entry["version"] for entry in history[:-1]]
    assert all(writer.version("a/b", version) for version in writer.versions("a/b"))


@pytest.mark.parametrize("after", range(6))
def test_a_writer_killed_anywhere_leaves_the_old_state(campaign, writer, after, monkeypatch):
    run(campaign, writer)
    before = writer.version(OPERATOR)[0]
    writes = 0
    real = library_writer._write

    def dying(path, data):
        nonlocal writes
        writes += 1
        if writes > after:
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(library_writer, "_write", dying)
    with pytest.raises(KeyboardInterrupt):
        run(campaign, writer, Options(candidate="2"))
    monkeypatch.undo()
    assert writer.version(OPERATOR)[0] == before
    collect(writer, 5)
    assert writer.versions(OPERATOR) == [before] and not list(writer.root.rglob(".writing*"))


# -- looking after it --------------------------------------------------------------------------------


def test_rollback_and_gc(campaign, writer):
    first = run(campaign, writer).version
    second = run(campaign, writer, Options(candidate="2")).version
    assert rollback(writer, OPERATOR, None, "slower in production") == (second, first)
    assert writer.version(OPERATOR)[0] == first
    assert writer.index(OPERATOR)["history"][-1]["reason"] == "slower in production"
    assert rollback(writer, OPERATOR, None, None) == (first, None)
    with pytest.raises(store.NotServed, match="rolled back"):
        store.load_table(OPERATOR, "interpret", writer.kernels)
    with pytest.raises(LibraryError, match="nothing is promoted"):
        rollback(writer, OPERATOR, None, None)
    assert rollback(writer, OPERATOR, first, "forward again") == (None, first)
    assert rollback(writer, OPERATOR, None, None) == (first, None), "and back: what it was promoted over is nothing"
    absent = LibraryWriter(writer.library / "absent")
    for change in (lambda: rollback(absent, OPERATOR, None, None), lambda: collect(absent, 1)):
        with pytest.raises(LibraryError, match="nothing is promoted"):
            change()
    assert not absent.library.exists(), "a refused change makes no library"
    third = run(campaign, writer).version
    assert sorted(collect(writer, 1)) == sorted(f"{OPERATOR} {v}" for v in (first, second))
    assert writer.versions(OPERATOR) == [third]
    assert len(writer.index(OPERATOR)["history"]) == 7
    fourth = run(campaign, writer, Options(candidate="2")).version
    collect(writer, 1)
    with pytest.raises(LibraryError, match=f"holds no version before {fourth}, so nothing can be rolled back"):
        rollback(writer, OPERATOR, None, None)


def test_unknown_versions_and_folders_are_one_sentence(campaign, writer, tmp_path, capsys):
    run(campaign, writer)
    (tmp_path / "file").write_text("")
    library = ["--library", str(writer.library)]
    for arguments in (
        ["library", "rollback", OPERATOR, "--to", "feed", *library],
        ["library", "gc", "--keep", "0", *library],
        ["library", "verify", "--library", str(tmp_path / "nowhere")],
        ["library", "list", "--package", "not a name"],
        ["library", "gc", "--library", str(tmp_path / "file")],
        ["--home", str(tmp_path / "home"), "promote", "nobody"],
    ):
        assert cli.main(arguments) == 2, arguments
        captured = capsys.readouterr()
        assert one_sentence(captured.err.strip()), captured.err
    assert SEED.id != CHILD.id
