"""Writing files: what stands at the place already is replaced only if it is a file; locks that leave nothing."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.base.files import (
    HeldError,
    StagedFiles,
    append_line,
    locked,
    open_regular,
    result_folder,
    write_bytes,
    write_text,
    write_together,
)
from rocattn_profiling.base.forks import forked


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    """``--out /dev/stdout`` and pipes get the bytes; a file in their place would be lost output, or a lost device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_bytes(pipe, b"told")
    reader.join(10)
    assert read == [b"told"]
    assert pipe.is_fifo()


def test_a_device_is_written_to_and_stays_one():
    """The full device takes nothing: one line says so, and it is still a device."""
    if os.geteuid() == 0 or not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full, or root could lose it")
    with pytest.raises(RocattnError, match="cannot write /dev/full: No space left on device"):
        write_text(Path("/dev/full"), "told")
    assert Path("/dev/full").is_char_device()


def test_half_a_written_line_is_taken_back(tmp_path, monkeypatch):
    """What was measured before is kept whole, and each line is on the disk before the next thing is measured."""
    path, forced = tmp_path / "lines", []
    monkeypatch.setattr(os, "fsync", lambda descriptor: forced.append(os.fstat(descriptor).st_size))
    append_line(path, b"first")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with pytest.raises(RocattnError, match="No space left on device; what was measured before is kept"):
        append_line(path, b"second")
    assert (path.read_bytes(), forced) == (b"first\n", [6])


@pytest.mark.parametrize("follow_links", [True, False])
def test_only_a_regular_file_is_opened_for_reading(tmp_path, follow_links):
    """A pipe that nobody writes to would be waited for, and a device may never end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path, follow_links=follow_links)
    (tmp_path / "file").write_text("told")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "file", follow_links=follow_links) as file:
        assert file.read() == b"told"
    if follow_links:
        open_regular(tmp_path / "link").close()
    else:
        with pytest.raises(OSError, match="symbolic links"):
            open_regular(tmp_path / "link", follow_links=False)


def test_a_folder_is_no_place_for_a_file(tmp_path, monkeypatch):
    """Also the current one, which has no name."""
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), tmp_path):
        with pytest.raises(RocattnError, match=r"cannot write .*: Is a directory"):
            write_text(folder, "told")
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_replaced_and_not_followed(tmp_path):
    """A folder that foreign code filled may hold links to files that are none of its business."""
    (tmp_path / "own").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    write_text(tmp_path / "link", "told")
    assert (tmp_path / "own").read_text() == "kept"
    assert (tmp_path / "link").read_text() == "told"


@pytest.mark.parametrize("into", [write_text, lambda path, text: append_line(path, text.encode())])
def test_a_new_folder_of_results_ignores_itself(tmp_path, into):
    """In a repository, the outermost one; a folder that was there is left as it is, as is one outside of any."""
    into(tmp_path / "plain/out/a", "told")
    assert [path.name for path in (tmp_path / "plain").rglob(".gitignore")] == []
    repo = tmp_path / "repo"
    (repo / "kept").mkdir(parents=True)
    (repo / ".git").touch()  # as in a linked worktree
    for path in ("out/deep/a", "out/other/b", "kept/out/c", "kept/d"):
        into(repo / path, "told")
    assert sorted(repo.rglob(".gitignore")) == [repo / "kept/out/.gitignore", repo / "out/.gitignore"]
    assert (repo / "out/.gitignore").read_text() == "*\n"


def test_a_new_folder_for_the_user_to_commit_is_not_ignored(tmp_path):
    """Such as that of the workflows which `gate init` writes."""
    (tmp_path / ".git").mkdir()
    write_together({tmp_path / ".github/workflows/a.yml": "told"}, committed=True)
    assert list(tmp_path.rglob(".gitignore")) == []


def test_what_is_not_committed_leaves_no_folder(tmp_path):
    """Nor the file by which it would ignore itself."""
    (tmp_path / ".git").mkdir()
    with StagedFiles() as staging:
        staging.add(tmp_path / "out/deep/a", [b"told"])
    assert [path.name for path in tmp_path.iterdir()] == [".git"]


@pytest.mark.parametrize("kept", [True, False])
def test_forks_write_what_this_process_expects(tmp_path, kept):
    """All of it lands together, or nothing stays: neither a file that one was writing, nor its folder."""
    paths = [tmp_path / "new" / str(at) for at in range(4)]
    (tmp_path / "old").write_text("old")

    def work(path):
        def pieces():
            yield b"half"
            if not kept and path is paths[-1]:
                raise ValueError("torn")

        staging.add(path, pieces())

    with suppress(ValueError), StagedFiles() as staging:
        staging.expect(paths)
        list(forked(work, paths, 2))
        assert not any(path.exists() for path in paths)
        staging.commit()
    found = {path.name for path in tmp_path.rglob("*")}
    assert found == ({"old", "new", "0", "1", "2", "3"} if kept else {"old"})


def test_no_fork_writes_to_a_pipe(tmp_path):
    """Its content would wait in a process that ends."""
    os.mkfifo(tmp_path / "pipe")
    with StagedFiles() as staging, pytest.raises(RocattnError, match="pipe: not a regular file"):
        staging.expect([tmp_path / "pipe"])


def test_a_file_in_the_way_of_a_folder_leaves_none(tmp_path):
    """What was made above it is gone again."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file/deep"):
        with pytest.raises(NotADirectoryError):
            result_folder(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_lock_keeps_others_out_and_leaves_no_file(tmp_path):
    """Whoever does not wait is told which lock is held; afterwards there is nothing to find, also after an error."""
    lock = tmp_path / "a.lock"
    with (
        locked(lock, wait_s=0),
        pytest.raises(HeldError, match=f"another process holds {lock}"),
        locked(lock, wait_s=0),
    ):
        pytest.fail("held twice")
    with pytest.raises(ValueError, match="told"), locked(lock):
        raise ValueError("told")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_holds_no_lock(tmp_path):
    """The file that it left is one of nobody."""
    lock = tmp_path / "a.lock"
    program = (
        "import sys, time; from pathlib import Path; from rocattn_profiling.base.files import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout.readline() == "held\n"
            with pytest.raises(HeldError), locked(lock, wait_s=0):
                pytest.fail("held twice")
        finally:
            process.send_signal(signal.SIGKILL)
    assert lock.exists()
    with locked(lock, wait_s=0):
        pass
    assert list(tmp_path.iterdir()) == []
