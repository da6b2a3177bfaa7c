"""``rocattn doctor``: what is missing is said with its remedy, and a broken thing never ends in a traceback."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from textwrap import fill

import pytest
from inline_snapshot import snapshot

from rocattn.backend import Support
from rocattn.cache import ContentCache
from rocattn.errors import SettingError
from rocattn.gpu.driver import GpuDevice
from rocattn.gpu.probe import GpuProbe
from rocattn.installed import install_command
from rocattn.toolchain import Compiler, choose_host_compiler, host_isa
from rocattn_profiling import cli
from rocattn_profiling.doctor import checks
from rocattn_profiling.doctor.checks import DoctorCheck
from rocattn_profiling.kernels.read import disassembly


@pytest.fixture(scope="module")
def report():
    """A whole examination of this machine."""
    return checks.examine()


def test_json_has_a_stable_form(report, monkeypatch, capsys):
    """Its keys and the keys of its rows are a contract; stdout holds it alone; this very machine passes."""
    monkeypatch.setattr(checks, "examine", lambda _: report)
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
    """`rocattn doctor > FILE` has the whole of it; who waits sees what for. Status 4: something is broken."""
    rows = [
        DoctorCheck("a", "one", "ok", "1.0"), DoctorCheck("b", "second", "missing", "not found", "install it"),
        DoctorCheck("b", "three", "broken", "x"), DoctorCheck("b", "four", "warning", "x"),
    ]  # fmt: skip

    def examine(say):
        say("looking")
        return checks.Report(all(row.status != "broken" for row in rows), rows, [], GpuProbe(), [])

    monkeypatch.setattr(checks, "examine", examine)
    assert cli.main(["doctor"]) == 4
    printed = capsys.readouterr()
    *rows_shown, last = printed.out.splitlines()
    assert "\n".join(rows_shown) == snapshot("""\
a
  ok       one     1.0

b
  missing  second  not found
                   -> install it
  broken   three   x
  warning  four    x
""")
    assert last.split("; ") == snapshot(
        [
            "CPU path: broken",
            "GPU path: no devices",
            "kernels: no compiler",
            "1 ready, 1 missing but optional, 1 broken (three), 1 warning",
        ]
    )
    assert printed.err == "rocattn doctor: looking\n"
    del rows[2:]  # missing things are optional, and warnings are no failures
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == snapshot(
        "CPU path: ready; GPU path: no devices; kernels: no compiler; 1 ready, 1 missing but optional, 0 broken"
    )


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


def told(rows, folder="/none/such"):
    """Return rows as a snapshot shows them; FOLDER stands for a test's folder, INSTALL for this machine's way."""
    texts = [f"{row.status} {row.name}: {row.detail}" + (f" -> {row.remedy}" if row.remedy else "") for row in rows]
    texts = [text.replace(str(folder), "FOLDER").replace(install_command("x")[:-1], "INSTALL ") for text in texts]
    return "\n".join(fill(text, 118, subsequent_indent="    ") for text in texts)


@pytest.fixture
def tools(tmp_path, monkeypatch, write_tool):
    """A function that writes a program to where ROCM_PATH and PATH point to, and nothing else is there."""
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return lambda name, text: write_tool(tmp_path / "bin" / name, text)


def test_an_objdump_is_tried_with_each_target(tmp_path, monkeypatch, tools):
    """One that knows none is no "ok"; without any the audit of a user's own file lacks its instructions."""
    tools("llvm-objdump", 'echo "can\'t find target: : Targets for this arch are not yet supported" >&2; exit 1')
    monkeypatch.setattr(disassembly, "_library", lambda: None)
    monkeypatch.setattr(checks, "TESTED", ("gfx90a",))
    rows = []
    for paths in ([], [str(tmp_path / "bin/llvm-objdump")]):
        monkeypatch.setattr(checks, "find_disassemblers", lambda paths=paths: paths)
        rows.append(checks.disassembler_check())
    assert told(rows, tmp_path) == snapshot("""\
missing disassembler: not found; `rocattn kernels audit FILE` then has no instructions: no cycles, no matrix %, no
    source lines -> INSTALL 'rocm-llvm-python>=7.2', install LLVM 20 or newer (apt install llvm-20), or set ROCM_PATH
warning disassembler: reads none; FOLDER/bin/llvm-objdump: too old for gfx90a; there `rocattn kernels audit FILE` then
    has no instructions: no cycles, no matrix %, no source lines -> INSTALL 'rocm-llvm-python>=7.2', install LLVM 20
    or newer (apt install llvm-20), or set ROCM_PATH\
""")


def test_tools_are_found_on_path_or_in_rocm(tmp_path, tools):
    """A profiler in ROCM_PATH/bin counts; its version is what it prints; one that does not start is a warning."""
    tools("rocprofv3", "echo 'version: 1.0.0, git revision: abc'")
    tools("omniperf", "echo omniperf version: 2.0.1")
    (tmp_path / "bin" / "rocprof").write_bytes(b"\x7fELF, but not really")
    (tmp_path / "bin" / "rocprof").chmod(0o755)
    assert told(checks.profiler_checks(), tmp_path) == snapshot("""\
ok rocprofv3: 1.0.0, ROCm 7.0 (FOLDER/bin/rocprofv3)
ok PC sampling: host_trap and stochastic; needs gfx90a or later, AMD's amdgpu-dkms (KFD interface 1.16, which Linux
    6.19's own driver lacks), and on MI300X firmware SOS 0x00360259 (host_trap), MEC 0x1a (stochastic) -> rocprofv3 -L
    lists what this GPU takes
missing rocprofv2: not found -> part of ROCm 5.5 to 6; rocprofv3 replaces it
warning rocprof: it does not start (is it for this processor, and executable?) (FOLDER/bin/rocprof) -> repair or
    remove it
ok rocprof-compute: 2.0.1 (FOLDER/bin/omniperf)\
""")


def test_without_programs_each_is_missing_with_its_use(tools):
    """An empty PATH is no error."""
    assert told(checks.tool_checks()) == snapshot("""\
missing git: not found -> install git: gate and site need the history
missing amd-smi: not found -> only with an AMD GPU: install amd-smi-lib (clocks and driver in records)
missing chromium: not found -> optional: install chromium for the tests that open the site\
""")


def test_a_program_that_is_there_and_broken_is_no_version(tmp_path, monkeypatch, tools):
    """amd-smi tells by a subcommand; its traceback has numbers of folders; what a signal ends is not all right."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.defpath}")
    tools("amd-smi", '[ "$1" = version ] && echo "AMDSMI Tool: 24.6.3 | ROCm version: 6.2.1" || exit 2')
    tools("chromium", "kill -9 $$")
    rows = [row for row in checks.tool_checks() if row.name in {"amd-smi", "chromium"}]
    tools("amd-smi", "echo '  File \"/opt/rocm-6.3.0/libexec/x.py\"' >&2; echo No amdsmi >&2; exit 1")
    rows += [row for row in checks.tool_checks() if row.name == "amd-smi"]
    assert told(rows, tmp_path) == snapshot("""\
ok amd-smi: 24.6.3 (FOLDER/bin/amd-smi)
warning chromium: does not work, `--version` ends with status -9: it prints nothing (FOLDER/bin/chromium) -> repair or
    remove it
warning amd-smi: does not work, `version` ends with status 1: No amdsmi (FOLDER/bin/amd-smi) -> repair or remove it\
""")


def test_gpus_are_listed_with_what_matters():
    """Name, target, compute units and memory, a row a device; one that there are no kernels for is a warning.

    An integrated GPU comes first in HIP's order now and then; on RDNA HIP counts pairs of compute units.
    """
    devices = [
        GpuDevice("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 304, 192 << 30, 64),
        GpuDevice("AMD Radeon Graphics", "gfx90c:xnack-", 8, 4 << 30, 64),
        GpuDevice("Radeon RX 7900 XT", "gfx1100", 42, 20 << 30, 32),
    ]
    assert told(checks.gpu_checks(GpuProbe(devices, runtime="7.2.53211", bindings="10.0"))) == snapshot("""\
ok hip-python: 10.0
ok device 0: AMD Instinct MI300X, gfx942:sramecc+:xnack-, 304 CUs, 192 GiB, wave64
warning device 1: AMD Radeon Graphics, gfx90c:xnack-, 8 CUs, 4 GiB, wave64: there are no kernels for it
ok device 2: Radeon RX 7900 XT, gfx1100, 42 WGPs, 20 GiB, wave32
ok HIP runtime: 7.2.53211\
""")


def test_the_first_usable_compiler_is_chosen(own_cache):
    """One row each; with none usable a row says what to install."""
    old = Compiler(
        "rocm", ("/opt/rocm/bin/clang",), version="clang version 15", reason="too old", host_reason="too old"
    )
    good = Compiler("clang", ("/usr/bin/clang",), ("ld.lld",), "clang version 21", ("gfx942",))
    absent = Compiler("ziglang", reason="not installed", host_reason="not installed")
    gcc = Compiler("gcc", ("g++",), version="g++ (Some) 13.2.0", reason="gcc has no AMDGPU target")
    assert told(checks.compiler_checks([absent, old, good, gcc])[:4]) == snapshot("""\
missing ziglang: not installed -> optional: clang is chosen
missing rocm: /opt/rocm/bin/clang: too old -> optional: clang is chosen
ok clang: clang version 21; 1 GPU target; chosen for GPU kernels and CPU kernels
ok gcc: g++ (Some) 13.2.0; for CPU kernels only: gcc has no AMDGPU target; optional, not tried\
""")
    assert told(checks.compiler_checks([old, gcc])[1:2]) == snapshot(
        "ok gcc: g++ (Some) 13.2.0; for CPU kernels only: gcc has no AMDGPU target; chosen for CPU kernels"
    )
    assert checks.chosen_compilers([replace(old, given=True), gcc]) == (None, None)


def test_what_the_cache_holds_and_may_hold_is_shown(tmp_path, monkeypatch):
    """Its two parts, and the limit; one that takes no files costs time, not results; no number is no limit."""
    rows = []

    def look(variable, value):
        monkeypatch.setenv(variable, str(value))
        rows.append(checks.compiler_checks([])[-1])

    ContentCache(tmp_path).get_or_make("ab" + "0" * 62, lambda: {"code.so": bytes(40 * 2**20)})
    look("ROCATTN_CACHE_DIR", tmp_path)
    (tmp_path / "gate" / "envs").mkdir(parents=True)
    look("ROCATTN_CACHE_GIB", "0")
    look("ROCATTN_CACHE_GIB", "big")
    monkeypatch.delenv("ROCATTN_CACHE_GIB")
    (tmp_path / "file").touch()
    look("ROCATTN_CACHE_DIR", tmp_path / "file" / "cache")
    assert told(rows, tmp_path) == snapshot("""\
ok cache: FOLDER: 0.04 GiB compiled code; at most 4 GiB each
ok cache: FOLDER: 0.04 GiB compiled code, 0.00 GiB the gate's environments; no limit
broken cache: ROCATTN_CACHE_GIB is 'big': set it to a number of GiB (0 for no limit), or unset it -> correct the
    variable, or unset it
warning cache: FOLDER/file/cache: Not a directory -> set ROCATTN_CACHE_DIR to a writable folder\
""")


@pytest.mark.parametrize(("governor", "status"), [("performance", "ok"), ("powersave", "warning")])
def test_what_makes_times_noisy_is_a_warning(tmp_path, monkeypatch, governor, status):
    """A governor that saves power (read from every core; one without is passed over), a quota and a busy machine."""
    for core in ("cpu0", "cpu1"):
        (tmp_path / core / "cpufreq").mkdir(parents=True)
    (tmp_path / "cpu0" / "cpufreq" / "scaling_governor").write_text(f"{governor}\n")
    monkeypatch.setattr(checks.machine, "cpu_quota", lambda: 1.5)
    monkeypatch.setattr(checks.machine, "memory_limit_bytes", lambda: 0)
    monkeypatch.setattr(checks.machine, "load_average", lambda: 900.0)
    rows = {row.name: row for row in checks.hygiene_checks(tmp_path)}
    assert (rows["governor"].status, rows["governor"].detail) == (status, governor)
    assert told([rows["control group"]]) == snapshot("""\
warning control group: CPU quota 1.5 cores, no memory limit -> give the container whole cores (cpuset) instead of a
    quota: throttling shows as outliers\
""")
    assert (rows["load"].status, rows["load"].detail.partition(" ")[0]) == ("warning", "900.00")


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
