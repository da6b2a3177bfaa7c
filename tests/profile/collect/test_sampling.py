"""The pass with PC samples: which method which GPU and release gets, and what happens when nothing is sampled."""

import pytest

from rocattn_profiling.profile.collect.counters import CounterError
from rocattn_profiling.profile.collect.passes import SAMPLING, sampling_pass
from rocattn_profiling.profile.ingest import read
from rocattn_profiling.profile.report.report import build

from .telling import codes


@pytest.mark.parametrize(("release", "method"), [("6.4.2", "host_trap"), ("7.0.0", "stochastic")])
def test_samples_are_collected_in_a_pass_of_their_own(machine, release, method):
    """Their run names the kernels; times stay those of the undisturbed pass."""
    machine.set(release=release)
    machine.install("rocprofv3")
    (machine.bin.parent / ".info").mkdir()
    (machine.bin.parent / ".info" / "version").write_text(f"{release}-66\n")
    collection = machine.collect(sampling="auto", wanted=("lds",))
    assert collection.complete, codes(collection)
    assert collection.passes[-1].name == SAMPLING
    assert collection.passes[-1].arrived.samples == 900
    *others, call = machine.called()
    assert call["env"]["ROCATTN_LINE_TABLES"] == "1", "rocattn's own kernels then name their lines"
    assert not any("ROCATTN_LINE_TABLES" in other["env"] for other in others)
    argv = call["argv"]
    assert "--pmc" not in argv
    assert argv[argv.index("--pc-sampling-method") + 1] == method
    profile = read([machine.out])
    assert [str(problem) for problem in profile.problems] == []
    assert not any(SAMPLING in str(name) for name in profile.dispatches["pass"].unique())
    spots = build(profile).hot_spots
    assert [each.lines[0].place for each in spots] == ["app.hip:12", "app.hip:12"]
    assert {each.number for each in spots} <= {1, 2, 3}, "of the kernels that were counted"


@pytest.mark.parametrize("failure", ["samples nothing", "unsupported"])
def test_a_pass_without_samples_says_so_and_keeps_the_others(machine, failure):
    """The kernels were too short, or the driver refuses."""
    machine.install("rocprofv3")
    if failure == "unsupported":
        machine.set(arch="gfx1100")  # as the profiler sees it
    else:
        machine.set(fails=failure)
    collection = machine.collect(sampling="stochastic", wanted=("lds",))
    *others, sampled = collection.passes
    assert {result.status for result in others} == {"done"}
    assert sampled.status == "failed"
    assert codes(collection) == [{"samples nothing": "no_data", "unsupported": "pc_sampling"}[failure]]


@pytest.mark.parametrize(
    ("arch", "release", "tool", "method", "expected"),
    [
        ("gfx942", (7, 0), "rocprofv3", "auto", "stochastic"), ("gfx950", (0, 0), "rocprofv3", "auto", "stochastic"),
        ("gfx942", (7, 0), "rocprofv3", "host_trap", "host_trap"), ("gfx942", (6, 4), "rocprofv3", "auto", "host_trap"),
        ("gfx90a", (7, 2), "rocprofv3", "auto", "host_trap"), ("gfx90a", (7, 2), "rocprofv3", "stochastic", ""),
        ("gfx942", (6, 4), "rocprofv3", "stochastic", ""), ("gfx942", (6, 3), "rocprofv3", "auto", ""),
        ("gfx1100", (7, 2), "rocprofv3", "auto", ""), ("gfx942", (7, 0), "rocprof-compute", "auto", ""),
    ],
)  # fmt: skip
def test_each_gpu_and_release_gets_the_best_method(arch, release, tool, method, expected):
    """ROCm 6.4 began with host traps, 7.0 added the exact method on MI300; Radeons have none."""
    if not expected:
        with pytest.raises(CounterError):
            sampling_pass(method, 0, arch, release, tool)
    else:
        assert sampling_pass(method, 0, arch, release, tool).sampling == expected


def test_the_interval_of_the_exact_method_is_a_power_of_two():
    """The hardware takes no other."""
    assert sampling_pass("stochastic", 65536, "gfx942", (7, 0), "rocprofv3").interval == 65536
    assert sampling_pass("host_trap", 500, "gfx942", (7, 0), "rocprofv3").interval == 500
    with pytest.raises(CounterError):
        sampling_pass("stochastic", 65000, "gfx942", (7, 0), "rocprofv3")
