"""Collections on a pretend machine: what the collectors start, what they keep, and what they record."""

import json
from pathlib import Path

import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.profile.collect import store
from rocattn_profiling.profile.collect.passes import STATE
from rocattn_profiling.profile.ingest import read

from .telling import codes

WANTED = {"GRBM_GUI_ACTIVE", "SQ_WAVES", "SQ_WAVE_CYCLES", "SQ_BUSY_CU_CYCLES", "GRBM_COUNT", "TCC_EA0_RDREQ_sum"}


@pytest.mark.parametrize("release", ["6.2.0", "6.2.4", "6.3.1", "6.4.2", "7.0.0", "7.2.4"])
def test_rocprofv3_of_every_release_is_driven_and_read(machine, release):
    """Each release gets the options it knows; every counter of every pass arrives, and times come from the trace."""
    machine.set(release=release)
    machine.install("rocprofv3")
    (machine.bin.parent / ".info").mkdir()
    (machine.bin.parent / ".info" / "version").write_text(f"{release}-66\n")
    collection = machine.collect()
    assert collection.complete, collection
    assert [result.arrived.dispatches for result in collection.passes] == [6] * len(collection.passes)
    profile = read([machine.out])
    assert set(profile.counters["counter"].unique()) >= WANTED
    assert profile.dispatches["start_ns"].notna().sum() >= 6
    assert {len(result.counters) == 0 for result in collection.passes} == {True, False}


@pytest.mark.parametrize("name", ["rocprofv3", "rocprofv2", "rocprof", "rocprof-compute"])
def test_every_profiler_leaves_a_folder_that_ingest_reads(machine, name):
    """The same command, each tool in turn: dispatches, counters and kernel names with commas come out."""
    machine.set(tool_version="3.1.0", release="7.0.0" if name == "rocprofv3" else "6.2.0")
    machine.install(name)
    collection = machine.collect()
    assert collection.complete, codes(collection)
    assert collection.tool.name == name
    profile = read([machine.out / "passes"])
    assert any("attn_fwd<64, true>" in kernel for kernel in profile.dispatches["kernel"].cat.categories)
    assert {"GRBM_GUI_ACTIVE", "SQ_WAVES", "SQ_WAVE_CYCLES"} <= set(profile.counters["counter"].unique())
    waves = profile.counters[profile.counters["counter"] == "SQ_WAVES"]["value"]
    assert set(waves) == {8192 / 64, 131072 / 64, 4096 / 64}


def test_rocpd_is_collected_and_read(machine, monkeypatch):
    """With --format rocpd the databases hold every pass, and nothing of the environment."""
    machine.install("rocprofv3")
    monkeypatch.setenv("MY_SERVICE_TOKEN", "hunter2-hunter2")
    collection = machine.collect(output_format="rocpd")
    assert collection.complete, codes(collection)
    assert set(read([machine.out]).counters["counter"].unique()) >= WANTED
    bases = list(machine.out.rglob("*.db"))
    assert len(bases) == len(collection.passes)
    assert not any(b"hunter2" in base.read_bytes() for base in bases)


@pytest.mark.parametrize("name", ["rocprofv3", "rocprofv2", "rocprof", "rocprof-compute"])
def test_arguments_reach_the_application_unharmed(machine, name):
    """Blanks, quotes, dollars and globs arrive as they were given, also through rocprof's shell."""
    machine.set(tool_version="3.1.0", release="7.0.0" if name == "rocprofv3" else "6.2.0")
    machine.install(name)
    words = ["two  words", "$HOME", '"quoted"', "it's", "*", "a\\b", "", "--"]
    machine.collect(str(machine.app), *words, wanted=("lds",))
    runs = machine.args.read_text().split("|--|")[:-1]
    assert set(runs) == {"|".join(words[:-1])}


def test_the_timing_pass_has_no_counters_and_comes_first(machine):
    """Times are not taken from a run whose kernels are counted: those are serialised."""
    machine.install("rocprofv3")
    machine.collect()
    first, *others = [call["argv"] for call in machine.called()]
    assert "--kernel-trace" in first
    assert "--pmc" not in first
    assert all("--pmc" in argv and "GRBM_GUI_ACTIVE" in argv and "SQ_WAVES" in argv for argv in others)


def test_files_have_an_explicit_format_and_a_name_per_process(machine):
    """rocprofv3's default format changes by release, and a name without %pid% loses all processes but one."""
    machine.install("rocprofv3")
    machine.collect()
    for call in machine.called():
        argv = call["argv"]
        assert argv[argv.index("--output-format") + 1] == "csv"
        assert "%pid%" in argv[argv.index("-o") + 1]
        assert argv[argv.index("-d") + 1].startswith(str(machine.out / "passes"))


def test_temporary_files_stay_out_of_the_working_folder(machine, monkeypatch):
    """The command runs where the caller is; what the profiler leaves behind is in the pass's folder, and removed."""
    here = machine.root / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    machine.install("rocprofv3")
    assert machine.collect().complete
    assert {call["cwd"] for call in machine.called()} == {str(here)}
    assert list(here.iterdir()) == []
    assert list(machine.out.rglob("*.dat")) == []


def test_another_profilers_environment_does_not_leak(machine, monkeypatch):
    """Inherited orders of a profiler are taken out, and named; the rest of the environment arrives."""
    leaks = {"HSA_TOOLS_LIB": "/x.so", "ROCPROF_OUTPUT_FORMAT": "json", "ROCP_METRICS": "m.xml", "ROCPROFILER_LOG": "1"}
    preload = "/opt/rocm/lib/librocprofiler-sdk.so:/usr/lib/libmine.so"
    for name, value in (leaks | {"LD_PRELOAD": preload, "MINE": "kept"}).items():
        monkeypatch.setenv(name, value)
    machine.install("rocprofv3")
    collection = machine.collect()
    assert set(collection.removed) == {*leaks, "LD_PRELOAD"}
    for call in machine.called():
        assert not set(leaks) & set(call["env"])
        assert (call["env"]["MINE"], call["env"]["LD_PRELOAD"]) == ("kept", "/usr/lib/libmine.so")
    assert list(machine.out.rglob("*_results.json")) == []
    assert any("under a profiler" in note for note in collection.notes)


def test_a_variable_can_be_kept(machine, monkeypatch):
    """--keep-env passes on what the caller means."""
    monkeypatch.setenv("ROCPROFILER_METRICS_PATH", "/mine.yaml")
    machine.install("rocprofv3")
    collection = machine.collect(keep_env=("ROCPROFILER_METRICS_PATH",))
    assert collection.removed == ()
    assert machine.called()[0]["env"]["ROCPROFILER_METRICS_PATH"] == "/mine.yaml"


def test_resuming_something_else_is_refused(machine, monkeypatch):
    """Passes of another command or folder are not mixed into a collection; without one there is nothing to resume."""
    machine.install("rocprofv3")
    with pytest.raises(store.ResumeError, match="nothing to resume"):
        machine.collect(resume=True)
    machine.collect()
    with pytest.raises(store.ResumeError, match="another command"):
        machine.collect(str(machine.app), "--other", resume=True)
    elsewhere = machine.root / "elsewhere"
    elsewhere.mkdir()
    with monkeypatch.context() as there:
        there.chdir(elsewhere)
        with pytest.raises(store.ResumeError, match="another command"):
            machine.collect(resume=True)
    (machine.out / STATE).write_text('{"schema": 1')
    with pytest.raises(store.ResumeError, match="cannot be read"):
        machine.collect(resume=True)


def test_an_earlier_collection_is_moved_aside(machine):
    """A new collection in the same folder does not mix with the old one, and does not delete it."""
    machine.install("rocprofv3")
    machine.collect(wanted=("lds",))
    machine.collect(wanted=("occupancy",))
    earlier = machine.out.with_name("out-earlier-1")
    assert store.read_profile(earlier / store.PROFILE).wanted == ("lds",)
    assert store.read_profile(machine.out / store.PROFILE).wanted == ("occupancy",)


def test_a_folder_with_other_things_in_it_keeps_them(machine, monkeypatch):
    """--out . is possible: only the collection's own files are moved aside."""
    here = machine.root / "here"
    here.mkdir()
    (here / "mine.txt").write_text("mine")
    monkeypatch.chdir(here)
    machine.out = Path()
    machine.install("rocprofv3")
    for _ in range(2):
        assert machine.collect(wanted=("lds",)).complete
    assert {path.name for path in here.iterdir()} == {"mine.txt", "passes", "profile.json", "state.json"}
    assert {path.name for path in (machine.root / "here-earlier-1").iterdir()} == {
        "passes",
        "profile.json",
        "state.json",
    }


def test_the_record_says_tool_clocks_and_level_before_and_after(machine, monkeypatch):
    """profile.json answers later: which profiler, which release, which driver state."""
    monkeypatch.setenv("HOME", str(machine.root / "home"))  # whose path it leaves out: not the program's
    machine.install("rocprofv3")
    machine.collect()
    told = json.loads((machine.out / store.PROFILE).read_text())
    assert (told["tool"]["name"], told["tool"]["rocm"], told["tool"]["told_by"]) == ("rocprofv3", "7.0.0", "--version")
    for when in ("before", "after"):
        gpu = told[when]["gpus"][0]
        assert (gpu["arch"], gpu["performance_level"], gpu["core_mhz"], gpu["memory_mhz"]) == (
            "gfx942",
            "auto",
            2100,
            900,
        )
    assert told["command"] == [str(machine.app)]


@pytest.mark.parametrize("name", ["rocprofv3", "rocprofv2", "rocprof", "rocprof-compute"])
def test_secrets_are_in_no_stored_file(machine, monkeypatch, name):
    """Not the environment's, not the command line's, not those that the application prints."""
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdef")
    machine.set(tool_version="3.1.0", release="7.0.0" if name == "rocprofv3" else "6.2.0")
    machine.install(name)
    chatty = machine.root / "chatty.sh"
    chatty.write_text('#!/bin/sh\necho "token is $HF_TOKEN"\nenv\n')
    chatty.chmod(0o755)
    collection = machine.collect(str(chatty), "--api-key", "sk-very-secret", "--url=https://me:pw123456@host/x")
    assert collection.complete, codes(collection)
    stored = [path for path in machine.out.rglob("*") if path.is_file()]
    for path in stored:
        data = path.read_bytes()
        for secret in (b"hf_0123456789abcdef", b"sk-very-secret", b"pw123456"):
            assert secret not in data, path
    logs = "".join(path.read_text() for path in stored if path.name == "stdout.txt")
    assert "token is <scrubbed>" in logs


def test_progress_counts_the_passes(machine):
    """A step as each begins, by its name, and one at the end."""
    machine.install("rocprofv3")
    steps = []
    names = [each.name for each in machine.collect(on_step=steps.append).passes]
    assert [step[:3] for step in steps] == [(done, len(names), name) for done, name in enumerate([*names, ""])]


def test_two_collections_in_one_folder_are_refused(machine):
    """The second says so in a line instead of mixing its files with the first one's."""
    machine.install("rocprofv3")

    def second(step):
        if step.done == 0:
            machine.collect()

    with pytest.raises(RocattnError, match="another rocattn profile is writing"):
        machine.collect(on_step=second)


def test_gpus_of_other_architectures_are_hidden(machine):
    """An iGPU beside the dGPU may come first: it is hidden, and that is noted."""
    machine.gpus("gfx1036", "gfx1100", level="profile_standard")
    machine.set(arch="gfx1100")
    machine.install("rocprofv3")
    collection = machine.collect(arch="gfx1100")
    assert collection.complete
    assert {call["env"]["ROCR_VISIBLE_DEVICES"] for call in machine.called()} == {"1"}
    assert any("gfx1036 hidden" in note for note in collection.notes)


@pytest.mark.parametrize("cards", [1, 2])
def test_a_gpu_without_counter_definitions_is_survived(machine, cards):
    """rocprofv3 of ROCm 7.0 to 7.2 makes counters for hidden GPUs, too, and aborts: each counter names its GPUs."""
    machine.gpus("gfx1036", *["gfx1100"] * cards, level="profile_standard")
    machine.set(arch="gfx1100", release="7.1.1", undefined={"0": "gfx1036"}, limits={"SQ": 2})
    machine.install("rocprofv3")
    collection = machine.collect(arch="gfx1100", wanted=("SQ_INSTS_VALU", "SQ_INSTS_LDS"))
    assert collection.complete
    assert [result.status for result in collection.passes] == ["done", "split", "done", "done"]
    for call in machine.called()[1:]:
        asked = {word.partition(":device=")[::2] for word in call["argv"] if word.startswith("SQ_")}
        assert {device for _, device in asked} == {str(number) for number in range(1, cards + 1)}


def test_a_path_that_rocprof_cannot_take_is_refused(machine):
    """Version 1 splits its arguments at blanks: a folder with one is a line, not a strange failure."""
    machine.set(release="6.2.0")
    machine.install("rocprof")
    machine.out = machine.root / "with blank"
    with pytest.raises(RocattnError, match="use --out with letters"):
        machine.collect()
    assert machine.called() == []


def test_the_application_says_which_launch_plans_it_ran(machine):
    """Each pass has a plan log of its own, so that a report can say which attention problem a dispatch solved."""
    machine.install("rocprofv3")
    script = machine.root / "plans.sh"
    script.write_text('#!/bin/sh\necho "{}" >> "$ROCATTN_PLAN_LOG"\n')
    script.chmod(0o755)
    collection = machine.collect(str(script), wanted=("lds",))
    logs = sorted(machine.out.rglob("plans.jsonl"))
    assert [log.parent.name for log in logs] == sorted(result.name for result in collection.passes)
    assert {log.read_text() for log in logs} == {"{}\n"}
    machine.set(fails="writes nothing")
    machine.collect(str(script), wanted=("lds",))
    assert list(machine.out.rglob("plans.jsonl")) == []


def test_a_collected_folder_is_read_without_complaints(machine):
    """Logs, plan logs and profile.json beside the profiler's files are no problems of theirs."""
    machine.install("rocprofv3")
    collection = machine.collect()
    profile = read([machine.out])
    assert [str(problem) for problem in profile.problems] == []
    assert all(result.arrived.problems == () for result in collection.passes)
