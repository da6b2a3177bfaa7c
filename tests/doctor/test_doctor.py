"""``rocattn doctor``: what is missing is said with its remedy, and a broken thing never ends in a traceback."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from rocattn.backend import Support
from rocattn.cache import ContentCache
from rocattn.errors import SettingError
from rocattn.gpu.driver import GpuDevice
from rocattn.gpu.probe import GpuProbe
from rocattn.toolchain import Compiler, choose_host_compiler, host_isa
from rocattn_profiling import cli
from rocattn_profiling.doctor import checks
from rocattn_profiling.doctor import command as doctor
from rocattn_profiling.doctor.checks import DoctorCheck
from rocattn_profiling.kernels.read import disassembly


@pytest.fixture(scope="module")
def report():
    """A whole examination of this machine."""
    return checks.examine()


def test_json_has_a_stable_form(capsys):
    """Its keys and the keys of its rows are a contract; stdout holds it alone; this very machine passes."""
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"schema", "rocattn", "ok", "checks", "compilers", "gpu", "backends"}
    assert (found["schema"], found["ok"]) == (2, True)
    assert {frozenset(row) for row in found["checks"]} == {frozenset({"group", "name", "status", "detail", "remedy"})}
    keys = {"kind", "argv", "linker", "version", "targets", "reason", "host_reason", "given", "chosen", "chosen_host"}
    assert {frozenset(row) for row in found["compilers"]} == {frozenset(keys)}
    for chosen, reason in (("chosen", "reason"), ("chosen_host", "host_reason")):
        assert sum(row[chosen] for row in found["compilers"]) == any(not row[reason] for row in found["compilers"])
    assert found["gpu"].keys() == {"devices", "reason", "runtime", "bindings"}
    assert {frozenset(row) for row in found["backends"]} == {
        frozenset({"name", "available", "supports", "works", "reason", "is_stand_in", "ms", "status"})
    }


def test_every_missing_thing_has_a_remedy(report):
    """No row only complains."""
    assert {check.status for check in report.checks} <= {"ok", "warning", "missing"}  # nothing is broken here
    assert [check.name for check in report.checks if check.status == "missing" and not check.remedy] == []


def test_every_registered_backend_is_listed(report):
    """The registry's backends appear with what they answer, and those that work have computed something."""
    from rocattn import BACKENDS

    assert [row.name for row in report.backends] == [backend.name for backend in BACKENDS]
    assert next(row for row in report.backends if row.name == "cpu").works
    times = {row.name: row.ms for row in report.backends if row.works}
    assert min(times["cpu-flash"], times["cpu"]) > 0  # what the path costs that is taken
    assert times.get("gpu") is None


def test_the_result_is_on_stdout_and_each_step_on_stderr(monkeypatch, capsys):
    """`rocattn doctor > FILE` has the whole of it; who waits sees what for."""

    def examine(say):
        say("looking")
        return checks.Report(True, [DoctorCheck("a", "one", "ok", "1.0")], [], GpuProbe(), [])

    monkeypatch.setattr(checks, "examine", examine)
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "a",
        "  ok       one  1.0",
        "",
        "CPU path: ready; GPU path: no devices; kernels: no compiler; 1 ready, 0 missing but optional, 0 broken",
    ]
    assert printed.err == "rocattn doctor: looking\n"


def test_what_is_broken_is_counted_and_named_and_is_status_4(monkeypatch, capsys):
    """Missing things are optional, and warnings are no failures."""
    rows = [
        DoctorCheck("a", name, status, "x")
        for name, status in (("one", "ok"), ("two", "missing"), ("three", "broken"), ("four", "warning"))
    ]
    monkeypatch.setattr(checks, "examine", lambda _: checks.Report(False, rows, [], GpuProbe(), []))
    assert cli.main(["doctor"]) == 4
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("; 1 ready, 1 missing but optional, 1 broken (three), 1 warning")


@pytest.mark.parametrize(
    ("answer", "compiler", "status"),
    [
        (Support(ok=False, reason="x does not compile", broken=True), True, "broken"),
        (Support(ok=False, reason="no C++ compiler", broken=True), False, "missing"),
        (SettingError("ROCATTN_CPU_ISA is 'neon'"), True, "broken"),
    ],
    ids=["does not compile", "no compiler", "setting"],
)
def test_kernels_are_broken_unless_only_the_compiler_is_missing(monkeypatch, answer, compiler, status):
    """A compiler that is there and fails (g++ 13 did) is no optional thing; a refused variable never is."""
    from rocattn import BACKENDS

    def available():
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(BACKENDS.get("cpu-flash"), "available", available)
    monkeypatch.setattr(checks, "_has_cpu_kernels", lambda: compiler)
    monkeypatch.setattr(checks, "_time_of", lambda *_: 1.0)
    (found,) = (row for row in checks.backend_results() if row.name == "cpu-flash")
    assert (found.status, found.works, found.reason) == (status, False, getattr(answer, "reason", str(answer)))
    (row,) = (row for row in checks.backend_checks([found]) if row.name == "cpu-flash")
    assert (row.status, "50 to 200 times slower" in row.remedy) == (status, True)


def test_an_objdump_is_tried_with_each_target(tmp_path, monkeypatch, write_tool):
    """One that knows none is no "ok"; without any the audit of a user's own file lacks its instructions."""
    write_tool(
        tmp_path / "llvm-objdump",
        'echo "can\'t find target: : Targets for this arch are not yet supported" >&2; exit 1',
    )
    monkeypatch.setattr(disassembly, "_library", lambda: None)
    monkeypatch.setattr(checks, "find_disassemblers", list)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    objects = checks.TESTED[:1]
    monkeypatch.setattr(checks, "TESTED", objects)
    row = checks.disassembler_check()
    assert (row.status, row.detail.startswith("not found; `rocattn kernels audit FILE` then")) == ("missing", True)
    assert "or set ROCM_PATH" in row.remedy
    monkeypatch.setattr(checks, "find_disassemblers", lambda: [str(tmp_path / "llvm-objdump")])
    row = checks.disassembler_check()
    assert (row.status, f"too old for {objects[0]}" in row.detail) == ("warning", True)


def test_the_table_says_the_status_in_words():
    """ok, warning and missing stand in front of each row, and remedies below theirs; colour is not needed."""
    rows = [DoctorCheck("a", "one", "ok", "1.0"), DoctorCheck("b", "second", "missing", "not found", "install it")]
    assert doctor.lines(rows) == [
        "a",
        "  ok       one     1.0",
        "",
        "b",
        "  missing  second  not found",
        "                   -> install it",
    ]


def test_a_broken_numpy_is_status_4_and_no_traceback(tmp_path):
    """When not even the CPU path can work, doctor still tells everything else."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise ImportError('libopenblas.so: wrong ELF class')")
    command = [sys.executable, "-m", "rocattn_profiling.cli", "doctor", "--json"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert not found["ok"]
    assert (
        "wrong ELF class"
        in next(row for row in found["checks"] if row["name"] == "cpu" and row["status"] != "ok")["detail"]
    )


def test_a_backend_that_computes_nonsense_does_not_pass(monkeypatch):
    """Importable is not enough: a small attention with a known result is computed."""
    import rocattn

    monkeypatch.setattr(rocattn, "attention", lambda *qkv, **_: qkv[2][:, :3])
    found = {row.reason for row in checks.backend_results() if row.available}
    assert found == {"a small attention gives a wrong result"}


def test_tools_are_found_on_path_or_in_rocm(tmp_path, monkeypatch, write_tool):
    """A profiler in ROCM_PATH/bin counts; its version is what it prints; one that does not start is a warning."""
    write_tool(tmp_path / "bin" / "rocprofv3", "echo 'version: 1.0.0, git revision: abc'")
    write_tool(tmp_path / "bin" / "omniperf", "echo omniperf version: 2.0.1")
    (tmp_path / "bin" / "rocprof").write_bytes(b"\x7fELF, but not really")
    (tmp_path / "bin" / "rocprof").chmod(0o755)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    rows = {row.name: row for row in checks.profiler_checks()}
    assert rows["rocprofv3"].detail == f"1.0.0, ROCm 7.0 ({tmp_path / 'bin' / 'rocprofv3'})"
    assert rows["rocprof-compute"].detail == f"2.0.1 ({tmp_path / 'bin' / 'omniperf'})"
    assert (rows["rocprof"].status, rows["rocprofv2"].status) == ("warning", "missing")


@pytest.mark.parametrize(
    ("version", "status"),
    [("1.0.0", "ok"), ("0.6.0", "ok"), ("0.5.0", "missing"), ("9.9.9", "warning"), ("", "missing")],
)
def test_pc_sampling_comes_with_the_release(tmp_path, monkeypatch, write_tool, version, status):
    """Before ROCm 6.4 rocprofv3 has none, and stochastic sampling is newer."""
    if version:
        write_tool(tmp_path / "bin" / "rocprofv3", f"echo 'version: {version}, git revision: abc'")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    (row,) = (row for row in checks.profiler_checks() if row.name == "PC sampling")
    assert row.status == status
    methods = row.detail.partition(";")[0].split(" and ")
    assert status != "ok" or methods == ["host_trap", "stochastic"][: 1 + (version == "1.0.0")]


def test_without_programs_each_is_missing_with_its_use(tmp_path, monkeypatch):
    """An empty PATH is no error."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    rows = {row.name: row for row in checks.tool_checks()}
    for name in ("git", "amd-smi", "chromium"):
        assert (rows[name].status, rows[name].detail) == ("missing", "not found")
        assert rows[name].remedy


def test_a_program_that_is_there_and_broken_is_no_version(tmp_path, monkeypatch, write_tool):
    """amd-smi tells by a subcommand; its traceback has numbers of folders; what a signal ends is not all right."""
    folder = tmp_path / "bin"
    write_tool(folder / "amd-smi", '[ "$1" = version ] && echo "AMDSMI Tool: 24.6.3 | ROCm version: 6.2.1" || exit 2')
    write_tool(folder / "chromium", "kill -9 $$")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.defpath}")
    rows = {row.name: row for row in checks.tool_checks()}
    assert (rows["amd-smi"].status, rows["amd-smi"].detail) == ("ok", f"24.6.3 ({folder / 'amd-smi'})")
    assert (rows["chromium"].status, rows["chromium"].remedy) == ("warning", "repair or remove it")
    assert "ends with status -9: it prints nothing" in rows["chromium"].detail
    write_tool(folder / "amd-smi", "echo '  File \"/opt/rocm-6.3.0/libexec/x.py\"' >&2; echo No amdsmi >&2; exit 1")
    row = {row.name: row for row in checks.tool_checks()}["amd-smi"]
    assert row.status == "warning"
    assert row.detail.startswith("does not work, `version` ends with status 1: No amdsmi (")


def test_gpus_are_listed_with_what_matters(tmp_path):
    """Name, target, compute units and memory stand in one row a device."""
    device = GpuDevice("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 304, 192 << 30, 64)
    rows = checks.gpu_checks(GpuProbe([device], runtime="7.2.53211", bindings="10.0"))
    assert [row.status for row in rows] == ["ok"] * 3
    assert rows[1].detail == "AMD Instinct MI300X, gfx942:sramecc+:xnack-, 304 CUs, 192 GiB, wave64"


def test_a_gpu_without_kernels_is_a_warning(tmp_path):
    """An integrated GPU comes first in HIP's order now and then; on RDNA HIP counts pairs of compute units."""
    small = GpuDevice("AMD Radeon Graphics", "gfx90c:xnack-", 8, 4 << 30, 64)
    card = GpuDevice("Radeon RX 7900 XT", "gfx1100", 42, 20 << 30, 32)
    _, first, second, _ = checks.gpu_checks(GpuProbe([small, card], runtime="7.2.53211", bindings="10.0"))
    assert (first.status, second.status) == ("warning", "ok")
    assert first.detail.endswith("wave64: there are no kernels for it")
    assert first.remedy == "choose another device with HIP_VISIBLE_DEVICES"
    assert second.detail == "Radeon RX 7900 XT, gfx1100, 42 WGPs, 20 GiB, wave32"


def test_the_first_usable_compiler_is_chosen(own_cache):
    """One row each; with none usable a row says what to install."""
    old = Compiler(
        "rocm", ("/opt/rocm/bin/clang",), version="clang version 15", reason="too old", host_reason="too old"
    )
    good = Compiler("clang", ("/usr/bin/clang",), ("ld.lld",), "clang version 21", ("gfx942",))
    absent = Compiler("ziglang", reason="not installed", host_reason="not installed")
    gcc = Compiler("gcc", ("g++",), version="g++ (Some) 13.2.0", reason="gcc has no AMDGPU target")
    rows = checks.compiler_checks([absent, old, good, gcc])
    assert [(row.name, row.status) for row in rows[:3]] == [
        ("ziglang", "missing"),
        ("rocm", "missing"),
        ("clang", "ok"),
    ]
    assert "chosen for GPU kernels and CPU kernels" in rows[2].detail
    assert (rows[3].status, rows[3].detail) == (
        "ok",
        "g++ (Some) 13.2.0; for CPU kernels only: gcc has no AMDGPU target; optional, not tried",
    )
    assert rows[1].detail == "/opt/rocm/bin/clang: too old"
    rows = checks.compiler_checks([old, gcc])
    assert rows[1].detail.endswith("chosen for CPU kernels")
    assert checks.chosen_compilers([replace(old, given=True), gcc]) == (None, None)


def test_cpu_kernels_name_compiler_and_instruction_set(monkeypatch, host_compiler):
    """What cpu-flash is made with; where it cannot be made, why."""
    row = next(row for row in checks.compiler_checks([]) if row.name == "CPU kernels")
    assert row.status == "ok"
    assert row.detail.startswith(f"{host_compiler.kind}, {host_isa()}, ")
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "two")
    row = next(row for row in checks.compiler_checks([]) if row.name == "CPU kernels")
    assert row.status == "broken"
    assert row.detail.startswith("ROCATTN_NUM_THREADS is 'two': set it to a number of threads")
    monkeypatch.delenv("ROCATTN_NUM_THREADS")
    monkeypatch.setenv("ROCATTN_COMPILER", "no-such-compiler")
    choose_host_compiler.cache_clear()
    row = next(row for row in checks.compiler_checks([]) if row.name == "CPU kernels")
    assert (row.status, "no-such-compiler" in row.detail) == ("broken", True)
    assert row.remedy


@pytest.mark.parametrize("name", ["ROCATTN_CPU_ISA", "ROCATTN_CPU_LIBRARY"])
def test_kernels_that_a_variable_breaks_are_a_row(monkeypatch, name):
    """Doctor goes on, and says which variable."""
    monkeypatch.setenv(name, "none-such")
    host_isa.cache_clear()
    (row,) = (row for row in checks.compiler_checks([]) if row.name == "CPU kernels")
    host_isa.cache_clear()
    assert (row.status, name in row.detail) == ("broken", True)


def test_a_cache_that_takes_no_files_is_a_warning(tmp_path, monkeypatch):
    """It costs time, not results: a warning that names the variable to set."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    row = checks.compiler_checks([])[-1]
    assert (row.name, row.status) == ("cache", "warning")
    assert "ROCATTN_CACHE_DIR" in row.remedy


def test_what_the_cache_holds_and_may_hold_is_shown(tmp_path, monkeypatch):
    """Its two parts, and the limit; a limit that is no number is refused."""
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path))
    ContentCache(tmp_path).get_or_make("ab" + "0" * 62, lambda: {"code.so": bytes(40 * 2**20)})
    row = checks.compiler_checks([])[-1]
    assert (row.status, row.detail) == ("ok", f"{tmp_path}: 0.04 GiB compiled code; at most 4 GiB each")
    (tmp_path / "gate" / "envs").mkdir(parents=True)
    monkeypatch.setenv("ROCATTN_CACHE_GIB", "0")
    row = checks.compiler_checks([])[-1]
    assert row.detail.endswith("0.00 GiB the gate's environments; no limit")
    monkeypatch.setenv("ROCATTN_CACHE_GIB", "big")
    row = checks.compiler_checks([])[-1]
    assert (row.status, "is 'big': set it to a number of GiB" in row.detail) == ("broken", True)
    assert row.remedy


@pytest.mark.parametrize(("governor", "status"), [("performance", "ok"), ("powersave", "warning")])
def test_a_frequency_governor_that_saves_power_is_a_warning(tmp_path, governor, status):
    """Read from every core; a core without one is passed over."""
    for core in ("cpu0", "cpu1"):
        (tmp_path / core / "cpufreq").mkdir(parents=True)
    (tmp_path / "cpu0" / "cpufreq" / "scaling_governor").write_text(f"{governor}\n")
    row = next(row for row in checks.hygiene_checks(tmp_path) if row.name == "governor")
    assert (row.status, row.detail) == (status, governor)


def test_a_cpu_quota_and_a_busy_machine_are_warnings(monkeypatch):
    """Both make times noisy in ways that no statistics undo."""
    monkeypatch.setattr(checks.machine, "cpu_quota", lambda: 1.5)
    monkeypatch.setattr(checks.machine, "load_average", lambda: 900.0)
    rows = {row.name: row for row in checks.hygiene_checks()}
    assert (rows["load"].status, rows["control group"].status) == ("warning", "warning")
    assert "1.5 cores" in rows["control group"].detail
