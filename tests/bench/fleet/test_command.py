"""`rocattn bench --engine slurm`: its JSON, its options for sbatch, and what it refuses."""

import json
import subprocess
import sys

import pytest
from inline_snapshot import snapshot

from rocattn.installed import install_command
from rocattn_profiling.cli import main

from ...screens import line
from .fleets import MODULE

pytestmark = pytest.mark.usefixtures("fleet_environment")

SWEEP = ["bench", "--seq-q", "9", "--head-dim", "12", "--num-heads", "2", "--launches", "1", "--samples", "3",
         "--threads", "1", "--no-store", "--backend-module", MODULE, "--engine", "slurm"]  # fmt: skip


def test_the_command_gives_the_same_json_as_a_bench_here(tmp_path, capsys):
    """JSON alone on stdout; machines in a list, each with its ceilings; a job that died is exit status 3."""
    words = [
        *SWEEP,
        "--cluster",
        "local",
        "--out",
        str(tmp_path / "out"),
        "--backend",
        "cpu",
        "fleet-dies-once",
        "--json",
    ]
    (tmp_path / "flag").touch()
    assert main(words) == 3
    shown = capsys.readouterr()
    assert [skip["failed"] for skip in json.loads(shown.out)["skipped"]] == [True, True]
    assert line(shown.err, "rerun") == snapshot("1 job left no result: rerun the command to submit them again")
    assert main(words) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["machine"] is None
    assert [(m["host"], m["ceilings"]["memory_gbps"]) for m in value["machines"]] == [("", 10.0)]
    assert [record["backend"] for record in value["records"]] == ["cpu", "fleet-dies-once"]
    assert len(value["speedups"]) == 1


def test_options_reach_sbatch(tmp_path, slurm, capsys):
    """A node to itself unless it has a GPU or may be shared; further options as they are; whatever sbatch knows."""
    (slurm / "plan.json").write_text(json.dumps({"1": "TIMEOUT|None", "2": "TIMEOUT|None"}))
    words = [*SWEEP, "--out", str(tmp_path / "out"), "--backend", "cpu"]
    assert main([*words, "--partition", "mi300", "--job-minutes", "2.5", "--slurm-option", "account=a b"]) == 3
    script = (slurm / "job-1" / "script").read_text()
    for option in ("--partition=mi300", "--time=3", "--account='a b'", "--exclusive", "--cpus-per-task=1"):
        assert f"#SBATCH {option}\n" in script
    assert main([*words, "--gpus", "1", "--slurm-option", "hold"]) == 3
    script = (slurm / "job-2" / "script").read_text()
    assert "#SBATCH --gpus-per-node=1\n" in script
    assert "#SBATCH --hold\n" in script
    assert "exclusive" not in script
    told = [each.rpartition(": ")[2] for each in capsys.readouterr().err.splitlines() if each.startswith("failed: ")]
    assert told == ["job 1 ended as TIMEOUT", "job 2 ended as TIMEOUT"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "here", "--gpus", "1", "--max-jobs", "2"], "--gpus, --max-jobs: only with --engine slurm"),
        (["--cluster", "local", "--partition", "p"], "--cluster local has no nodes"),
        (["--slurm-option", "=x"], "write NAME=VALUE"),
        (["--job-minutes", "0"], "'0' is not a number of minutes above 0"),
        ([], "Slurm is not installed here"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_status_4(tmp_path, capsys, monkeypatch, words, message):
    """A contradiction, or no cluster, is told before anything is submitted."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    try:
        status = main([*SWEEP, "--out", str(tmp_path), *words])
    except SystemExit as error:
        status = error.code
    shown = capsys.readouterr()
    assert status == 4
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1


def test_a_folder_that_takes_nothing_is_one_line(tmp_path, capsys):
    """submitit makes its folder before the results' folder is entered, and would end in a traceback."""
    (tmp_path / "out").write_text("a file")
    assert main([*SWEEP, "--cluster", "local", "--out", str(tmp_path / "out")]) == 4
    assert capsys.readouterr().err == f"rocattn bench: cannot write to {tmp_path / 'out'}: Not a directory\n"


def test_without_the_extra_one_line_says_what_to_install(tmp_path):
    """submitit is no dependency of the rest."""
    code = "import sys; sys.modules['submitit'] = None; from rocattn_profiling.cli import main; sys.exit(main())"
    words = [*SWEEP, "--cluster", "local", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == f"rocattn bench: --engine slurm needs the package submitit: {install_command('submitit')}\n"
