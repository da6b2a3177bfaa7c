"""The cache stays within its limit: what was not used for longest goes, never what is in use, never half an entry."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from rocattn import cache_limit
from rocattn.cache import FRESH_S, ContentCache, compiled_entries
from rocattn.cache_limit import STALE_S, shrink
from rocattn.errors import SettingError
from rocattn.settings import cache_gib

SIZE = 64 * 1024
FILES = {"code.so": bytes(SIZE)}
DAY = 24 * 3600.0
READER = """
import sys
from pathlib import Path
from rocattn.cache import ContentCache

cache, keys, made = ContentCache(Path(sys.argv[1])), sys.argv[2].split(), 0
for _ in range(40):
    for key in keys:
        def make():
            global made
            made += 1
            return {"code.so": key.encode() * 1000, "code.s": key.encode()}
        files = cache.get_or_make(key, make)
        assert files == {"code.so": key.encode() * 1000, "code.s": key.encode()}, key
print(made)
"""


def key(number):
    """A key of which every second one lies in another part of the folder."""
    return f"{number % 2:02x}{number:062x}"


def fill(root, count, used_days_ago):
    """Put entries into a cache; returns their folders."""
    folders = []
    for number in range(count):
        ContentCache(root).get_or_make(key(number), lambda: FILES)
        folder = root / key(number)[:2] / key(number)
        then = time.time() - used_days_ago(number) * DAY
        os.utime(folder / "SHA256SUMS", (then, then))
        folders.append(folder)
    (root / "pruned").unlink(missing_ok=True)
    return folders


@pytest.fixture
def room_for_four(monkeypatch):
    """A limit of five entries, of which four are left when there are more."""
    monkeypatch.setenv("ROCATTN_CACHE_GIB", str(5 * (SIZE + 8192) / 2**30))


def test_the_longest_unused_go_first(tmp_path, room_for_four):
    """The next new entry removes the oldest by use, not by making; what stays is whole and read back."""
    folders = fill(tmp_path, 8, lambda number: 30 - number)
    assert ContentCache(tmp_path).get_or_make(key(0), list) == FILES  # used just now
    ContentCache(tmp_path).get_or_make(key(9), lambda: FILES)
    assert [folder.exists() for folder in folders] == [True, False, False, False, False, False, True, True]
    assert sum(entry.size_bytes for entry in compiled_entries(tmp_path)) <= cache_gib() * 2**30
    assert ContentCache(tmp_path).get_or_make(key(7), list) == FILES


def test_what_was_used_lately_stays_beyond_the_limit(tmp_path, room_for_four):
    """An entry of this hour may be in somebody's hands."""
    folders = fill(tmp_path, 8, lambda _: 0)
    assert shrink(compiled_entries(tmp_path), fresh_s=FRESH_S) == 0
    assert all(folder.exists() for folder in folders)


def test_no_more_than_the_surplus_goes(tmp_path, monkeypatch):
    """With room for all and two entries too many, the two oldest go."""
    monkeypatch.setenv("ROCATTN_CACHE_GIB", "0")
    folders = fill(tmp_path, 6, lambda number: 30 - number)
    assert shrink(compiled_entries(tmp_path), fresh_s=FRESH_S, keep=4) > 0
    assert [folder.exists() for folder in folders] == [False, False, True, True, True, True]


def test_a_file_that_several_entries_share_counts_once(tmp_path):
    """Environments hard-link their packages to uv's cache: removing one frees only its share."""
    alone, *linked = fill(tmp_path, 3, lambda _: 0)
    for folder in linked:
        (folder / "code.so").unlink()
        (folder / "code.so").hardlink_to(alone / "code.so")
    sizes = [entry.size_bytes for entry in compiled_entries(tmp_path)]
    others = sum((folder / "SHA256SUMS").stat().st_blocks * 512 for folder in (alone, *linked))
    assert sum(sizes) == pytest.approx((alone / "code.so").stat().st_blocks * 512 + others)


def test_what_somebody_holds_stays(tmp_path, room_for_four):
    """An entry whose lock is held is being made anew; the next oldest goes instead."""
    folders = fill(tmp_path, 8, lambda number: 30 - number)
    with FileLock(folders[0].with_suffix(".lock")):
        shrink(compiled_entries(tmp_path), fresh_s=FRESH_S)
    assert [folder.exists() for folder in folders] == [True, False, False, False, False, True, True, True]


def test_what_was_used_since_it_was_looked_at_stays(tmp_path, room_for_four):
    """Between the look at all entries and the removal another process may use one."""
    folders = fill(tmp_path, 8, lambda number: 30 - number)
    seen = list(compiled_entries(tmp_path))
    assert ContentCache(tmp_path).get_or_make(key(0), list) == FILES
    shrink(seen, fresh_s=FRESH_S)
    assert folders[0].exists()


def test_within_the_limit_nothing_goes_and_0_is_no_limit(tmp_path, monkeypatch):
    """However old."""
    folders = fill(tmp_path, 6, lambda _: 1000)
    assert shrink(compiled_entries(tmp_path), fresh_s=FRESH_S) == 0
    monkeypatch.setenv("ROCATTN_CACHE_GIB", "0")
    assert cache_gib() == math.inf
    assert shrink(compiled_entries(tmp_path), fresh_s=FRESH_S) == 0
    assert all(folder.exists() for folder in folders)


def test_readers_of_a_shrinking_cache_get_whole_entries(tmp_path, monkeypatch):
    """Three processes read while this one removes everything again and again: some is made anew, nothing is wrong."""
    keys = [key(number) for number in range(6)]
    command = [sys.executable, "-c", READER, str(tmp_path), " ".join(keys)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    monkeypatch.setenv("ROCATTN_CACHE_GIB", "1e-9")
    while any(reader.poll() is None for reader in readers):
        shrink(compiled_entries(tmp_path), fresh_s=-DAY)
    made = [int(reader.communicate()[0]) for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0, 0]
    assert sum(made) >= len(keys)


def test_a_cache_that_may_only_be_read_stays_as_it_is(tmp_path, room_for_four, monkeypatch):
    """A rename that is not permitted is no error."""
    folders = fill(tmp_path, 8, lambda number: 30 - number)

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "rename", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    assert shrink(compiled_entries(tmp_path), fresh_s=FRESH_S) == 0
    assert all(folder.exists() for folder in folders)
    assert ContentCache(tmp_path).get_or_make(key(0), list) == FILES


def test_all_entries_are_looked_at_once_an_hour(tmp_path, room_for_four):
    """There are tens of thousands: a new entry right after a look removes nothing, one an hour later does."""
    folders = fill(tmp_path, 8, lambda number: 30 - number)
    (tmp_path / "pruned").touch()
    ContentCache(tmp_path).get_or_make(key(20), lambda: FILES)
    assert folders[0].exists()
    os.utime(tmp_path / "pruned", (0, 0))
    ContentCache(tmp_path).get_or_make(key(21), lambda: FILES)
    assert not folders[0].exists()


def test_leftovers_are_swept(tmp_path):
    """Folders half-made or half-removed, and locks of nothing, a day later; a lock that is held or new stays."""
    fill(tmp_path, 1, lambda _: 0)
    part = tmp_path / key(0)[:2]
    old = [part / f"{key(2)}.partial-x", part / f"{key(4)}.lock", part / f"{key(6)}.lock"]
    old[0].mkdir()
    for path in old[1:]:
        path.touch()
    (part / f"{key(8)}.lock").touch()
    for path in old:
        os.utime(path, (time.time() - 2 * STALE_S,) * 2)
    with FileLock(old[2]):
        os.utime(old[2], (time.time() - 2 * STALE_S,) * 2)
        cache_limit.sweep(part)
        left = {path.name for path in part.iterdir()}
    assert left == {key(0), f"{key(0)}.lock", old[2].name, f"{key(8)}.lock"}


@pytest.mark.parametrize("given", ["much", "-1", "nan", "4GiB"])
def test_a_limit_that_is_none_is_refused(monkeypatch, given):
    """It says what can be set."""
    monkeypatch.setenv("ROCATTN_CACHE_GIB", given)
    with pytest.raises(SettingError, match=f"ROCATTN_CACHE_GIB is '{given}': set it to a number of GiB"):
        cache_gib()
    monkeypatch.setenv("ROCATTN_CACHE_GIB", "1.5")
    assert cache_gib() == 1.5
    monkeypatch.setenv("ROCATTN_CACHE_GIB", "")
    assert cache_gib() == 4
