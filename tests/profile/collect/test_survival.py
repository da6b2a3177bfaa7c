"""Collections on a pretend machine that go wrong: nothing is lost, nothing is left running, and it is said why."""

import os
import signal
import stat
import subprocess
import sys

import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.profile.collect import store

from .telling import codes, nobody_holds, statuses


@pytest.mark.parametrize(("name", "release"), [("rocprofv3", "7.0.0"), ("rocprofv3", "6.4.0"), ("rocprof", "6.2.0")])
def test_a_pass_that_the_hardware_does_not_take_is_halved(machine, name, release):
    """Where the real limit is lower than the table's, the pass is split until it fits, and everything is measured."""
    machine.set(release=release, limits={"TCC": 1})
    machine.install(name)
    (machine.bin.parent / ".info").mkdir()
    (machine.bin.parent / ".info" / "version").write_text(release)
    collection = machine.collect(wanted=("memory",))
    assert collection.complete, codes(collection)
    assert "over_subscribed" in codes(collection)
    measured = {name for result in collection.passes if result.status == "done" for name in result.counters}
    assert {f"TCC_EA0_{kind}_sum" for kind in ("RDREQ", "RDREQ_32B", "WRREQ", "WRREQ_64B")} <= measured
    for result in collection.passes:
        if result.status == "done":
            assert sum(counter.startswith("TCC") for counter in result.counters) <= 1


def test_one_counter_too_many_for_any_pass_fails_alone(machine):
    """What cannot be halved further is reported as failed; the other passes are there."""
    machine.set(limits={"TCC": 0})
    machine.install("rocprofv3")
    collection = machine.collect(wanted=("TCC_HIT_sum", "lds"))
    failed = [result for result in collection.passes if result.status == "failed"]
    assert [set(result.counters) - {"GRBM_GUI_ACTIVE", "SQ_WAVES"} for result in failed] == [{"TCC_HIT_sum"}]
    done = {name for result in collection.passes if result.status == "done" for name in result.counters}
    assert {"SQ_LDS_BANK_CONFLICT", "SQ_LDS_IDX_ACTIVE", "SQ_INSTS_LDS"} <= done


# What the profiler does, what it prints, and the codes that one of the profilers' texts or endings leads to.
FAILURES = [
    ("writes nothing", "", {"no_data", "no_contexts", "collector_failed"}),
    ("breaks the application", "", {"profiler_breaks_application"}),
    (
        "breaks the application",
        "aqlprofile API table load failed",
        {"aqlprofile_missing", "profiler_breaks_application"},
    ),
    ("full", "", {"disk_full"}),
    ("hangs", "", {"hangs"}),
]


@pytest.mark.parametrize(("fails", "says", "expected"), FAILURES, ids=["nothing", "breaks", "library", "full", "hangs"])
@pytest.mark.parametrize("name", ["rocprofv3", "rocprofv2", "rocprof", "rocprof-compute"])
def test_every_failure_is_survived_and_told(machine, name, fails, says, expected):
    """No exception, a status for each pass, a profile.json, and at least one line that says what to do."""
    release = "7.0.0" if name == "rocprofv3" else "6.2.0"
    machine.set(tool_version="3.1.0", release=release, fails=fails, says=says)
    machine.install(name)
    collection = machine.collect(timeout_s=0.3 if fails == "hangs" else 900.0, grace_s=0.1)
    assert not collection.complete
    assert collection.measured == 0
    first = next(result for result in collection.passes if result.status != "missing")
    assert first.status == "failed"
    assert all(found.what and found.remedy and "\n" not in found.line for found in first.findings)
    assert first.findings[0].code in expected
    assert store.read_profile(machine.out / store.PROFILE).passes == collection.passes


def test_nothing_of_an_aborted_profiler_is_left_running(machine):
    """rocprofv3's abort orphans the application's children: the whole process group is killed."""
    fifo, started = machine.root / "fifo", machine.root / "started"
    os.mkfifo(fifo)
    os.mkfifo(started)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    machine.set(fails="orphan", fifo=str(fifo), started=str(started))
    machine.install("rocprofv3")
    # The worker opens the pipe; this child tells the fake that it has, by waiting for a writer itself.
    watch = f"open({str(fifo)!r}, 'w').close(); open({str(started)!r}, 'w').close()"
    helper = subprocess.Popen([sys.executable, "-c", watch])
    collection = machine.collect()
    helper.wait()
    assert collection.measured == 0
    assert nobody_holds(reader)
    os.close(reader)


def test_a_failing_application_is_not_blamed_on_the_profiler(machine, monkeypatch):
    """It is run once without the profiler: that it fails there too is said, and no further pass is wasted."""
    monkeypatch.setenv("STATUS", "3")
    machine.install("rocprofv3")
    collection = machine.collect()
    assert codes(collection) == ["application_failed"]
    assert "exit status 3" in collection.stopped
    assert list(statuses(collection).values())[1:] == ["missing"] * (len(collection.passes) - 1)


def test_zeros_on_a_radeon_name_the_performance_level(machine):
    """Under auto everything but SQ_WAVES is 0: that is no measurement, and the remedy is told."""
    machine.gpus("gfx1100", level="auto")
    machine.set(arch="gfx1100", zeros=True)
    machine.install("rocprofv3")
    collection = machine.collect()
    assert statuses(collection)["timing"] == "done"
    assert "all_zero" in codes(collection)
    assert collection.stopped == snapshot(
        "counters-1: all counters but SQ_WAVES are 0, because the GPU's performance level is auto: sudo amd-smi set "
        "-g 0 -l stable_std (or echo profile_standard into power_dpm_force_performance_level)"
    )


def test_zeros_elsewhere_are_not_explained_by_the_level(machine):
    """On Instinct the level does not gate counters: the line says only that they mean nothing."""
    machine.set(zeros=True)
    machine.install("rocprofv3")
    collection = machine.collect()
    found = next(found for result in collection.passes for found in result.findings if found.code == "all_zero")
    assert "performance level" not in found.line


def test_a_counter_that_the_release_does_not_know_is_named(machine):
    """rocprofv3 ends with 0 and leaves it out: the pass is partial, and says which counter is missing."""
    machine.set(unknown=["SQ_BUSY_CU_CYCLES"])
    machine.install("rocprofv3")
    collection = machine.collect(wanted=("occupancy",))
    result = collection.passes[1]
    assert (result.status, collection.complete) == ("partial", False)
    assert result.arrived.dispatches == 6
    assert "gfx942" in result.findings[0].line
    machine.set(unknown=["TCC_HIT_sum", "GRBM_GUI_ACTIVE", "SQ_WAVES"])
    result = machine.collect(wanted=("TCC_HIT_sum",)).passes[1]
    assert result.status == "failed"
    assert [found.code for found in result.findings] == ["unknown_counter", "no_data"]


def test_an_unknown_counter_costs_its_pass_only(machine):
    """The default groups ask for none; one that is named ends the application, and only that is said of it."""
    machine.set(release="6.2.0", unknown=["TCC_BUBBLE_sum", "SQ_INSTS_VALU_MFMA_MOPS_F8"])
    machine.install("rocprofv3")
    assert machine.collect().complete
    collection = machine.collect(wanted=("TCC_BUBBLE_sum",))
    assert list(statuses(collection).values()) == ["done", "failed"]
    (found,) = collection.passes[1].findings
    assert found.line == snapshot(
        "this profiler does not know all of the counters on gfx942, and ends the application for it: TCC_BUBBLE_sum: "
        "leave them out, or use rocprofv3 of ROCm 6.4 or later"
    )


def test_an_interrupted_collection_goes_on_at_the_missing_pass(machine):
    """What was measured is not measured again, also after splits and failures; the rest is."""
    machine.set(limits={"TCC": 1}, fails="breaks the application", fails_in="SQ_LDS_BANK_CONFLICT")
    machine.install("rocprofv3")
    broken = machine.collect(wanted=("memory", "lds"))
    assert not broken.complete
    calls = len(machine.called())
    machine.set(fails="")
    whole = machine.collect(wanted=("memory", "lds"), resume=True)
    assert whole.complete, codes(whole)
    failed = [result for result in broken.passes if result.status not in {"done", "split"}]
    new = machine.called()[calls:]
    assert 0 < len(new) < calls
    assert len(new) >= len(failed)
    assert all("SQ_LDS_BANK_CONFLICT" in call["argv"] or "-o" in call["argv"] for call in new)


def test_an_interrupt_keeps_the_finished_passes(machine):
    """Control-C in the second pass: profile.json and state.json are whole, the half pass is gone, resuming works."""
    machine.install("rocprofv3")

    def interrupt(step):
        if step.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.collect(on_step=interrupt)
    assert statuses(store.read_profile(machine.out / store.PROFILE))["timing"] == "done"
    assert len(machine.called()) == 1
    collection = machine.collect(resume=True)
    assert collection.complete
    assert len(machine.called()) == len(collection.passes)


def test_a_kill_while_a_pass_runs_leaves_no_profiler(machine):
    """SIGTERM to rocattn while the profiler hangs: its group is killed, and what was finished is kept."""
    fifo = machine.root / "fifo"
    os.mkfifo(fifo)
    machine.set(fails="hangs")
    machine.install("rocprofv3")
    program = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from rocattn_profiling.base.process import run_group\n"
        "def end(*_): raise SystemExit(9)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"held = open({str(fifo)!r}, 'w')\n"
        'worker = "import os, signal; print(os.getpid(), flush=True); signal.pause()"\n'
        "run_group([sys.executable, '-c', worker], env={}, cwd=None, stdout=held, stderr=held, timeout_s=900)\n"
    )
    started = subprocess.Popen([sys.executable, "-c", program])
    with fifo.open() as pipe:
        worker = int(pipe.readline())
        started.send_signal(signal.SIGTERM)
        assert nobody_holds(pipe.fileno())
    assert started.wait() == 9
    assert worker > 0


def test_a_folder_that_cannot_be_written_is_one_line(machine):
    """A file in the way, and a folder without permission."""
    machine.install("rocprofv3")
    machine.out.write_text("in the way")
    with pytest.raises(RocattnError, match="cannot write") as told:
        machine.collect()
    assert "\n" not in str(told.value)
    machine.out.unlink()
    if os.geteuid() != 0:  # root writes everywhere
        machine.root.chmod(stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(RocattnError, match="cannot write"):
            machine.collect()
        machine.root.chmod(0o700)


def test_a_file_that_cannot_be_scrubbed_is_removed(machine):
    """A database cut off by a kill may contain the environment: it is removed, and the line says so."""
    machine.install("rocprofv3")
    script = machine.root / "writes.sh"
    cut = machine.out / "passes/timing/raw/cut.db"
    script.write_text(
        f'#!/bin/sh\ntest -d "{machine.out}/passes/counters-1" || printf "SQLite format 3\\0cut" > "{cut}"\n'
    )
    script.chmod(0o755)
    collection = machine.collect(str(script), wanted=("lds",))
    assert [found.code for found in collection.passes[0].findings] == ["not_scrubbed"]
    assert not cut.exists()


def test_a_defect_of_a_reader_does_not_end_the_collection(machine, monkeypatch):
    """The raw files are kept, and that they could not be read is a line."""
    machine.install("rocprofv3")

    def broken(_paths):
        raise KeyError("node")

    monkeypatch.setattr("rocattn_profiling.profile.ingest.read", broken)
    collection = machine.collect(wanted=("lds",))
    assert codes(collection) == ["unread", "unread"]
    assert list(machine.out.rglob("*_counter_collection.csv"))
