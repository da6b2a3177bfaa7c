"""Diagnoses: each situation that profilers leave behind becomes one line with its remedy."""

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.base.process import Ended
from rocattn_profiling.profile.collect import diagnose
from rocattn_profiling.profile.collect.find import Tool
from rocattn_profiling.profile.collect.hardware import Gpu, Hardware
from rocattn_profiling.profile.collect.passes import ProfilerPass
from rocattn_profiling.profile.collect.store import PassOutput

COUNTERS = ("GRBM_GUI_ACTIVE", "SQ_WAVES", "SQ_INSTS_VALU")
WHOLE = PassOutput(("out_counter_collection.csv",), 6, 2, dict.fromkeys(COUNTERS, 6))


def machine(level="profile_standard", kfd="ok", arch="gfx1100"):
    """Return a machine with one GPU."""
    return Hardware((Gpu(arch, 1, performance_level=level),), "6.8", "", kfd, 2, "sysfs")


def findings(text="", status=0, arrived=WHOLE, **changes):
    """Return what is found in a pass that printed a text and ended with a status."""
    facts = {
        "tool": Tool("rocprofv3", "/opt/rocm/bin/rocprofv3", "1.0.0", "7.0.0"),
        "of_pass": ProfilerPass("counters-1", COUNTERS), "arch": "gfx1100", "hardware": machine(),
    }  # fmt: skip
    ended = status if isinstance(status, Ended) else Ended(status, 3.0)
    return diagnose.diagnose(diagnose.Evidence(**(facts | changes), ended=ended, text=text, arrived=arrived))


# Texts as the tools print them (sources in diagnose.py), the status that goes with them, and what it is.
TEXTS = [
    (
        (
            "F20260815 22:01:04 9 tool.cpp:1186]  :: [/src/tool.cpp:1186]\n\trocprofiler_create_counter_config("
            "agent_id, counters_v.data(), counters_v.size(), &profile_v)\n\nCould not construct profile cfg failed "
            "with error code 38: Request exceeds the capabilities of the hardware to collect"
        ), -6, "over_subscribed", False,
    ),
    ("\nInput metrics out of HW limit. Proposed metrics group set:\n group1: A", 1, "over_subscribed", False),
    ("ERROR: rocprofiler_open(), Construct(), Metrics list exceeds HW limits", -6, "over_subscribed", False),
    (
        (
            "Could not construct profile cfg failed with error code 39: Agent HW architecture is not supported, "
            "no counter metrics found."
        ), -6, "arch_without_counters", True,
    ),
    (
        (
            "W metadata.cpp:330] rocprofiler_iterate_agent_supported_counters failed for agent 2 (gfx1036) :: Agent HW "
            "architecture is not supported, no counter metrics found.\nterminate called after throwing an instance of "
            "'std::out_of_range'\n  what():  unordered_map::at\n"
        ), -6, "arch_without_counters", True,
    ),
    (
        (
            "W metadata.cpp:330] rocprofiler_iterate_agent_supported_counters failed for agent 1 (gfx1100) :: Agent HW "
            "architecture is not supported, no counter metrics found.\n"
        ), 0, "arch_without_counters", True,
    ),
    ("ERROR Cannot find a supported arch in rocminfo: gfx1100", 1, "arch_unsupported", True),
    ("ROCProfiler: input metric 'SQ_WAVEZ' is not found", -6, "unknown_counter", False),
    ("Unable to open /dev/kfd read-write: Permission denied", 1, "no_permission", True),
    ("Error: perf_event_open failed: check /proc/sys/kernel/perf_event_paranoid", 1, "perf_paranoid", True),
    ("Device 5998 has a profiler attached to it. PMC Counters may be inaccurate.", 0, "second_profiler", True),
    ("ERROR An instance of rocprof is already running", 1, "second_profiler", True),
    ("aqlprofile API table load failed", -6, "aqlprofile_missing", True),
    (
        (
            "W tool.cpp:2422] HSA version 8.20.0 initialized (instance=0)\nError Calling hsa_iterate_agents: "
            "HSA_STATUS_ERROR: A generic error has occurred.\n*** SIGABRT (@0x1) received by PID 9 ***\n"
        ), -6, "aqlprofile_stops", True,
    ),
    ("F0818 registration.cpp:11] ROCPROFILER_STATUS_ERROR_CONFIGURATION_LOCKED", -6, "mixed_rocm", True),
    ("python: symbol lookup error: librocprofiler-sdk.so.1: undefined symbol: hsa_amd_queue", 127, "mixed_rocm", True),
    ("F0818 ring_buffer.cpp:106] mmap failed with errno 22", -9, "mapping_failed", True),
    ("terminate called: filesystem error: No space left on device [/out/raw]", -6, "disk_full", True),
    ("mkdir: cannot create directory 'out': Read-only file system", 1, "not_writable", True),
    ("rocprofv3: error: unrecognized arguments: --pmc SQ_WAVES", 2, "tool_usage", True),
    ("/opt/rocm/bin/rocprof: Error: 'rocminfo' utility is not found: please add ROCM", 1, "roctool_missing", True),
    ("Profiling data corrupted: ' out/results.txt'", 1, "post_processing", False),
    ("ROCprofiler: 0 contexts collected, output directory /tmp/x", 0, "no_contexts", False),
    ("E0818 tool.cpp] Given PC sampling configuration is not supported on any of the agents", 1, "pc_sampling", True),
    ("ERROR gfx942 is not enabled rocprofv1. Available profilers include: ['rocprofv2']", 1, "arch_unsupported", True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "status", "code", "stops"), TEXTS, ids=[f"{code}-{n}" for n, (_, _, code, _) in enumerate(TEXTS)]
)
def test_a_text_of_the_profiler_is_recognised(text, status, code, stops):
    """One error, its remedy in the same line, and whether it is worth going on."""
    first = findings(text, status, arrived=PassOutput())[0]
    assert (first.code, first.stops, first.level) == (code, stops, "error")
    assert first.remedy in first.line
    assert "\n" not in first.line


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            (
                "W ioctl.cpp:68] Device 5998 could not be locked for profiling due to lack of permissions (capability "
                "SYS_PERFMON). PMC Counters may be inaccurate and System Counter Collection will be degraded."
            ),
            "no_permission",
        ),
        ("Driver/Kernel version does not support locking device 7. PMC Counters may be", "old_driver"),
        ("WARNING: rocprof(v1) is not supported on this device. Recommended use: rocprofv2", "tool_not_for_arch"),
    ],
)
def test_a_warning_of_the_profiler_does_not_cost_the_pass(text, code):
    """The data is there; the line says what may be wrong with it."""
    assert [(found.code, found.level, found.stops) for found in findings(text)] == [(code, "warning", False)]


@pytest.mark.parametrize(("text", "_status", "code", "_stops"), TEXTS[10:11] + TEXTS[16:18])
def test_a_complete_pass_has_warnings_only(text, _status, code, _stops):
    """Another profiler's presence is a warning when the counters are there, and so is what the application prints."""
    assert [(found.code, found.level, found.stops) for found in findings(text)] == [(code, "warning", False)]


def test_harmless_lines_are_no_findings():
    """What every rocprofv3 prints, at ERROR level too."""
    text = (
        "W20260815 22:01:04.1 9 simple_timer.cpp:55] [rocprofv3] tool initialization :: 0.0906 sec\n"
        "W tool.cpp:2423] HSA version 1.18.0 initialized (instance=0)\n"
        "E20260815 22:01:04.1 9 output_stream.cpp:111] Opened result file: /x/out_counter_collection.csv\n"
        "Warning: No tracing options were enabled.\n"
    )
    assert findings(text) == []


def test_unknown_counters_are_named_in_both_forms_of_the_text():
    """Releases of 2025 list what was found, later ones also what is missing."""
    base = "W tool.cpp:1176] Unable to find all counters for agent 1 (gpu-0, gfx1201) in [A, B, C]. Found: [A]"
    for text in (base, f"{base}. Missing: [B, C]"):
        (found,) = findings(text, arch="gfx1201")
        assert found.what == "this profiler does not know all of the counters on gfx1201: B, C"


def test_messages_about_other_gpus_are_ignored():
    """rocprofv3 speaks of every GPU: of the one inside the processor, too, which the passes do not mean."""
    text = (
        "W metadata.cpp:330] rocprofiler_iterate_agent_supported_counters failed for agent 2 (gfx1036) :: Agent HW "
        "architecture is not supported, no counter metrics found.\n"
        "W tool.cpp:1176] Unable to find all counters for agent 3 (gpu-2, gfx90c) in [A, B]. Found: [A]\n"
    )
    assert findings(text) == []
    lacking = PassOutput(("x.csv",), 6, 2, {"SQ_WAVES": 6, "GRBM_GUI_ACTIVE": 6})
    assert [found.code for found in findings(text, arrived=lacking)] == ["missing_counters"]
    own = "W tool.cpp:1176] Unable to find all counters for agent 1 (gpu-0, gfx1100) in [A, C]. Found: [A]\n"
    assert findings(text + own)[0].what.endswith("on gfx1100: C")


def test_unknown_counters_are_named_without_device():
    """A counter that is asked for on two GPUs is printed twice, and found on the one that the line is about."""
    text = (
        "W tool.cpp:1176] Unable to find all counters for agent 2 (gpu-1, gfx1100) in [A:device=1, A:device=2, "
        "B:device=1, B:device=2]. Found: [A:device=1]"
    )
    assert findings(text)[0].what == "this profiler does not know all of the counters on gfx1100: B"


def test_an_abort_for_unknown_counters_is_explained():
    """rocprofv3 of ROCm 6.2 and 6.3 aborts in the first dispatch; the application is not tried, and not blamed."""
    text = (
        "F20240806 12:00:04.1 9 tool.cpp:947] Unable to find all counters for agent 2 (gpu-0, gfx942) in "
        "[SQ_WAVES, TCC_BUBBLE_sum]. Found: [SQ_WAVES]\n*** Check failure stack trace: ***\n"
    )
    (found,) = findings(text, -6, arrived=PassOutput())
    assert (found.code, found.level, found.stops) == ("unknown_counter", "error", False)
    assert found.what == snapshot(
        "this profiler does not know all of the counters on gfx942, and ends the application for it: TCC_BUBBLE_sum"
    )
    evidence = diagnose.Evidence(
        tool=Tool("rocprofv3", "rocprofv3", rocm="6.2"), of_pass=ProfilerPass("counters-1", COUNTERS), arch="gfx942",
        ended=Ended(-6, 1.0), text=text, arrived=PassOutput(), hardware=machine(),
    )  # fmt: skip
    assert not diagnose.needs_control(evidence)


def test_zeros_under_auto_name_level_and_command():
    """SQ_WAVES alone counts on a Radeon at auto: the remedy is a command."""
    zeros = PassOutput(("f",), 6, 2, {"GRBM_GUI_ACTIVE": 0, "SQ_WAVES": 6, "SQ_INSTS_VALU": 0})
    found = findings(arrived=zeros, hardware=machine("auto"))[0]
    assert (found.code, found.stops) == ("all_zero", True)
    assert found.line == snapshot(
        "all counters but SQ_WAVES are 0, because the GPU's performance level is auto: sudo amd-smi set -g 0 -l "
        "stable_std (or echo profile_standard into power_dpm_force_performance_level)"
    )
    unseen = findings(arrived=zeros, hardware=machine(""))[0]
    assert unseen.line == snapshot(
        "all counters but SQ_WAVES are 0: Radeon GPUs count only at a fixed performance level, and this one's is not "
        "shown: sudo amd-smi set -g 0 -l stable_std"
    )
    assert findings(arrived=zeros, hardware=machine("auto", arch="gfx942"), arch="gfx942")[0].stops is False


def test_one_zero_counter_is_no_finding():
    """Kernels without LDS have no bank conflicts."""
    arrived = PassOutput(("f",), 6, 2, dict.fromkeys(COUNTERS, 6) | {"SQ_LDS_BANK_CONFLICT": 0})
    assert findings(arrived=arrived, of_pass=ProfilerPass("p", (*COUNTERS, "SQ_LDS_BANK_CONFLICT"))) == []


def test_fetch_size_of_gfx12_is_known_to_be_zero():
    """Not a fault of the run: the counter misses the requests' size."""
    of_pass = ProfilerPass("p", (*COUNTERS, "FETCH_SIZE"))
    arrived = PassOutput(("f",), 6, 2, dict.fromkeys(COUNTERS, 6) | {"FETCH_SIZE": 0})
    found = findings(arrived=arrived, of_pass=of_pass, arch="gfx1201", hardware=machine(arch="gfx1201"))
    assert [one.code for one in found] == ["fetch_size_gfx12"]


@pytest.mark.parametrize(
    ("kfd", "code"), [("ok", "no_data"), ("no permission", "no_permission"), ("missing", "no_data")]
)
def test_no_file_at_all_although_it_ended_well(kfd, code):
    """Exit status 0 is not data; where /dev/kfd is closed to the user, that is the reason."""
    found = findings(arrived=PassOutput(), hardware=machine(kfd=kfd))[0]
    assert (found.code, found.stops) == (code, kfd != "ok")
    assert ("/dev/kfd" in found.line) == (kfd != "ok")


def test_an_applications_own_usage_error_is_not_the_profilers():
    """argparse speaks for both: a wrong option of the profiled program is found by a run without the profiler."""
    text = "usage: train.py [-h] [--layers N]\ntrain.py: error: unrecognized arguments: --layer 3\n"
    evidence = diagnose.Evidence(
        tool=Tool("rocprofv3", "rocprofv3", rocm="7.0"), of_pass=ProfilerPass("counters-1", COUNTERS), arch="gfx1100",
        ended=Ended(2, 1.0), text=text, arrived=PassOutput(), hardware=machine(),
    )  # fmt: skip
    assert diagnose.needs_control(evidence)
    assert findings(text, 2, arrived=PassOutput(), control=Ended(2, 1.0))[0].code == "application_failed"
    for said in ("rocprof-compute profile: error: argument -b: invalid choice", "rocprofv3: error: argument -f: bad"):
        assert findings(f"usage: x\n{said}\n", 2, arrived=PassOutput())[0].code == "tool_usage"


def test_a_signal_without_a_name_is_told_by_its_number():
    """Of the real-time signals Python names the first and the last."""
    assert Ended(-40, 1.0).how == "killed by signal 40"
    assert Ended(-6, 1.0).how == "killed by SIGABRT"


def test_no_data_because_of_a_file_that_is_not_read_says_so():
    """The command did launch kernels; what became of them is what the reader says."""
    (found,) = findings(arrived=PassOutput(problems=("x.csv: a line longer than 4 MiB; this is not a table",)))
    assert (found.code, found.remedy) == ("no_data", "x.csv: a line longer than 4 MiB; this is not a table")


def test_no_data_with_two_rocm_releases_points_at_them():
    """The profiler's release and that of the application's torch differ."""
    found = findings(arrived=PassOutput(), torch_rocm="6.4")[0]
    assert (found.code, found.stops) == ("mixed_rocm", True)
    assert found.line == snapshot(
        "rocprofv3 ended well but wrote no dispatch: rocprofv3 is from ROCm 7.0 but the application's torch brings "
        "ROCm 6.4: use a profiler of ROCm 6.4"
    )
    assert findings(arrived=PassOutput(), torch_rocm="7.0")[0].code == "no_data"


def test_missing_counters_are_named():
    """TCC_HIT_sum that arrives as TCC_HIT is there; what is nowhere is named."""
    arrived = PassOutput(("f",), 6, 2, {"GRBM_GUI_ACTIVE": 6, "SQ_WAVES": 6, "TCC_HIT": 6})
    found = findings(
        arrived=arrived, of_pass=ProfilerPass("p", ("GRBM_GUI_ACTIVE", "SQ_WAVES", "TCC_HIT_sum", "TCC_MISS_sum"))
    )
    assert [(one.code, one.level) for one in found] == [("missing_counters", "warning")]
    assert "TCC_MISS_sum" in found[0].what
    assert "TCC_HIT_sum" not in found[0].what


def test_a_control_run_tells_whose_failure_it_is():
    """The same ending means the application or the profiler, by how the application ends alone."""
    evidence = {"status": -11, "arrived": PassOutput()}
    ours = findings(**evidence, control=Ended(0, 1.0), text="rocprofv3 caught signal 11...")[0]
    assert ours.code == "profiler_breaks_application"
    assert ours.line == snapshot(
        "the command runs alone but fails under rocprofv3 (killed by SIGSEGV (the profiler caught signal 11, "
        "SIGSEGV)): try another profiler (--tool) or release; see the end of the pass's log"
    )
    theirs = findings(**evidence, control=Ended(-11, 1.0))[0]
    assert (theirs.code, theirs.stops) == ("application_failed", True)
    assert "killed by SIGSEGV" in theirs.line
    untried = findings(
        status=1, arrived=PassOutput(), text="Fatal error: Failed to resolve path. '/x.so' does not exist"
    )[0]
    assert untried.line == snapshot(
        "rocprofv3 failed (exit status 1): Failed to resolve path. '/x.so' does not exist: see the log of the pass"
    )


def test_a_control_run_is_only_for_unexplained_endings():
    """A known text needs no second run of the application; success needs none either."""
    facts = {
        "tool": Tool("rocprofv3", "x"),
        "of_pass": ProfilerPass("p", COUNTERS),
        "arch": "gfx942",
        "hardware": machine(),
    }

    def needed(status, text, control=None):
        evidence = diagnose.Evidence(
            **facts, ended=Ended(status, 1.0), text=text, arrived=PassOutput(), control=control
        )
        return diagnose.needs_control(evidence)

    assert needed(-6, "")
    assert needed(None, "")
    assert not needed(0, "")
    assert not needed(-6, "Metrics list exceeds HW limits")
    assert not needed(-6, "", Ended(0, 1.0))


def test_a_hang_says_whether_the_command_itself_is_as_slow():
    """More time helps in one case, another profiler in the other."""
    slow = findings(status=Ended(None, 60.0), arrived=PassOutput(), control=Ended(None, 60.0))[0]
    assert slow.line == snapshot("the command itself runs longer than 60 s: give it more time (--timeout)")
    hangs = findings(status=Ended(None, 60.0), arrived=PassOutput(), control=Ended(0, 1.5))[0]
    assert hangs.line == snapshot(
        "the pass ran longer than 60 s and was killed; without the profiler it takes 1.5 s: give it more time "
        "(--timeout), or profile a shorter command"
    )
    assert (slow.code, hangs.code) == ("hangs", "hangs")


def test_a_full_disk_is_said_whatever_else_is():
    """Programs fail in many ways when nothing can be written."""
    found = findings(status=1, arrived=PassOutput(), free_bytes=4096)
    assert found[0].code == "disk_full"
    assert found[0].stops


@pytest.mark.parametrize(
    ("status", "arrived", "of_pass"),
    [
        (-6, WHOLE, ProfilerPass("p", COUNTERS)),
        (0, PassOutput(), ProfilerPass("timing")),
        (0, PassOutput(("f",), 6, 2, {"SQ_WAVES": 6}), ProfilerPass("p", COUNTERS)),
    ],
    ids=["ended badly", "no dispatch", "lacks counters"],
)
def test_an_alarming_text_is_an_error_where_anything_is_missing(status, arrived, of_pass):
    """Only a pass that ended well with all that was asked for makes it a warning."""
    first = findings("ERROR An instance of rocprof is already running", status, arrived, of_pass=of_pass)[0]
    assert (first.code, first.level, first.stops) == ("second_profiler", "error", True)


def test_stops_where_the_next_pass_would_fail_alike():
    """A timing pass asks for nothing, so what breaks it breaks all; a hang is tried alone before it ends the rest."""
    hang = Ended(None, 60.0)
    stops = {
        "hang, untried": findings(status=hang, arrived=PassOutput())[0].stops,
        "hang, tried": findings(status=hang, arrived=PassOutput(), control=Ended(0, 1.0))[0].stops,
        "counters break it": findings(status=-11, arrived=PassOutput(), control=Ended(0, 1.0))[0].stops,
        "timing breaks it": findings(
            status=-11, arrived=PassOutput(), control=Ended(0, 1.0), of_pass=ProfilerPass("timing")
        )[0].stops,
        "no data with counters": findings(arrived=PassOutput())[0].stops,
        "no data without": findings(arrived=PassOutput(), of_pass=ProfilerPass("timing"))[0].stops,
    }
    assert [name for name, stop in stops.items() if stop] == ["hang, tried", "timing breaks it", "no data without"]


def test_the_last_words_count():
    """The signal that ended it comes last; how long the command takes alone is said if it ends well alone."""
    text = "rocprofv3 caught signal 15...\nrocprofv3 caught signal 11...\n"
    assert "signal 11, SIGSEGV" in findings(text, -11, PassOutput(), control=Ended(0, 1.0))[0].line
    assert (
        "without the profiler"
        not in findings(status=Ended(None, 60.0), arrived=PassOutput(), control=Ended(1, 1.5))[0].line
    )


def test_counters_of_which_none_arrived_cost_the_pass():
    """Some of them are a warning, and what was told as unknown is not told again."""
    nothing = PassOutput(("f",), 6, 2, {"OTHER": 6})
    assert [(one.code, one.level) for one in findings(arrived=nothing)] == [("missing_counters", "error")]
    text = (
        "W tool.cpp:1176] Unable to find all counters for agent 1 (gpu-0, gfx1100) in [A, SQ_WAVES]. Found: [SQ_WAVES]"
    )
    some = PassOutput(("f",), 6, 2, {"SQ_WAVES": 6})
    assert [one.code for one in findings(text, 0, some, of_pass=ProfilerPass("p", ("A", "SQ_WAVES")))] == [
        "unknown_counter"
    ]


@pytest.mark.parametrize(
    ("arch", "counted", "codes"),
    [
        ("gfx942", {"TCC_HIT_sum": 0, "TCC_MISS_sum": 0}, ["all_zero"]),
        ("gfx942", {"TCC_HIT_sum": 0, "TCC_MISS_sum": 1}, []),
        ("gfx1201", {"FETCH_SIZE": 5, "SQ_WAVES": 1}, []),
        ("gfx1100", {"FETCH_SIZE": 0, "SQ_WAVES": 1}, []),
    ],
)
def test_zeros_of_all_counters_are_reported(arch, counted, codes):
    """A kernel that reads nothing has FETCH_SIZE 0 on an RX 7900 XT."""
    of_pass, arrived = ProfilerPass("p", tuple(counted)), PassOutput(("f",), 6, 2, counted)
    found = findings(arrived=arrived, of_pass=of_pass, arch=arch, hardware=machine(arch=arch))
    assert [one.code for one in found] == codes
