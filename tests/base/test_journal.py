"""Journals: what is finished is on disk and found again, damage is seen, and the last line counts what is there."""

import msgspec
import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.base.journal import Journal, entries, keeping, kept


class Result(msgspec.Struct, frozen=True):
    """A result."""

    name: str
    value: float


ONE, TWO = Result("a", 1.5), Result("b", 2.5)


@pytest.fixture
def path(tmp_path):
    """A journal with two results, of the key "k"."""
    journal = Journal(tmp_path / "out/results.jsonl", "k", Result)
    assert (journal.found, journal.count()) == ([], 0)
    journal.append(ONE)
    journal.append(TWO)
    return journal.path


def test_a_run_of_the_same_key_goes_on(path):
    """Another key begins anew, and a finished run leaves no file."""
    again = Journal(path, "k", Result)
    assert (again.found, again.count()) == ([ONE, TWO], 2)
    other = Journal(path, "other", Result)
    assert (other.found, other.count()) == ([], 0)
    other.finish()
    assert not path.exists()


def test_every_flipped_bit_is_seen(path):
    """Also one that leaves good JSON with another number: a result is as it was written, or is measured again."""
    data = path.read_bytes()
    for at in range(data.index(b"\n") + 1, len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            assert set(entries(path, Result)) <= {ONE, TWO}, damaged
    path.write_bytes(data[:-5])
    assert Journal(path, "k", Result).found == [ONE]


def test_what_cannot_be_written_is_one_line(tmp_path):
    """At the first result."""
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file/results.jsonl", "k", Result)
    with pytest.raises(RocattnError, match="cannot write"):
        journal.append(ONE)


def test_the_last_line_counts_what_is_on_disk(path):
    """What was added after the run began is counted; a run that ended well, or by an error, says nothing."""
    journal = Journal(path, "k", Result)

    def interrupted():
        journal.append(Result("c", 3.0))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), keeping(path, 5, journal.count):
        interrupted()
    assert kept() == f"kept 3 of 5 in {path}; the same command continues"
    assert kept() == ""
    with keeping(path, 5, journal.count):
        pass
    assert kept() == ""
    with pytest.raises(ValueError, match="no"), keeping(path, 5, journal.count):
        raise ValueError("no")
    assert kept() == ""
