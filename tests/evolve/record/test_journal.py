"""The journal loses nothing, refuses change, and has one writer."""

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.evaluations import candidate, failed
from tilewright.evolve.errors import JournalError
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome

values = st.one_of(st.integers(-(2**40), 2**40), st.booleans(), st.text(max_size=8), st.floats(allow_nan=False))


def made(index, params=None, source="x = 1\n"):
    genome = Genome(source, {**(params or {}), "i": index})
    return candidate(index, genome, parents=("p",), detail="tile 1 -> 2", generation=3, island=1, seen=index // 2)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.dictionaries(st.text(min_size=1, max_size=6), values, max_size=4), min_size=1, max_size=6))
def test_what_is_written_is_read_back(tmp_path_factory, points):
    path = tmp_path_factory.mktemp("journal") / "j.sqlite"
    written = [made(n, params) for n, params in enumerate(points)]
    with Journal(path, write=True, create=True) as journal:
        for c in written:
            journal.add_candidate(c)
            journal.add_evaluation(c.index, failed(c.genome))
    with Journal(path) as journal:
        read = list(journal.candidates())
        assert read == written
        assert [c.genome.source for c in read] == [c.genome.source for c in written]
        assert [dict(c.genome.params) for c in read] == [dict(c.genome.params) for c in written]
        assert [index for _, index, _, _ in journal.evaluations()] == list(range(len(points)))


@pytest.mark.parametrize("table", ["meta", "sources", "candidates", "evaluations", "reference_points", "events"])
def test_rows_can_be_neither_changed_nor_deleted(tmp_path, table):
    path = tmp_path / "j.sqlite"
    with Journal(path, write=True, create=True) as journal:
        journal.add_candidate(made(0))
        journal.add_evaluation(0, failed())
        journal.add_reference("bf16", "suite", failed())
        journal.add_event("started")
    db = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(f"DELETE FROM {table}")
    column = db.execute(f"SELECT name FROM pragma_table_info('{table}') LIMIT 1").fetchone()[0]
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(f"UPDATE {table} SET {column} = {column}")


def test_an_evaluation_is_recorded_once(tmp_path):
    with Journal(tmp_path / "j.sqlite", write=True, create=True) as journal:
        journal.add_candidate(made(0))
        journal.add_evaluation(0, failed())
        with pytest.raises(sqlite3.IntegrityError):
            journal.add_evaluation(0, failed())


def test_two_writers_are_refused_and_readers_are_not(tmp_path):
    path = tmp_path / "c" / "j.sqlite"
    with Journal(path, write=True, create=True) as journal:
        with pytest.raises(JournalError, match="already run by another process"):
            Journal(path, write=True)
        journal.add_event("started")
        with Journal(path) as reader:
            assert [event.kind for event in reader.events()] == ["started"]
    Journal(path, write=True).close()


def test_a_missing_or_foreign_file_is_one_sentence(tmp_path):
    with pytest.raises(JournalError, match="no journal at"):
        Journal(tmp_path / "none.sqlite")
    with sqlite3.connect(tmp_path / "bare.sqlite") as db:
        db.execute("CREATE TABLE meta (key, value)")
    with pytest.raises(JournalError, match="has journal format None"):
        Journal(tmp_path / "bare.sqlite")
    (tmp_path / "text.sqlite").write_text("not a database, long enough to have a header" * 10)
    for write in (False, True):
        with pytest.raises(JournalError, match="not a readable journal"):
            Journal(tmp_path / "text.sqlite", write=write)
    assert not list(tmp_path.glob("*.lock")), "a journal that cannot be read is not taken"


def test_declarations_survive_although_they_are_no_part_of_identity(tmp_path):
    """Two texts with one normal form differ in what a search may do with them."""
    narrow, wide = "SPACE = {'a': (1,)}\nx = 1\n", "SPACE = {'a': (1, 2)}\nx = 1\n"
    with Journal(tmp_path / "j.sqlite", write=True, create=True) as journal:
        journal.add_candidate(made(0, source=narrow))
        journal.add_candidate(made(1, source=wide))
        assert [c.genome.source for c in journal.candidates()] == [narrow, wide]
