"""What the workflows do to the GPU, each for real: processes that hold it are ended, its level is set and put back."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from .fakes import install_smi
from .rules import ROOT, load_script
from .scripts import run

HOLDER = (
    "import signal, sys; held = open(sys.argv[1])\n"
    "if 'stubborn' in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True); signal.pause()"
)


@pytest.fixture
def device(tmp_path):
    """A file in the place of /dev/kfd, and a function that starts a process which holds it."""
    path = tmp_path / "kfd"
    path.touch()
    started = []

    def hold(*words):
        command = [sys.executable, "-c", HOLDER, str(path), *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield path, hold
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_what_holds_the_gpu_is_ended_and_nothing_else(device):
    """One that ends when asked and one that does not; a process that never opened the device is not touched."""
    path, hold = device
    left = [hold(), hold("stubborn")]
    other = hold_nothing = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    module = load_script("clean_gpu")
    proc = Path("/proc")
    try:
        found = module.holders(proc, (str(path),))
        assert found == sorted(process.pid for process in left)
        assert module.end(found, proc, grace_s=0.5) == []
        assert [process.wait() for process in left] == [-signal.SIGTERM, -signal.SIGKILL]
        assert other.poll() is None
    finally:
        hold_nothing.kill()
        hold_nothing.wait()


def test_the_job_itself_is_never_ended(device, monkeypatch, capsys):
    """A shell of this very job that has the device open is the job's own, down to the script."""
    path, _ = device
    monkeypatch.setenv("ROCATTN_GPU_DEVICES", str(path))
    module = load_script("clean_gpu")
    with path.open():
        assert os.getpid() in module.holders(Path("/proc"), (str(path),))
        assert module.main(sysfs=path.parent / "none") == 0
    assert capsys.readouterr().out == "clean_gpu: the GPU is free (0 ended)\n"


def made_proc(root, processes):
    """Write a /proc: number -> (state, parent, open file)."""
    for pid, (state, parent, file) in processes.items():
        (root / str(pid) / "fd").mkdir(parents=True)
        (root / str(pid) / "status").write_text(f"Name:\tx\nState:\t{state}\nPPid:\t{parent}\n")
        (root / str(pid) / "cmdline").write_bytes(b"python\0train.py\0::error::no\n\0")
        (root / str(pid) / "fd" / "3").symlink_to(file)
    return root


def test_one_that_waits_in_the_driver_makes_the_job_fail(tmp_path, monkeypatch, capsys):
    """SIGKILL does not end a process in state D: said with its state and what to do, and the status is 1."""
    proc = made_proc(tmp_path / "proc", {4999999: ("D (disk sleep)", 1, "/dev/kfd"), 4999998: ("Z", 1, "/dev/kfd")})
    module = load_script("clean_gpu")
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    monkeypatch.setattr(module.os, "kill", lambda *_: None)
    assert module.main(proc, tmp_path / "none") == 1
    captured = capsys.readouterr()
    assert "4999999 [D (disk sleep)]" in captured.err
    assert "restart the machine" in captured.err
    # What a process calls itself must not become a workflow command.
    assert not any(line.startswith("::") for line in (captured.out + captured.err).splitlines())


def test_another_user_s_process_makes_the_job_fail(tmp_path, monkeypatch, capsys):
    """Its files cannot be looked at, but the driver lists it."""
    proc = made_proc(tmp_path / "proc", {4999997: ("S (sleeping)", 1, "/dev/null")})
    (tmp_path / "kfd" / "4999997").mkdir(parents=True)
    assert load_script("clean_gpu").main(proc, tmp_path / "kfd") == 1
    assert capsys.readouterr().err == snapshot(
        "clean_gpu: process 4999997 [S (sleeping)] 'python train.py ::error::no' uses the GPU and is not ours to end\n"
    )


@pytest.mark.parametrize("tool", ["amd-smi", "rocm-smi"])
def test_the_level_is_set_and_put_back(tmp_path, tool):
    """Through whichever tool there is; what was there comes back, whatever it was."""
    smi = install_smi(tmp_path, tool, level="high")
    done = run("gpu_level.py", "set", "stable_std", "state", cwd=tmp_path, PATH=smi.path)
    assert (done.returncode, done.stdout) == (0, "gpu_level: high -> stable_std\n"), done
    assert smi.level == "stable_std"
    done = run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path)
    assert (done.returncode, done.stdout) == (0, "gpu_level: high again\n"), done
    assert smi.level == "high"
    assert run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path).stdout == "gpu_level: nothing was set\n"


def test_a_level_that_is_there_already_is_the_owner_s(tmp_path):
    """Nothing is set, and nothing put back afterwards."""
    smi = install_smi(tmp_path, "amd-smi", level="stable_std")
    done = run("gpu_level.py", "set", "stable_std", "state", cwd=tmp_path, PATH=smi.path)
    assert (done.returncode, done.stdout) == (0, "gpu_level: stable_std already\n")
    assert run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path).stdout == "gpu_level: nothing was set\n"
    assert not any(call[0] == "set" for call in smi.calls)


def test_a_refused_level_is_said_and_the_job_goes_on(tmp_path):
    """MI300 and virtual machines refuse: a warning with the tool's own words, harmless as a workflow command."""
    smi = install_smi(tmp_path, "amd-smi", level="auto", refuses="::error::not supported\x1b[31m on this GPU")
    done = run("gpu_level.py", "set", "stable_peak", "state", cwd=tmp_path, PATH=smi.path)
    assert done.returncode == 0
    assert done.stdout == (
        "::warning::performance level is auto, not stable_peak: ?error?not supported?[31m on this GPU\n"
    )
    assert run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path).returncode == 0


def test_a_level_that_does_not_come_back_is_red(tmp_path):
    """The next job would be measured at another clock."""
    smi = install_smi(tmp_path, "amd-smi", level="auto")
    run("gpu_level.py", "set", "stable_std", "state", cwd=tmp_path, PATH=smi.path)
    smi.change(refuses="busy")
    done = run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path)
    assert done.returncode == 1
    assert done.stdout == "::error::performance level is stable_std and must be auto: busy\n"
    smi.change(refuses="")
    assert run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path).returncode == 0


def test_mixed_performance_levels_return_to_auto(tmp_path):
    """One call sets all of them; which had which cannot be put back in one."""
    smi = install_smi(tmp_path, "amd-smi", level="auto high")
    assert "mixed -> stable_std" in run("gpu_level.py", "set", "stable_std", "s", cwd=tmp_path, PATH=smi.path).stdout
    run("gpu_level.py", "restore", "s", cwd=tmp_path, PATH=smi.path)
    assert smi.level == "auto"


def test_one_gpu_of_several_is_named(tmp_path):
    """A machine with a runner for each GPU: the others' levels are theirs."""
    smi = install_smi(tmp_path, "amd-smi", level="auto")
    run("gpu_level.py", "set", "high", "state", cwd=tmp_path, PATH=smi.path, ROCATTN_SMI_GPU="0000:c1:00.0")
    assert all(call[-2:] == ["-g", "0000:c1:00.0"] for call in smi.calls)


def test_documented_sudo_rights_fit_the_calls(tmp_path):
    """sudo compares the words, joined, with the expression between ^ and $; amd-smi writes files as root by --file."""
    (rule,) = re.findall(r"NOPASSWD: /opt/rocm/bin/amd-smi \^(.*)\$'", (ROOT / "docs" / "runner.md").read_text())
    allowed = re.compile(rule.replace("[:alnum:]", "A-Za-z0-9"))
    smi = install_smi(tmp_path, "amd-smi", level="auto")
    for gpu in ("", "1", "0000:c1:00.0", "4eff74a0-0000-1000-802d-0cf9d8b6d5f4"):
        run("gpu_level.py", "set", "stable_std", "state", cwd=tmp_path, PATH=smi.path, ROCATTN_SMI_GPU=gpu)
        run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path, ROCATTN_SMI_GPU=gpu)
    calls = [" ".join(call) for call in smi.calls if call[0] == "set"]
    assert len(calls) == 8
    for call in calls:
        assert allowed.fullmatch(call), call
        assert not allowed.fullmatch(f"{call} --file /etc/cron.d/x")


def test_without_a_tool_or_an_answer_nothing_is_set(tmp_path):
    """The clocks are recorded beside the samples anyway."""
    done = run("gpu_level.py", "set", "high", "state", cwd=tmp_path, PATH="/nowhere")
    assert (done.returncode, done.stdout) == (
        0,
        snapshot(
            "::warning::performance level not set: neither amd-smi nor rocm-smi is installed; "
            "samples carry their clocks\n"
        ),
    )
    smi = install_smi(tmp_path, "amd-smi", level="")
    done = run("gpu_level.py", "set", "high", "state", cwd=tmp_path, PATH=smi.path)
    assert (done.returncode, done.stdout) == (
        0,
        snapshot("::warning::performance level not set: it does not report the level; samples carry their clocks\n"),
    )
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("words", [(), ("set", "warp", "s"), ("set", "high"), ("restore",), ("set", "$(touch x)", "s")])
def test_a_wrong_call_is_a_usage_error(tmp_path, words):
    """One line, status 4."""
    done = run("gpu_level.py", *words, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (4, 1)
    assert list(tmp_path.iterdir()) == []


def test_the_smi_stand_in_writes_what_the_tools_write(tmp_path):
    """The shapes of amd-smi's JSON (ROCm 6.2 and later) and rocm-smi's."""
    smi = install_smi(tmp_path, "amd-smi", level="auto")
    command = [tmp_path / "bin" / "amd-smi", "metric", "--perf-level", "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": smi.path}).stdout
    assert json.loads(told) == [{"gpu": 0, "perf_level": "AMDSMI_DEV_PERF_LEVEL_AUTO"}]
