"""Compiling for this CPU: found, cached, refused with a reason."""

import ctypes
import os
import shlex
import threading
from pathlib import Path

import pytest

from rocattn import toolchain
from rocattn.backends import cpu_flash
from rocattn.errors import SettingError, ToolchainError
from rocattn.toolchain import compilers, host

SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer(void) { return ANSWER; }\n'


@pytest.fixture
def source(host_compiler, tmp_path):
    """A source file with a header, and a compiler for it."""
    path = tmp_path / "code" / "answer.cpp"
    path.parent.mkdir()
    path.write_text(f'#include "answer.h"\n{SOURCE}')
    path.with_suffix(".h").write_text("#define ANSWER 42\n")
    return path


def answer_of(library, folder):
    """Load a library and ask it."""
    path = folder / f"loaded-{len(list(folder.iterdir()))}.so"
    path.write_bytes(library)
    return ctypes.CDLL(str(path)).answer()


def test_library_is_recompiled_when_a_header_changes(source, tmp_path, monkeypatch):
    """The second call takes the cache's bytes; a changed header gives others."""
    first = toolchain.compile_host([source])
    assert answer_of(first, tmp_path) == 42
    with monkeypatch.context() as patch:
        patch.setattr(host, "_build", lambda *_: pytest.fail("compiled again"))
        assert toolchain.compile_host([source]) == first
    source.with_suffix(".h").write_text("#define ANSWER 43\n")
    assert answer_of(toolchain.compile_host([source]), tmp_path) == 43


def test_a_compilation_that_takes_long_is_announced(source, own_cache, monkeypatch, capsys):
    """One line on stderr: what, for what, with what, and where it is kept; none from the cache, none if quiet."""
    compiler = toolchain.choose_host_compiler().version
    toolchain.compile_host([source], isa="portable", what="the CPU kernels")
    printed = capsys.readouterr()
    cost = f"about 20 s of CPU time, kept in {own_cache}"
    line = f"rocattn: compiling the CPU kernels for portable with {compiler} ({cost})\n"
    assert (printed.out, printed.err) == ("", line)
    toolchain.compile_host([source], isa="portable", what="the CPU kernels")
    toolchain.compile_host([source], isa="portable", options=("-DMORE",))  # short ones are not worth a line
    monkeypatch.setenv("ROCATTN_QUIET", "1")
    toolchain.compile_host([source], isa="portable", options=("-DMOST",), what="the CPU kernels")
    assert capsys.readouterr().err == ""


def test_what_several_sources_include_is_read_once(source, monkeypatch):
    """A warm start of the CPU library is mostly this: its sources share nearly all of their headers."""
    other = source.with_name("other.cpp")
    other.write_text('#include "answer.h"\nint other(void) { return ANSWER; }\n')
    toolchain.compile_host([source, other])
    read, real = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or real(path))
    toolchain.compile_host([source, other])
    assert [read.count(name) for name in ("answer.cpp", "other.cpp", "answer.h")] == [1, 1, 1]


def test_the_same_source_elsewhere_gives_the_same_bytes(source, tmp_path, monkeypatch):
    """No path of this machine enters the library."""
    first = toolchain.compile_host([source])
    moved = tmp_path / "elsewhere"
    source.parent.rename(moved)
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "other"))
    assert toolchain.compile_host([moved / source.name]) == first
    assert str(tmp_path).encode() not in first


def test_parallel_first_uses_compile_once(source, monkeypatch):
    """Several at the same time wait for one of them, and have the same bytes."""
    real, builds, results = host._build, [], []
    monkeypatch.setattr(host, "_build", lambda *given: builds.append(given) or real(*given))
    threads = [threading.Thread(target=lambda: results.append(toolchain.compile_host([source]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(builds), len(results), len(set(results))) == (1, 4, 1)


def test_a_header_edited_during_the_build_is_not_cached(source, tmp_path, monkeypatch):
    """The library could be of the old text or of the new one: it is refused, and the next use compiles."""
    real = host._build

    def edit_meanwhile(*given):
        source.with_suffix(".h").write_text("#define ANSWER 44\n")
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(host, "_build", edit_meanwhile)
        with pytest.raises(ToolchainError, match="changed while it was compiled"):
            toolchain.compile_host([source])
    assert answer_of(toolchain.compile_host([source]), tmp_path) == 44


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_cache_is_no_obstacle(source, own_cache, caplog):
    """One warning, and the library."""
    own_cache.mkdir()
    own_cache.chmod(0o555)
    assert toolchain.compile_host([source])[:4] == b"\x7fELF"
    assert "ROCATTN_CACHE_DIR" in caplog.text
    own_cache.chmod(0o755)


def test_a_cache_that_cannot_be_a_folder_is_refused_if_set(source, tmp_path, monkeypatch, caplog):
    """A file stands where the user wants the cache: an error; where it is by default: one warning, and the library."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(SettingError, match=r"ROCATTN_CACHE_DIR is '.*/cache': it cannot be made \(Not a directory\)"):
        toolchain.compile_host([source])
    monkeypatch.delenv("ROCATTN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert toolchain.compile_host([source])[:4] == b"\x7fELF"
    assert caplog.text.count("ROCATTN_CACHE_DIR") == 1


def test_a_source_that_does_not_compile_is_one_line(source):
    """The compiler's first error, its command, and all it printed."""
    source.write_text("int x = ;\n")
    with pytest.raises(ToolchainError, match=r"answer\.cpp does not compile for this CPU: .*error") as caught:
        toolchain.compile_host([source])
    assert "\n" not in str(caught.value)
    assert caught.value.command
    assert "answer.cpp" in caught.value.output


def test_a_missing_source_is_one_line(host_compiler, tmp_path):
    """It names the file."""
    with pytest.raises(ToolchainError, match=r"cannot read the kernel source .*nothing\.cpp"):
        toolchain.compile_host([tmp_path / "nothing.cpp"])


def test_gcc_compiles_for_the_cpu(source, tmp_path, monkeypatch):
    """It is found last, for the CPU only; what it makes loads."""
    found = [compiler for compiler in compilers._gccs() if not compiler.host_reason]
    if not found:
        pytest.skip("no g++ that is new enough")
    assert found[0].kind == "gcc"
    monkeypatch.setenv("ROCATTN_COMPILER", shlex.quote(found[0].argv[0]))
    toolchain.choose_host_compiler.cache_clear()
    assert toolchain.choose_host_compiler().version == found[0].version
    assert answer_of(toolchain.compile_host([source]), tmp_path) == 42


def test_an_instruction_set_this_cpu_lacks_is_refused(monkeypatch):
    """The message lists what it can do."""
    monkeypatch.setenv("ROCATTN_CPU_ISA", "avx1024")
    with pytest.raises(SettingError, match="portable"):
        host.host_isa.__wrapped__()


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        ("sse2", "portable"),
        ("avx512f avx512bw avx512cd avx512dq avx512vl", "portable"),  # without AVX2 its levels mean nothing
        ("avx2 fma f16c bmi2 movbe avx512f", "avx2"),
        ("avx2 fma f16c bmi2 movbe avx512f avx512bw avx512cd avx512dq avx512vl", "avx512"),
        ("avx2 fma f16c bmi2 movbe avx512f avx512bw avx512cd avx512dq avx512vl avx512_bf16", "avx512bf16"),
        ("avx2 fma f16c bmi2 movbe avx512f avx512bw avx512cd avx512dq avx512vl amx_tile amx_bf16", "avx512"),
        ("avx2 fma f16c bmi2 movbe avx512f avx512bw avx512cd avx512dq avx512vl avx512_bf16 amx_tile amx_bf16", "amx"),
    ],
)
def test_the_instruction_set_is_the_widest_with_all_it_needs(monkeypatch, flags, isa):
    """A CPU that lacks one part of a level gets the level below; other machines have one level."""
    monkeypatch.delenv("ROCATTN_CPU_ISA", raising=False)
    monkeypatch.setattr(host, "_cpu_flags", lambda: set(flags.split()))
    monkeypatch.setattr(host, "_cpu_vendor", lambda: "AuthenticAMD")
    monkeypatch.setattr(host.platform, "machine", lambda: "x86_64")
    assert host.host_isa.__wrapped__() == isa
    monkeypatch.setattr(host.platform, "machine", lambda: "aarch64")
    assert host.host_isa.__wrapped__() == "portable"


def test_intel_widens_bf16_unless_asked(monkeypatch):
    """Its vdpbf16ps is the slower way; a CPU of its that has less keeps what it has, one with AMX uses that."""
    monkeypatch.delenv("ROCATTN_CPU_ISA", raising=False)
    monkeypatch.setattr(host, "_cpu_vendor", lambda: "GenuineIntel")
    monkeypatch.setattr(host.platform, "machine", lambda: "x86_64")
    flags = set.union(*host._X86_FLAGS.values())
    monkeypatch.setattr(host, "_cpu_flags", lambda: flags)
    assert host.host_isa.__wrapped__() == "amx"
    flags = flags - host._X86_FLAGS["amx"]
    assert host.host_isa.__wrapped__() == "avx512"
    monkeypatch.setenv("ROCATTN_CPU_ISA", "avx512bf16")
    assert host.host_isa.__wrapped__() == "avx512bf16"
    monkeypatch.delenv("ROCATTN_CPU_ISA")
    flags = host._X86_FLAGS["avx2"]
    assert host.host_isa.__wrapped__() == "avx2"


def test_tuning_is_part_of_what_is_kept(source, monkeypatch, tmp_path):
    """Machines that share a cache do not take each other's libraries where their cores want other code."""
    header = (
        "#if defined(RA_SLOW_STORES)\n#define ANSWER 3\n#elif defined(RA_PREFETCH_TO_L2)\n#define ANSWER 2\n"
        "#else\n#define ANSWER 1\n#endif\n"
    )
    source.with_suffix(".h").write_text(header)
    cores = [("GenuineIntel", 6, 2), ("AuthenticAMD", 0x19, 3), ("AuthenticAMD", 0x1A, 1), ("", None, 1)]
    for i, (vendor, family, answer) in enumerate(cores):
        monkeypatch.setattr(host, "_cpu_vendor", lambda vendor=vendor: vendor)
        monkeypatch.setattr(host, "_cpu_family", lambda family=family: family)
        folder = tmp_path / str(i)
        folder.mkdir()
        assert answer_of(toolchain.compile_host([source]), folder) == answer


@pytest.mark.slow
def test_the_kernels_compile_from_an_installed_tree(host_compiler):
    """kernels/cpu as it is makes one library with the functions the backend calls."""
    from rocattn.sources import kernel_root
    from rocattn.toolchain.cpu_library import SOURCES

    assert {path.name for path in (kernel_root() / "cpu").glob("*.cpp")} == set(SOURCES)
    library = toolchain.compile_host([Path(kernel_root(), "cpu", name) for name in SOURCES], isa="portable")
    for name in (b"rocattn_cpu_forward", b"rocattn_cpu_backward", b"rocattn_cpu_workspace"):
        assert name in library


def test_a_chosen_library_of_something_else_is_refused(source, tmp_path, monkeypatch):
    """It has none of the kernels' functions: the error names the variable and the file, and what to do."""
    path = tmp_path / "other.so"
    path.write_bytes(toolchain.compile_host([source]))
    monkeypatch.setenv("ROCATTN_CPU_LIBRARY", str(path))
    with pytest.raises(SettingError, match=r"ROCATTN_CPU_LIBRARY is '.*other\.so': it holds no CPU .* or unset it"):
        cpu_flash._library.__wrapped__()
