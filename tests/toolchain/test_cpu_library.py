"""Where the CPU kernels come from: the user's file, the wheel's, or a compiler."""

import shlex
import shutil
import struct

import pytest

from rocattn import toolchain
from rocattn.errors import SettingError, ToolchainError
from rocattn.sources import kernel_root
from rocattn.toolchain import cpu_library, host
from rocattn.toolchain.elf import Elf
from rocattn_profiling.measure.machine import kernel_compiler

PINNED_VERSION = "clang version 99.0.0 (ziglang 9.9.9)"
FLAGS = {isa: set.union(*list(host._X86_FLAGS.values())[: i + 1]) for i, isa in enumerate(host._X86_FLAGS)}
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF
# What pool.cpp and the workspaces call; a process that runs Python has all of them.
FROM_THE_PROCESS = {
    *("free", "getpid", "memcpy", "memset", "memmove", "posix_memalign", "sched_yield", "syscall"),
    *("pthread_create", "pthread_detach"),
}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A folder as a wheel has it, whose files hold their own names; nothing is compiled."""
    folder = tmp_path / "compiled"
    folder.mkdir()
    pinned = toolchain.Compiler("ziglang", ("zig", "clang"), version=PINNED_VERSION)
    names = {target: name for name, target in host.WHEEL_TARGETS.items()}
    with monkeypatch.context() as patch:
        patch.setattr(cpu_library, "pinned_compiler", lambda: pinned)
        patch.setattr(cpu_library, "compile_for", lambda target, *_, **__: names[target].encode())
        cpu_library.write_libraries(folder, host.WHEEL_TARGETS)
    monkeypatch.setattr(cpu_library, "_folder", lambda: folder)
    for name in ("ROCATTN_COMPILER", "ROCATTN_CPU_ISA", "ROCATTN_CPU_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    forget()
    yield folder
    forget()


def forget():
    """Choose anew at the next use."""
    cpu_library._carried.cache_clear()
    host.host_isa.cache_clear()


def on(monkeypatch, machine="x86_64", isa="portable", vendor="", family=None):
    """Be another machine."""
    monkeypatch.setattr(host.platform, "machine", lambda: machine)
    monkeypatch.setattr(host, "_cpu_flags", lambda: FLAGS.get(isa, set()))
    monkeypatch.setattr(host, "_cpu_vendor", lambda: vendor)
    monkeypatch.setattr(host, "_cpu_family", lambda: family)


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ({"isa": "amx", "vendor": "GenuineIntel", "family": 6}, "x86_64-amx"),
        ({"isa": "avx512bf16", "vendor": "GenuineIntel", "family": 6}, "x86_64-avx512"),
        ({"isa": "avx512", "vendor": "GenuineIntel", "family": 6}, "x86_64-avx512"),
        ({"isa": "avx512bf16", "vendor": "AuthenticAMD", "family": 0x19}, "x86_64-avx512bf16-zen4"),
        ({"isa": "avx512bf16", "vendor": "AuthenticAMD", "family": 0x1A}, "x86_64-avx512bf16"),
        ({"isa": "avx2", "vendor": "GenuineIntel", "family": 6}, "x86_64-avx2"),
        ({"isa": "avx2", "vendor": "AuthenticAMD", "family": 0x17}, "x86_64-avx2-zen"),
        ({"isa": "avx2", "vendor": "HygonGenuine", "family": 0x18}, "x86_64-avx2"),  # no tuning is for it: the first
        ({"isa": "portable", "vendor": "GenuineIntel", "family": 6}, "x86_64-portable"),
        ({"machine": "aarch64"}, "aarch64-portable"),
    ],
)
def test_the_wheel_has_a_library_for_every_core(wheel, monkeypatch, machine, name):
    """By instruction set and tuning; no compiler is asked for, and records name the one that made it."""
    monkeypatch.setattr(cpu_library, "choose_host_compiler", lambda: pytest.fail("looked for a compiler"))
    on(monkeypatch, **machine)
    library = toolchain.choose_cpu_library()
    assert cpu_library.read_library(library) == name.encode()
    assert (library.maker, library.compiler) == ("ziglang", PINNED_VERSION)
    assert kernel_compiler() == f"{PINNED_VERSION}, {library.isa}"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_queues_gpu_kernels_is_the_wheels_for_any_cpu(wheel, monkeypatch, machine):
    """Of the machine's kind, whatever its instruction sets; no compiler is asked for."""
    monkeypatch.setattr(cpu_library, "choose_host_compiler", lambda: pytest.fail("looked for a compiler"))
    on(monkeypatch, machine=machine, isa="amx", vendor="GenuineIntel", family=6)
    assert cpu_library.read_launcher() == f"{machine}-portable".encode()


@pytest.mark.usefixtures("host_compiler")
def test_without_a_wheel_the_launcher_is_compiled_alone(monkeypatch, tmp_path):
    """It needs no CPU kernels, and several libraries open from memory stay apart."""
    monkeypatch.setattr(cpu_library, "_folder", lambda: tmp_path)
    forget()
    opened = [cpu_library.open_library(cpu_library.read_launcher()) for _ in range(2)]
    assert all(hasattr(library, "rocattn_gpu_launch") for library in opened)
    assert not any(hasattr(library, "rocattn_cpu_forward") for library in opened)
    assert opened[0]._handle != opened[1]._handle
    forget()


def test_an_instruction_set_asked_for_picks_its_library(wheel, monkeypatch):
    """Also where the wheel has it for other cores only."""
    on(monkeypatch, isa="avx512bf16", vendor="AuthenticAMD", family=0x1A)
    for isa in ("avx512bf16", "avx512", "avx2", "portable"):
        monkeypatch.setenv("ROCATTN_CPU_ISA", isa)
        host.host_isa.cache_clear()
        assert cpu_library.read_library(toolchain.choose_cpu_library()) == f"x86_64-{isa}".encode()


def test_a_machine_that_the_wheel_does_not_know_compiles(wheel, monkeypatch, host_compiler):
    """As from a checkout."""
    on(monkeypatch, machine="riscv64")
    assert toolchain.choose_cpu_library() == cpu_library.CpuLibrary(
        host_compiler.kind, host_compiler.version, "portable"
    )


def test_a_compiler_that_the_user_names_compiles(wheel, monkeypatch, host_compiler):
    """What the wheel carries is passed over, and records name the user's compiler."""
    monkeypatch.setenv(
        "ROCATTN_COMPILER", shlex.quote(host_compiler.argv[0]) if host_compiler.kind == "ziglang" else "g++"
    )
    toolchain.choose_host_compiler.cache_clear()
    library = toolchain.choose_cpu_library()
    assert library.path is None
    assert library.compiler == toolchain.choose_host_compiler().version


def test_a_library_that_the_user_names_is_taken(wheel, tmp_path, monkeypatch):
    """Records do not claim to know what made it; a file that is not there is refused."""
    path = tmp_path / "mine.so"
    monkeypatch.setenv("ROCATTN_CPU_LIBRARY", str(path))
    with pytest.raises(SettingError, match=r"ROCATTN_CPU_LIBRARY is '.*mine\.so': there is no such file; .* unset it"):
        toolchain.choose_cpu_library()
    path.touch()
    assert toolchain.choose_cpu_library().path == path
    assert kernel_compiler() == "unknown, named by ROCATTN_CPU_LIBRARY"


@pytest.mark.parametrize("damage", ["edited source", "damaged index", "no index"])
def test_what_the_wheel_carries_must_fit_its_sources(wheel, tmp_path, monkeypatch, host_compiler, damage):
    """Who edits an installed source gets what it says; a wheel without kernels compiles."""
    root = tmp_path / "kernels"
    shutil.copytree(kernel_root() / "cpu", root / "cpu")
    monkeypatch.setattr(cpu_library, "kernel_root", lambda: root)
    assert toolchain.choose_cpu_library().path is not None
    forget()
    if damage == "edited source":
        (root / "cpu" / "simd.h").write_text("// mine\n")
    elif damage == "damaged index":
        (wheel / "index.json").write_text('{"compiler": 1')
    else:
        (wheel / "index.json").unlink()
    assert toolchain.choose_cpu_library().path is None


def test_a_file_that_is_gone_is_one_line(wheel):
    """It says what to do."""
    library = toolchain.choose_cpu_library()
    library.path.unlink()
    with pytest.raises(ToolchainError, match=r"cannot read .*\.so \(No such file or directory\): reinstall rocattn"):
        cpu_library.read_library(library)


def test_a_wheel_is_not_made_without_the_pinned_compiler(no_pinned, tmp_path):
    """Nor for a target that is none."""
    with pytest.raises(ToolchainError, match=r"a wheel's CPU kernels need the pinned compiler: not installed: .*pip"):
        cpu_library.write_libraries(tmp_path, ["x86_64-amx"])
    with pytest.raises(ToolchainError, match=r"no CPU kernels are called x86_64-mmx: choose from x86_64-amx, "):
        cpu_library.write_libraries(tmp_path, ["x86_64-amx", "x86_64-mmx"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x86_64-avx512bf16-zen4", "aarch64-portable"])
def test_a_library_needs_only_the_process_that_loads_it(name):
    """On any machine the pinned compiler makes it for each; it links nothing, and asks for a few functions of libc."""
    compiler = toolchain.compilers.pinned_compiler()
    if compiler.host_reason:
        pytest.skip(compiler.host_reason)
    target = host.WHEEL_TARGETS[name]
    elf = Elf.read(host.compile_for(target, cpu_library._sources(), compiler, options=("-O0",)))
    assert elf.machine == MACHINES[target.machine]
    (dynamic,), (symbols,), (strings,) = (elf.named(part) for part in (".dynamic", ".dynsym", ".dynstr"))
    needed = [tag for tag, _ in struct.iter_unpack("<qQ", elf.content(dynamic)) if tag == 1]
    assert not needed
    names = elf.content(strings)
    undefined = {
        names[at : names.index(0, at)].decode()
        for at, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", elf.content(symbols))
        if not section and at
    }
    assert "pthread_create" in undefined
    assert undefined <= FROM_THE_PROCESS
