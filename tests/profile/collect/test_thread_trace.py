"""The pass with a thread trace: its command line, its data beside that of other passes, and how its failures read."""

import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.profile.collect.find import NoProfilerError
from rocattn_profiling.profile.collect.passes import TRACE, trace_pass
from rocattn_profiling.profile.ingest import read
from rocattn_profiling.profile.report.report import build

from .telling import codes


@pytest.fixture
def decoder(machine):
    """The folder of the trace decoder, in the ROCm of a machine with rocprofv3."""
    machine.install("rocprofv3")
    folder = machine.bin.parent / "lib"
    folder.mkdir()
    (folder / "librocprof-trace-decoder.so").touch()
    return folder


def test_a_kernel_is_traced_in_a_pass_of_its_own(machine, decoder):
    """Its cycles are hot spots of the one kernel that was asked for; times stay those of the undisturbed pass."""
    collection = machine.collect(traced=True, kernel="attn_fwd", wanted=("lds",))
    assert collection.complete, codes(collection)
    traced = collection.passes[-1]
    assert (traced.name, traced.status) == (TRACE, "done")
    *others, call = machine.called()
    assert "--att" in call["argv"]
    assert not {"--pmc", "--att-library-path"} & {*call["argv"]}
    assert call["argv"][call["argv"].index("--kernel-include-regex") + 1] == "attn_fwd"
    assert call["env"]["ROCATTN_LINE_TABLES"] == "1"
    assert not any("--att" in other["argv"] for other in others)
    profile = read([machine.out])
    assert [str(problem) for problem in profile.problems] == []
    assert not any(TRACE in str(name) for name in profile.dispatches["pass"].unique())
    (spots,) = build(profile).hot_spots
    assert "attn_fwd" in spots.kernel
    assert [(line.place, line.count) for line in spots.lines] == [("app.hip:12", 9664), ("app.hip:11", 272)]


def test_a_decoder_elsewhere_is_named_by_option(machine, decoder, tmp_path, monkeypatch):
    """rocprofv3 would take the letters of AMD's own variable for folders."""
    elsewhere = tmp_path / "decoder here"
    decoder.rename(elsewhere)
    monkeypatch.setenv("ROCPROF_ATT_LIBRARY_PATH", str(elsewhere))
    collection = machine.collect(traced=True, wanted=("lds",))
    assert collection.complete, codes(collection)
    argv = machine.called()[-1]["argv"]
    assert argv[argv.index("--att-library-path") + 1] == str(elsewhere)
    assert "ROCPROF_ATT_LIBRARY_PATH" not in machine.called()[-1]["env"]


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"fails": "refuses the trace"}, "thread_trace", "aqlprofile"),
        ({"fails": "traces nothing"}, "no_data", "no instruction was traced"),
        ({"says": "F20260815 22:01:04.5 9 att_lib_wrapper.cpp:126] Error loading decoder: 37"}, "trace_decoder", ""),
    ],
)
def test_a_failed_trace_is_one_line_beside_the_others(machine, decoder, settings, code, said):
    """Nothing that was measured is lost."""
    machine.set(**settings)
    if "says" in settings:  # and ends the application, as glog does
        machine.set(fails="refuses the trace")
    collection = machine.collect(traced=True, wanted=("lds",))
    *others, traced = collection.passes
    assert {result.status for result in others} == {"done"}
    assert traced.status == "failed"
    assert next(finding.code for finding in traced.findings if finding.level == "error") == code
    assert said in traced.findings[0].line
    assert [(part.what, part.needed) for part in collection.not_compared] == [(f"pass {TRACE}", True)]


def test_without_a_decoder_the_command_says_so_with_status_3(machine, decoder, capsys, monkeypatch):
    """The counters are there all the same."""
    (decoder / "librocprof-trace-decoder.so").unlink()
    monkeypatch.chdir(machine.root)
    command = ["profile", "--thread-trace", "--metrics", "lds", "--out", "p", "--", str(machine.app)]
    assert main(command) == 3
    out, err = capsys.readouterr()
    assert err.count("rocprofv3 finds no trace decoder that it can use: install rocprof-trace-decoder") == 1
    assert "thread-trace" in out + err


@pytest.mark.parametrize(
    ("release", "tool", "takes"),
    [((7, 0), "rocprofv3", True), ((0, 0), "rocprofv3", True), ((6, 4), "rocprofv3", False), ((6, 2), "rocprof", 0)],
)
def test_only_rocprofv3_from_7_0_on_traces(release, tool, takes):
    """The others are refused as profilers that are not there: before anything is run, with status 3."""
    if takes:
        assert trace_pass(release, tool).traced
    else:
        with pytest.raises(NoProfilerError):
            trace_pass(release, tool)
