"""Finding profilers: every generation tells its version differently, and some do not work at all."""

import os

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.profile.collect.assemble import clean, under_a_profiler
from rocattn_profiling.profile.collect.find import NoProfilerError, Tool, assume, bundled_rocm, choose, find_profilers


def found(machine):
    """Return name -> tool."""
    return {tool.name: tool for tool in find_profilers(timeout_s=20.0)}


def program(path, text):
    """Write an executable."""
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("release", "file", "told_by"),
    [
        ("7.0.0", "", "--version"),
        ("6.4.1", "6.4.1-83", ".info/version"),
        ("6.4.1", "", "--help has --memory-allocation-trace"),
        ("6.2.0", "", "--help has no --pmc"),
    ],
)
def test_rocprofv3_tells_its_release(machine, release, file, told_by):
    """--version from 7.0 on; before, the version file of its ROCm, else what its help knows."""
    machine.set(release=release)
    machine.install("rocprofv3")
    if file:
        (machine.root / "rocm" / ".info").mkdir()
        (machine.root / "rocm" / ".info" / "version").write_text(f"{file}\n")
    tool = found(machine)["rocprofv3"]
    assert (tool.told_by, tool.problem) == (told_by, "")
    assert tool.rocm.split(".")[:2] == release.split(".")[:2]
    assert tool.release == tuple(int(part) for part in release.split(".")[:2])


def test_older_profilers_and_omniperf_tell_theirs(machine):
    """rocprof and rocprofv2 print ROCm's release too; omniperf is rocprof-compute under its old name."""
    machine.set(release="6.1.3", tool_version="2.0.1")
    for name in ("rocprof", "rocprofv2"):
        machine.install(name)
    machine.install("rocprof-compute", "omniperf")
    tools = found(machine)
    assert {name: (tool.version, tool.rocm) for name, tool in tools.items()} == {
        "rocprof": ("2.0", "6.1.3"),
        "rocprofv2": ("2.0", "6.1.3"),
        "rocprof-compute": ("2.0.1", ""),
    }
    assert tools["rocprof-compute"].path.endswith("omniperf")


LACKING = """[ERROR] the 'astunparse==1.6.2' distribution does not meet version requirements to use rocprofiler-compute.
  --> version installed : 1.6.3
[ERROR] The 'plotext' package was not found in the current execution environment.
[ERROR] The 'dash>=3.0.0' package was not found in the current execution environment.
[ERROR] The 'kaleido==0.2.1' package was not found in the current execution environment.

See: /opt/rocm/libexec/rocprofiler-compute/requirements.txt"""


@pytest.mark.parametrize("status", [0, 1])
def test_rocprof_compute_needs_its_python_packages(machine, status):
    """As ROCm's packages install it: before 3.6 it answers everything with this list, and in 7.2 with status 0."""
    (machine.root / "rocm" / ".info").mkdir()
    (machine.root / "rocm" / ".info" / "version").write_text("7.2.4-1\n")
    program(
        machine.root / "rocm" / "bin" / "rocprof-compute", f"#!/bin/sh\ncat <<'END'\n{LACKING}\nEND\nexit {status}\n"
    )
    tool = found(machine)["rocprof-compute"]
    assert tool.problem == (
        "it lacks Python packages (astunparse==1.6.2, plotext, dash>=3.0.0 and 1 more): pip install -r "
        "/opt/rocm/libexec/rocprofiler-compute/requirements.txt into the Python that runs it"
    )
    with pytest.raises(NoProfilerError, match="it lacks Python packages"):
        choose([tool], "gfx942")


def test_what_does_not_work_is_found_and_not_chosen(machine):
    """A program of another processor, one that fails and one that hangs: each with its reason, in one line."""
    program(machine.bin / "rocprof", "").write_bytes(b"\x7fELF, but not really")
    program(
        machine.bin / "rocprofv2", "#!/bin/sh\necho 'librocprofiler.so: cannot open shared object file'\nexit 127\n"
    )
    program(machine.bin / "rocprof-compute", "#!/bin/sh\nread forever < /dev/zero\n")
    program(machine.bin / "rocprofv3", "#!/bin/sh\nexit 1\n")
    tools = {tool.name: tool for tool in find_profilers(timeout_s=0.5)}
    assert "does not start" in tools["rocprof"].problem
    assert tools["rocprofv2"].problem == snapshot("--version fails: librocprofiler.so: cannot open shared object file")
    assert tools["rocprofv3"].problem == snapshot("--version and --help fail: it printed nothing")
    assert "gives no version" in tools["rocprof-compute"].problem
    with pytest.raises(NoProfilerError, match="no installed profiler can be used") as told:
        choose(list(tools.values()), "gfx942")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("names", "arch", "chosen"),
    [
        (("rocprof-compute", "rocprof", "rocprofv2", "rocprofv3"), "gfx942", "rocprofv3"),
        (("rocprof", "rocprofv2"), "gfx90a", "rocprof"),
        (("rocprof", "rocprofv2"), "gfx1100", "rocprofv2"),
        (("rocprof-compute",), "gfx942", "rocprof-compute"),
    ],
)
def test_the_best_profiler_is_chosen_with_a_reason(names, arch, chosen):
    """Version 1 is for gfx9 only, rocprof-compute for Instinct only, and rocprofv3 for all."""
    tool, why = choose([Tool(name, f"/opt/rocm/bin/{name}") for name in names], arch)
    assert tool.name == chosen
    assert why


def test_no_use_is_said_with_the_reason():
    """Only rocprof-compute on a Radeon; nothing at all; one that is named but not there."""
    with pytest.raises(NoProfilerError, match="rocprof-compute does not support gfx1100"):
        choose([Tool("rocprof-compute", "/x")], "gfx1100")
    with pytest.raises(NoProfilerError, match=r"no profiler is installed: install rocprofiler-sdk"):
        choose([], "gfx942")
    with pytest.raises(NoProfilerError, match="rocprofv3 is not installed; there is rocprof"):
        choose([Tool("rocprof", "/x")], "gfx942", "rocprofv3")


def test_a_profiler_can_be_assumed_for_a_dry_run():
    """NAME or NAME@ROCM; anything else is a line."""
    assert assume("rocprofv3@6.2").release == (6, 2)
    assert assume("omniperf").name == "rocprof-compute"
    for text in ("nsys", "rocprofv3@new"):
        with pytest.raises(NoProfilerError, match=r"there is no profiler|is not a ROCm release"):
            assume(text)


def test_the_rocm_of_torch_is_read_without_importing_it(machine, monkeypatch):
    """Only a Python is asked, and only for the version of its torch."""
    program(machine.bin / "python3", "#!/bin/sh\necho '2.9.0+rocm6.4'\n")
    program(machine.bin / "trainer", "#!/bin/sh\necho '2.9.0+rocm6.4'\n")
    monkeypatch.setenv("PATH", str(machine.bin), prepend=os.pathsep)
    assert bundled_rocm("python3") == "6.4"
    assert bundled_rocm("trainer") == ""
    assert bundled_rocm("not-there") == ""


def test_a_profilers_variables_are_told_from_others():
    """What steers a profiler goes, what steers ROCm itself stays."""
    environment = {
        "ROCPROF": "rocprofv3", "ROCP_TOOL_LIBRARIES": "a", "ROCPROFILER_METRICS_PATH": "b", "HSA_TOOLS_LIB": "c",
        "ROCTRACER_DOMAIN": "d", "ROCM_PATH": "/opt/rocm", "HSA_OVERRIDE_GFX_VERSION": "11.0.0",
        "ROCR_VISIBLE_DEVICES": "0", "LD_PRELOAD": "/a/libroctracer64.so.4 /b/libtcmalloc.so",
        "ROCATTN_CACHE_DIR": "/c",
    }  # fmt: skip
    kept, removed = clean(environment)
    assert set(removed) == {
        "HSA_TOOLS_LIB", "LD_PRELOAD", "ROCPROF", "ROCPROFILER_METRICS_PATH", "ROCP_TOOL_LIBRARIES", "ROCTRACER_DOMAIN",
    }  # fmt: skip
    assert kept == {name: environment[name] for name in kept if name != "LD_PRELOAD"} | {
        "LD_PRELOAD": "/b/libtcmalloc.so"
    }
    assert under_a_profiler(removed)
    assert not under_a_profiler(("ROCPROF",))
    assert clean(environment, keep=environment) == (environment, ())
