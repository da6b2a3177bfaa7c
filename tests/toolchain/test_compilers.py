"""Which compiler is chosen, and what is said about those that cannot be."""

import shlex
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec

import psutil
import pytest

from rocattn import toolchain
from rocattn.errors import SettingError, ToolchainError
from rocattn.installed import install_command

GCC = "echo 'g++ (Some Linux 13.2.0-4) 13.2.0'; echo 'Copyright (C) Free Software Foundation, Inc.'"
GOOD = """case "$*" in
*--version*) echo "clang version 21.1.0 (somewhere)" ;;
*print-supported-cpus*) printf 'Available CPUs for this target:\\n\\n\\tfiji\\n\\tgfx90a\\n\\tgfx942\\n' >&2 ;;
esac"""


@pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang (the extra 'toolchain') is not installed")
def test_the_pinned_compiler_comes_first():
    """With ziglang installed it is the choice, and it knows every target that kernels are built for."""
    first = toolchain.find_compilers()[0]
    assert (first.kind, first.usable) == ("ziglang", True)
    assert toolchain.choose_compiler() == first
    assert {"gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201", "gfx1250"} <= set(first.targets)


def test_rocm_comes_before_a_clang_on_path(no_pinned, write_tool, tmp_path, monkeypatch):
    """Without the pinned one, ROCM_PATH's clang is chosen; PATH's is listed after it."""
    rocm, path = tmp_path / "rocm", tmp_path / "bin"
    for tool in (rocm / "lib/llvm/bin/amdclang++", path / "clang"):
        write_tool(tool, GOOD)
        write_tool(tool.parent / "ld.lld", "echo LLD")
    monkeypatch.setenv("ROCM_PATH", str(rocm))
    monkeypatch.setenv("PATH", str(path))
    found = toolchain.find_compilers()
    assert [(compiler.kind, compiler.usable) for compiler in found] == [
        ("ziglang", False),
        ("rocm", True),
        ("clang", True),
        ("gcc", False),
    ]
    chosen = toolchain.choose_compiler()
    assert chosen.argv == (str(rocm / "lib/llvm/bin/amdclang++"),)
    assert chosen.targets == ("gfx90a", "gfx942")


@pytest.mark.parametrize(
    ("clang", "lld", "reason"),
    [
        (GOOD.replace("21.1.0", "15.0.7"), "echo LLD", "clang 15 is too old: 17 or newer is needed"),
        (GOOD.replace("gfx", "mips"), "echo LLD", "built without the AMDGPU target"),
        (GOOD, None, "its ld.lld is missing: install lld"),
        (GOOD, "echo broken linker >&2; exit 1", "broken linker"),
        ("echo gcc 12.2.0", "echo LLD", "is not a clang"),
        ("echo 'error while loading shared libraries: libLLVM.so' >&2; exit 127", "echo LLD", "libLLVM.so"),
    ],
)
def test_an_unusable_compiler_has_its_reason(no_pinned, write_tool, tmp_path, monkeypatch, clang, lld, reason):
    """Too old, without the target, without a linker, broken, or no clang at all: each says so."""
    write_tool(tmp_path / "clang", clang)
    if lld:
        write_tool(tmp_path / "ld.lld", lld)
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = (compiler for compiler in toolchain.find_compilers() if compiler.kind == "clang")
    assert reason in found.reason


@pytest.mark.parametrize(
    ("clang", "lld", "text"), [("clang-21", "ld.lld-21", GOOD), ("clang", None, GOOD.replace("gfx", "mips"))]
)
def test_a_clang_on_path_serves_whom_it_can(no_pinned, write_tool, tmp_path, monkeypatch, clang, lld, text):
    """Debian's has its version's linker and no plain names; the CPU needs no GPU targets."""
    write_tool(tmp_path / clang, text)
    monkeypatch.setenv("PATH", str(tmp_path))
    if lld:
        write_tool(tmp_path / lld, "echo LLD")
        assert toolchain.choose_compiler().linker == (str(tmp_path / lld),)
    assert toolchain.choose_host_compiler().kind == "clang"


def test_a_file_that_cannot_be_started_is_a_reason(no_pinned, tmp_path, monkeypatch):
    """A clang for another machine does not end in a traceback."""
    (tmp_path / "clang").write_bytes(b"\x7fELF, but not really")
    (tmp_path / "clang").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "does not start" in toolchain.find_compilers()[-2].reason


def test_a_rocm_path_without_a_compiler_is_named(no_pinned, write_tool, tmp_path, monkeypatch):
    """ROCM_PATH that points at nothing, and a hipcc without the clang it wraps, are told apart."""
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert toolchain.find_compilers()[1].reason == f"no amdclang++ (looked in {tmp_path}, from ROCM_PATH)"
    write_tool(tmp_path / "bin" / "hipcc", "exit 0")
    assert "hipcc is there but the clang it wraps is not" in toolchain.find_compilers()[1].reason


def test_without_any_compiler_the_error_lists_everyones_reason(no_pinned):
    """One line that says what to install."""
    with pytest.raises(ToolchainError) as caught:
        toolchain.choose_compiler()
    message = str(caught.value)
    assert message.startswith(
        f"no compiler for HIP kernels: {install_command('ziglang')} (rocm: no amdclang++ (looked in "
    )
    assert "no clang on PATH" in message
    assert "\n" not in message


def test_a_given_compiler_comes_first(write_tool, tmp_path, monkeypatch):
    """ROCATTN_COMPILER goes before the pinned one, for both purposes, with its arguments."""
    given = write_tool(tmp_path / "given" / "my-clang", GOOD)
    write_tool(given.parent / "ld.lld", "echo LLD")
    monkeypatch.setenv("ROCATTN_COMPILER", f"'{given}' --some-option")
    first = toolchain.find_compilers()[0]
    assert (first.kind, first.given, first.argv) == ("clang", True, (str(given), "--some-option"))
    assert (first.linker, first.targets) == ((str(given.parent / "ld.lld"),), ("gfx90a", "gfx942"))
    assert toolchain.choose_compiler() == first
    assert toolchain.choose_host_compiler().argv == first.argv


def test_a_given_gcc_is_for_the_cpu_only(no_pinned, write_tool, tmp_path, monkeypatch):
    """GPU kernels go on to the next compiler that can."""
    monkeypatch.setenv("ROCATTN_COMPILER", shlex.quote(str(write_tool(tmp_path / "one" / "g++", GCC))))
    write_tool(tmp_path / "two" / "clang", GOOD)
    write_tool(tmp_path / "two" / "ld.lld", "echo LLD")
    monkeypatch.setenv("PATH", str(tmp_path / "two"))
    assert toolchain.choose_host_compiler().kind == "gcc"
    assert toolchain.choose_compiler().kind == "clang"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no-such-program", "no-such-program does not start"),
        ("'open quote", "cannot be read"),
        ("{folder}/old-g++", "gcc 11 is too old: 12 or newer is needed"),
        ("{folder}/printer", "is not a clang or gcc"),
    ],
)
def test_a_given_compiler_that_does_not_work_is_an_error(write_tool, tmp_path, monkeypatch, text, reason):
    """What was asked for is not replaced in silence; doctor lists it with its reason."""
    write_tool(tmp_path / "old-g++", GCC.replace("13.2", "11.4"))
    write_tool(tmp_path / "printer", "echo hello")
    monkeypatch.setenv("ROCATTN_COMPILER", text.format(folder=f"'{tmp_path}'"))
    for choose in (toolchain.choose_compiler, toolchain.choose_host_compiler, toolchain.compiler_environment):
        with pytest.raises(SettingError, match="ROCATTN_COMPILER does not name a working compiler") as caught:
            choose()
        assert reason in str(caught.value)
    assert toolchain.find_compilers()[0].given


@pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang (the extra 'toolchain') is not installed")
def test_other_environments_get_the_same_compiler(monkeypatch):
    """The variable names this interpreter's choice: its version, hence every cache key, is the same there."""
    mine = toolchain.choose_host_compiler()
    for text in (toolchain.compiler_environment()["ROCATTN_COMPILER"], f"{shlex.quote(sys.executable)} -m ziglang c++"):
        monkeypatch.setenv("ROCATTN_COMPILER", text)
        toolchain.choose_host_compiler.cache_clear()
        theirs = toolchain.choose_host_compiler()
        assert (theirs.given, theirs.version, theirs.argv) == (True, mine.version, mine.argv)


def test_a_gcc_serves_the_cpu_where_there_is_no_clang(no_pinned, write_tool, tmp_path, monkeypatch):
    """An old unversioned one is passed over for a newer one beside it; the GPU has none."""
    write_tool(tmp_path / "g++", GCC.replace("13.2", "11.4"))
    write_tool(tmp_path / "g++-13", GCC)
    monkeypatch.setenv("PATH", str(tmp_path))
    chosen = toolchain.choose_host_compiler()
    assert (chosen.argv, chosen.version) == ((str(tmp_path / "g++-13"),), "g++ (Some Linux 13.2.0-4) 13.2.0")
    with pytest.raises(ToolchainError, match="gcc: gcc has no AMDGPU target"):
        toolchain.choose_compiler()


def test_without_any_compiler_the_cpu_has_a_reason(no_pinned):
    """One line that says what to install."""
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler: .*pip install .*ziglang==\d[.\d]+, or put clang"):
        toolchain.choose_host_compiler()
    assert toolchain.compiler_environment() == {}


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux ends a compilation with its process")
def test_no_compilation_survives_the_process_that_wants_it(tmp_path):
    """Even if that one is killed."""
    program = (
        "from pathlib import Path\n"
        "from rocattn.toolchain.compilers import run_step\n"
        "run_step(['sh', '-c', 'echo $$ > new; mv new pid; exec sleep 900'], Path('a.cpp').absolute(), 'this CPU')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        compiler = psutil.Process(int((tmp_path / "pid").read_text()))
        process.kill()
    assert psutil.wait_procs([compiler], timeout=60)[1] == []
