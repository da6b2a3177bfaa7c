"""Damaged files end in a value or in one line, within two seconds and half a gigabyte, whatever reads them."""

import os

import pytest

from .many import CHUNK, main, whole_files
from .mutants import failures, mutant
from .readers import READERS

FEW, MANY = 30, 20_000


def read_mutants(name, folder, seeds):
    """Read mutants of a reader's files, after the whole files."""
    good, read = whole_files(name, folder / "whole"), READERS[name].read(folder)
    for data in good:
        read(data)
    found = failures(read, seeds, good)
    told = "\n".join(f"seed {seed}: {wrong}" for seed, wrong in list(found.items())[:3])
    assert not found, f"{len(found)} of {len(seeds)} mutants of {name}:\n{told}"


@pytest.mark.parametrize("name", READERS)
def test_damage_is_a_value_or_one_line(name, tmp_path):
    """A few mutants of each reader, the same in every run."""
    read_mutants(name, tmp_path, range(FEW))


@pytest.mark.parametrize("name", READERS)
def test_much_damage_is_a_value_or_one_line(name, tmp_path):
    """Twenty thousand mutants of each reader."""
    read_mutants(name, tmp_path, range(FEW, FEW + MANY))


def test_many_processes_read_what_one_does(tmp_path, capsys):
    """The whole files are made once and kept; every seed is read, in chunks; another reader's name is refused."""
    words = ["records", "--files", str(tmp_path), "--jobs", "2", "--first", "5"]
    assert main([*words, "--mutants", str(CHUNK + 3)]) == 0
    made = tmp_path / "records" / "000"
    assert capsys.readouterr().out == f"records: {CHUNK + 3} of {CHUNK + 3} mutants are a value or one line\n"
    made.write_text("kept")
    assert whole_files("records", tmp_path / "records") == [b"kept"]
    with pytest.raises(SystemExit):
        main(["record"])
    assert capsys.readouterr().err.partition("error: ")[2] == "no reader is called record\n"


def _too_long(_data):
    while True:
        pass


def _too_large(data):
    return [bytes(1 << 26) for _ in range(len(data) + 64)]


def _killed(_data):
    os.kill(os.getpid(), 9)


@pytest.mark.parametrize(
    ("read", "why"),
    [(lambda _: 1 / 0, "ZeroDivisionError"), (_too_long, "more than"), (_too_large, "MemoryError"), (_killed, "-9")],
)
def test_what_a_reader_does_wrong_is_seen(read, why):
    """An exception, time, memory, and the end of the process; those after it are read."""
    found = failures(read, range(2), [b"abc"], seconds=0.2)
    assert len(found) == 2
    assert all(why in wrong for wrong in found.values()), found


def test_a_mutant_is_the_same_in_every_run():
    """So that a seed tells of a fault; two seeds make two mutants."""
    data = bytes(range(256)) * 4
    assert mutant(data, 7) == mutant(data, 7)
    assert len({mutant(data, seed) for seed in range(50)}) > 45
