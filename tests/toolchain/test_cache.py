"""The content-addressed cache: whole entries or none, whatever is killed, damaged, full or used in parallel."""

import errno
import logging
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rocattn import cache as cache_module
from rocattn.cache import ContentCache, cache_folder, write_problem

KEY = "ab" + "0" * 62
FILES = {"code.hsaco": b"\x7fELF\0", "code.s": b"s_endpgm\n"}
CHILD = """
import sys
from pathlib import Path
from rocattn.cache import ContentCache

def make():
    with open(sys.argv[2], "a") as log:
        log.write("made\\n")
    print("making", flush=True)
    sys.stdin.readline()
    return {"code.hsaco": b"\\x7fELF\\0", "code.s": b"s_endpgm\\n"}

print(ContentCache(Path(sys.argv[1])).get_or_make("ab" + "0" * 62, make), flush=True)
"""


def fail():
    """Stand in for a maker that must not be called."""
    pytest.fail("made again")


def start_child(root, log):
    """Start a process that makes the entry, but only after a line on its standard input."""
    command = [sys.executable, "-c", CHILD, str(root), str(log)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_an_entry_is_made_once_and_read_back(tmp_path):
    """The second use does not make anything."""
    assert ContentCache(tmp_path).get_or_make(KEY, lambda: FILES) == FILES
    assert ContentCache(tmp_path).get_or_make(KEY, fail) == FILES


def test_parallel_first_uses_make_it_once(tmp_path):
    """Three processes that want one new entry get the same files, and one of them does the work."""
    log = tmp_path / "log"
    children = [start_child(tmp_path / "cache", log) for _ in range(3)]
    select.select([child.stdout for child in children], [], [])  # one has the lock and has begun
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=600)[0].splitlines()[-1] for child in children]
    assert answers == [str(FILES)] * 3
    assert log.read_text() == "made\n"


def test_a_killed_maker_leaves_nothing_behind(tmp_path):
    """SIGKILL in the middle frees the lock; the next use makes a whole entry."""
    child = start_child(tmp_path, tmp_path / "log")
    assert child.stdout.readline() == "making\n"
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=600)
    assert ContentCache(tmp_path).get_or_make(KEY, lambda: FILES) == FILES
    assert ContentCache(tmp_path).get_or_make(KEY, fail) == FILES


def test_leftovers_of_a_killed_writer_are_swept(tmp_path):
    """A half-written entry is no entry, and goes when its key is made."""
    half = tmp_path / KEY[:2] / f"{KEY}.partial-abc"
    half.mkdir(parents=True)
    (half / "code.hsaco").write_bytes(b"\x7f")
    assert ContentCache(tmp_path).get_or_make(KEY, lambda: FILES) == FILES
    assert not half.exists()


@pytest.mark.parametrize("damage", [b"", b"\x7fELF\1", None])
def test_a_damaged_entry_is_made_again(tmp_path, damage):
    """A file that is empty, changed or gone (a power cut, a clean-up) does not count."""
    ContentCache(tmp_path).get_or_make(KEY, lambda: FILES)
    file = tmp_path / KEY[:2] / KEY / "code.hsaco"
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    assert ContentCache(tmp_path).get_or_make(KEY, lambda: FILES) == FILES
    assert ContentCache(tmp_path).get_or_make(KEY, fail) == FILES


def test_unusable_folder_is_replaced_with_a_warning(tmp_path, monkeypatch, caplog):
    """A folder that cannot be made is no failure: a temporary one serves this process, and is said once."""
    monkeypatch.delenv("ROCATTN_CACHE_DIR", raising=False)
    (tmp_path / "file").touch()
    root = tmp_path / "file" / "cache"
    cache = ContentCache(root)
    with caplog.at_level(logging.WARNING):
        assert cache.get_or_make(KEY, lambda: FILES) == FILES
        assert cache.get_or_make(KEY, fail) == FILES
        assert cache.get_or_make(KEY.replace("ab", "cd"), lambda: FILES) == FILES
        monkeypatch.setenv("ROCATTN_QUIET", "1")
        assert ContentCache(root).get_or_make(KEY, lambda: FILES) == FILES
    (record,) = caplog.records
    assert str(root) in record.getMessage()
    assert "ROCATTN_CACHE_DIR" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_a_forked_child_leaves_its_parents_temporary_cache(tmp_path):
    """It inherits the exit handler; the folder is still in use."""
    cache_module._remove_own(tmp_path, os.getpid() + 1)
    assert tmp_path.exists()
    cache_module._remove_own(tmp_path, os.getpid())
    assert not tmp_path.exists()


@pytest.mark.parametrize("full_everywhere", [False, True])
def test_a_full_disk_is_no_failure(tmp_path, monkeypatch, caplog, full_everywhere):
    """What was made is returned also when it cannot be kept; half an entry never stays."""
    write_bytes = Path.write_bytes

    def no_space(path, data):
        if full_everywhere or path.is_relative_to(tmp_path):
            write_bytes(path, data[:1])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", no_space)
    cache = ContentCache(tmp_path)
    assert cache.get_or_make(KEY, lambda: FILES) == FILES
    assert "No space left on device" in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert cache.get_or_make(KEY, (lambda: FILES) if full_everywhere else fail) == FILES
    assert len(caplog.records) == 1


def test_what_the_maker_raises_passes_through(tmp_path):
    """An OSError of the maker is not mistaken for one of the folder, and nothing is stored."""

    def broken():
        raise FileNotFoundError(errno.ENOENT, "compiler gone")

    with pytest.raises(FileNotFoundError, match="compiler gone"):
        ContentCache(tmp_path).get_or_make(KEY, broken)
    assert ContentCache(tmp_path).get_or_make(KEY, lambda: FILES) == FILES


def test_the_folder_is_chosen_by_the_environment(monkeypatch, tmp_path):
    """ROCATTN_CACHE_DIR wins; without it the platform's cache folder is used."""
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("ROCATTN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "rocattn"


def test_a_tilde_and_a_missing_home_are_no_folder_of_that_name(monkeypatch, tmp_path):
    """No shell has read a variable file; and a container's user may have neither a name nor HOME."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROCATTN_CACHE_DIR", "~/kept")
    assert cache_folder() == tmp_path / "kept"
    for name in ("HOME", "XDG_CACHE_HOME", "ROCATTN_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}[0])
    assert cache_folder() == Path("/.cache/rocattn")


def test_whether_a_folder_takes_files_is_found_by_trying(tmp_path, monkeypatch):
    """Empty when it does, the system's words when it does not."""
    assert write_problem(tmp_path / "new") == ""
    (tmp_path / "file").touch()
    assert write_problem(tmp_path / "file") == "File exists"

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module.tempfile, "TemporaryFile", full)
    assert write_problem(tmp_path) == "No space left on device"
