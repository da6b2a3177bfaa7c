"""A command that fails leaves what an earlier one wrote, byte for byte: bad input, a full disk, Ctrl-C.

The gate's own runs, which take longer, are in tests/gate/test_run.py.
"""

import errno
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocattn_profiling.base.files import StagedFiles
from rocattn_profiling.bench import session as harness
from rocattn_profiling.cli import main
from rocattn_profiling.gate.verdict import write
from rocattn_profiling.measure.records import append_record
from rocattn_profiling.profile.collect import find, hardware

from .bench.made_records import CEILINGS
from .made_reports import make_record, records, verdict  # noqa: F401 - fixtures
from .profile.collect.conftest import Machine

pytestmark = pytest.mark.slow
SHAPE = "--seq-q 9 --seq-k 13 --head-dim 12 --num-heads 2 --causal --launches 1 --samples 3 --threads 1 --no-store"
ASSEMBLY = """\
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
\t.type\tmatmul,@function
matmul:
\ts_endpgm
.Lend:
\t.size matmul, .Lend-matmul
\t.amdhsa_kernel matmul
\t\t.amdhsa_next_free_vgpr 8
\t.end_amdhsa_kernel
"""
TRACE = (  # of rocprofv3 6.4
    "Kind,Agent_Id,Queue_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp,"
    "Private_Segment_Size,Group_Segment_Size,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,"
    "Grid_Size_Y,Grid_Size_Z\nKERNEL_DISPATCH,Agent 4,1,9,1,7,scale,1,1000,2000,0,0,64,1,1,6400,1,1\n"
)


@dataclass
class Case:
    """A command that writes into --out, and command lines of it that fail, each with its status."""

    good: str
    bad: dict[str, int]


CASES = {
    "verify": Case(
        "verify --family positions --quick --backend cpu --out OUT --junit OUT/junit.xml",
        {
            "verify --backend nosuch --out OUT": 4,
            "verify --family positions --quick --backend gpu --out OUT": 3,
            "verify --case nosuch --out OUT": 4,
        },
    ),
    "bench": Case(
        f"bench {SHAPE} --backend cpu --out OUT",
        {
            "bench --backend nosuch --out OUT": 4,
            "bench --grid nosuch --out OUT": 4,
            "bench --head-dim 0 --out OUT": 4,
            "bench --model nosuch.gguf --out OUT": 4,
            f"bench {SHAPE} --backend cpu --seed 5 --backend-module nosuch --out OUT": 4,
        },
    ),
    "memory": Case(
        "memory --lengths 64 128 --threads 1 --backend cpu --out OUT",
        {
            "memory --lengths 64 --backend nosuch --out OUT": 4,
            "memory --lengths 64 --backend gpu --out OUT": 3,
            "memory --budget 8XB --out OUT": 4,
            "memory --seq-k 9 --out OUT": 4,
        },
    ),
    "kernels audit": Case(
        "kernels audit k.s --out OUT",
        {
            "kernels audit nosuch.s --out OUT": 4,
            "kernels audit empty.s --out OUT": 3,
            "kernels audit k.s --against nosuch.json --out OUT": 4,
            "kernels audit k.s --check-pins --out OUT": 4,
        },
    ),
    "report": Case(
        "report --records bench --format html md json csv samples --out OUT",
        {
            "report --records nosuch.jsonl --out OUT": 4,
            "report --records nosuch --out OUT": 3,
            "report --format pdf --out OUT": 4,
        },
    ),
    "report of a profile": Case(
        "report trace.csv --out OUT",
        {
            "report nosuch.csv --out OUT": 4,
            "report empty --out OUT": 3,
            "report trace.csv --against empty --out OUT": 3,
        },
    ),
    "site": Case(
        "site --records bench --gate gate --out OUT",
        {
            "site --records nosuch --gate nosuch --results nosuch --out OUT": 3,
            "site --repo nosuch --out OUT": 4,
            "site --url nosuch --out OUT": 4,
        },
    ),
    "profile": Case(
        "profile --metrics lds --tool rocprofv3 --out OUT -- ./app.sh",
        {
            "profile --tool rocprof --out OUT -- ./app.sh": 3,
            "profile --metrics nosuch --out OUT -- ./app.sh": 4,
            "profile --out OUT -- ./nosuch": 4,
            "profile --resume --metrics caches --out OUT -- ./app.sh": 4,
            "profile --out OUT": 4,
        },
    ),
    "gate judge": Case(
        "gate judge pairs.jsonl --out OUT/judged.jsonl",
        {
            "gate judge nosuch.jsonl --out OUT/judged.jsonl": 4,
            "gate judge pairs.jsonl --tolerance 0 --out OUT/judged.jsonl": 4,
            "gate judge OUT/judged.jsonl --out OUT/judged.jsonl": 4,
        },
    ),
    "gate show": Case(
        "gate show gate --format markdown --out OUT/comment.md",
        {"gate show nosuch --out OUT/comment.md": 4, "gate show trace.csv --out OUT/comment.md": 4},
    ),
    "gate comment": Case(
        "gate comment gate/verdict.json --out OUT/comment.md",
        {"gate comment gate/verdict.json --run-url nosuch --out OUT/comment.md": 4},
    ),
    "ci": Case(
        "ci --skip doctor verify bench audit profile report site --base HEAD --out OUT",
        {"ci --skip nosuch --out OUT": 4, "ci --history none --out OUT": 4},
    ),
}


@pytest.fixture
def place(tmp_path, monkeypatch, records, verdict):  # noqa: F811 - the fixtures
    """A repository with one commit, inputs of every command, and a profiler."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    machine = Machine(tmp_path)
    machine.gpus("gfx942")
    machine.install("rocprofv3")
    monkeypatch.setattr(find, "_places", lambda: [str(machine.bin)])
    monkeypatch.setattr(hardware, "examine", machine.examine)
    monkeypatch.setattr(harness.limits, "measure_ceilings", lambda *_, **__: dict(CEILINGS))
    monkeypatch.setattr("rocattn_profiling.ci.command._run_command", lambda _: 0)
    monkeypatch.chdir(tmp_path)
    for words in (("init", "-q"), ("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "1", "--allow-empty")):
        subprocess.run(["git", *words], check=True)
    for record in records:
        append_record(tmp_path / "bench/records.jsonl", record)
    write(verdict, tmp_path / "gate/verdict.json")
    Path("k.s").write_text(ASSEMBLY)
    Path("empty.s").touch()
    Path("empty").mkdir()
    Path("trace.csv").write_text(TRACE)
    side = {"launches": [{"round": n, "samples": [1.0 + n / 100]} for n in range(5)]}
    Path("pairs.jsonl").write_text(json.dumps({"id": 1, "a": side, "b": side}) + "\n")
    return tmp_path


def run(line):
    """Run a command line in this process; return its status."""
    try:
        return main([word.replace("OUT", "kept") for word in line.split()])
    except SystemExit as ended:
        return ended.code


def files():
    """Return every file in --out with its bytes, but for journals, which keep what a failed run had finished."""
    journals = {"points.jsonl", "cases.jsonl"}
    return {p: p.read_bytes() for p in Path("kept").rglob("*") if p.is_file() and p.name not in journals}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_leaves_every_file(place, capsys, name):
    """Also where the command could tell only after it had begun."""
    assert run(CASES[name].good) == 0, capsys.readouterr().err
    before = files()
    assert before
    for line, status in CASES[name].bad.items():
        assert run(line) == status, capsys.readouterr().err
        assert files() == before, line
    assert {path.name for path in place.iterdir() if path.name.startswith("kept")} == {"kept"}


def refusing(monkeypatch, error, at):
    """Make the writing of a staged file fail, half done; returns the list of files that were begun."""
    begun, add = [], StagedFiles.add

    def half(self, path, pieces):
        begun.append(path)
        if len(begun) != at:
            return add(self, path, pieces)

        def torn():
            yield b"half"
            raise error

        return add(self, path, torn())

    monkeypatch.setattr(StagedFiles, "add", half)
    return begun


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("error", "status"),
    [(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 4), (KeyboardInterrupt(), 130)],
    ids=["full disk", "Ctrl-C"],
)
def test_a_torn_write_leaves_every_file(place, monkeypatch, capsys, name, error, status):
    """The disk is full, or Ctrl-C comes, in the middle of the last file; then the same command works again."""
    with monkeypatch.context() as patch:
        begun = refusing(patch, None, at=0)
        assert run(CASES[name].good) == 0, capsys.readouterr().err
        # A profile's passes write, too, and stay: its first file is the one that decides.
        count = {"profile": 1}.get(name, len(begun))
    before = files()
    with monkeypatch.context() as patch:
        begun = refusing(patch, error, at=count)
        assert run(CASES[name].good) == status, capsys.readouterr().err
    if name == "ci":  # the state of the job, which has begun
        before[Path("kept/ci.json")] = (Path("kept/ci.json")).read_bytes()
    assert files() == before
    if status == 4:
        told = f"rocattn {name.split()[0]}: cannot write {begun[-1]}: {os.strerror(errno.ENOSPC)}"
        assert capsys.readouterr().err.splitlines()[-1] == told
    assert run(CASES[name].good) == 0, capsys.readouterr().err


def test_a_swap_is_finished_before_ctrl_c_ends_it(tmp_path, monkeypatch):
    """Files of two runs are not mixed: all are renamed, and then the command is interrupted."""
    for name in "abc":
        (tmp_path / name).write_text("old")
    replace, calls = Path.replace, []

    def interrupted(self, target):
        calls.append(target)
        moved = replace(self, target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(Path, "replace", interrupted)
    with StagedFiles() as staging:
        for name in "abc":
            staging.add(tmp_path / name, [b"new"])
        with pytest.raises(KeyboardInterrupt):
            staging.commit()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys("abc", "new")


def test_a_folder_takes_the_place_of_another_whole(tmp_path):
    """What was in it goes; a new one that is not committed leaves nothing, not even the folders made for it."""
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/old").touch()
    with StagedFiles() as staging:
        (staging.folder(tmp_path / "pages") / "new").touch()
        (staging.folder(tmp_path / "a/b/other") / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["pages", "old"]
    with StagedFiles() as staging:
        (staging.folder(tmp_path / "pages") / "new").touch()
        staging.commit()
    assert [path.name for path in tmp_path.rglob("*")] == ["pages", "new"]


def test_new_files_alone_replace_nothing(tmp_path):
    """A build that failed leaves what its manifest describes, and shows what is new."""
    (tmp_path / "a").write_text("old")
    with StagedFiles() as staging:
        for name in "ab":
            staging.add(tmp_path / name, [b"new"])
        staging.commit(replace=False)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old", "b": "new"}
