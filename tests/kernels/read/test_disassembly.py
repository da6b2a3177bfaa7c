"""Disassembling code objects: equal to the compiler's own assembly, and one clear line where no tool can."""

import os
import signal
from dataclasses import replace

import pytest
from inline_snapshot import snapshot

from rocattn.toolchain.code_object import read_elf
from rocattn_profiling.kernels.model.loops import find_loops
from rocattn_profiling.kernels.read import disassembly
from rocattn_profiling.kernels.read.assembly import parse_assembly
from rocattn_profiling.kernels.read.code_objects import read_objects
from rocattn_profiling.kernels.read.disassembly import UNREADABLE, DisassemblyError, disassemble, find_objdumps
from rocattn_profiling.kernels.read.instructions import Pipe

from ...programs import python_program
from ..code_files import assemble, compile_text, pinned

HAND_WRITTEN = """
\t.text
\t.globl hand
\t.p2align 8
\t.type hand,@function
hand:
\ts_mov_b32 s0, 0
\ts_cmp_lt_u32 s0, 10
inner:
\ts_cbranch_scc1 inner
\ts_cbranch_scc0 hand
\ts_branch tail
\ts_nop 0
tail:
\ts_endpgm
\t.size hand, .-hand
\ts_nop 0
\t.type other,@function
other:
\ts_branch hand
\t.section .rodata
\t.p2align 6
\t.amdhsa_kernel hand
\t.amdhsa_next_free_vgpr 9
\t.amdhsa_next_free_sgpr 9
\t.amdhsa_accum_offset 12
\t.end_amdhsa_kernel
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Forget which tool does not know what: each test has its own tools."""
    monkeypatch.setattr(disassembly, "_REFUSED", {})


@pytest.fixture
def hand(tmp_path):
    """Return a code object whose instructions are known, and where its function begins."""
    compiler = pinned()
    (tmp_path / "h.s").write_text(HAND_WRITTEN)
    (device,) = read_objects(assemble(compiler.argv, compiler.linker, tmp_path, "gfx942", "h"), "h")
    return device, read_elf(device.elf).symbols["hand"].value


def printed(start, *lines):
    """Return lines as llvm-objdump prints them: (text, encoding), 4 bytes each, with headers between."""
    text, at = ["", "h:\tfile format elf64-amdgpu", "", "Disassembly of section .text:", ""], start
    for line in lines:
        if isinstance(line, str):
            text.append(line.format(at))
        else:
            text.append(f"\t{line[0]:<58} // {at:012X}: {line[1]:08X}")
            at += 4
    return "\n".join(text) + "\n"


def install(folder, name, monkeypatch, *, text="", status=0, errors=""):
    """Put a program on PATH that prints this."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(text)
    tool = folder / name
    tool.write_text(
        f"{python_program()}import pathlib, os, sys\n"
        f"sys.stdout.write(pathlib.Path({str(folder / name)!r} + '.txt').read_text())\n"
        f"sys.stderr.write({errors!r})\n"
        f"sys.exit({status}) if {status} >= 0 else os.abort()\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ROCM_PATH", str(folder / "none"))
    return str(tool)


CODE = [
    "{:016x} <hand>:", "; hand():", "; /src/hand.hip:7", ("s_mov_b32 s0, 0", 0xBE800080),
    "; /src/hand.hip:9 (discriminator 2)", ("s_cmp_lt_u32 s0, 10", 0xBF0A8A00),
    "{:016x} <inner>:", ("s_cbranch_scc1 65535", 0xBF85FFFF), ("s_cbranch_scc0 L0", 0xBF84FFFC),
    ("s_branch 1", 0xBF820001), ("s_nop 0", 0xBF800000), "{:016x} <tail>:", ("s_endpgm", 0xBF810000),
    ("s_nop 0", 0xBF800000), "{:016x} <other>:", ("s_branch hand", 0xBF82FFF7),
]  # fmt: skip


class TestConversion:
    """What a tool prints becomes assembly."""

    @pytest.fixture(autouse=True)
    def programs_alone(self, monkeypatch):
        """Leave LLVM's library out."""
        monkeypatch.setattr(disassembly, "_library", lambda: None)

    def test_functions_branches_and_lines(self, hand, tmp_path, monkeypatch):
        """Targets come from the encoding, whatever is printed; padding and other functions' lines stay out."""
        device, start = hand
        install(tmp_path / "bin", "llvm-objdump", monkeypatch, text=printed(start, *CODE))
        kernel, other = parse_assembly(disassemble(device))
        assert (kernel.name, kernel.target, kernel.is_kernel, kernel.wave_size) == ("hand", "gfx942", True, 64)
        assert [(len(block.instructions), block.successors) for block in kernel.blocks] == [
            (2, (1,)), (1, (2, 1)), (1, (3, 0)), (1, (4,)), (1, ())
        ]  # fmt: skip
        assert len(find_loops(kernel)) == 2
        found = [(one.mnemonic, one.source) for block in kernel.blocks for one in block.instructions]
        assert found == [
            ("s_mov_b32", "hand.hip:7"), ("s_cmp_lt_u32", "hand.hip:9"), ("s_cbranch_scc1", "hand.hip:9"),
            ("s_cbranch_scc0", "hand.hip:9"), ("s_branch", "hand.hip:9"), ("s_endpgm", "hand.hip:9"),
        ]  # fmt: skip
        assert (other.name, other.is_kernel, len(other.blocks)) == ("other", False, 1)
        assert other.unknown_targets == (f".L{start:x}",)
        assert other.blocks[0].instructions[0].source == ""

    def test_a_tool_that_is_too_old_is_passed_over(self, hand, tmp_path, monkeypatch):
        """It prints words that it cannot read as data, or says that it does not know the processor, or crashes."""
        device, start = hand
        unread = [(".long 0xbe800080", 0xBE800080) if isinstance(line, tuple) else line for line in CODE]
        install(tmp_path / "bin", "llvm-objdump-19", monkeypatch, text=printed(start, *unread))
        install(tmp_path / "bin", "llvm-objdump-18", monkeypatch, status=-1, errors="PLEASE submit a bug report")
        install(
            tmp_path / "bin", "llvm-objdump-17", monkeypatch, status=1, errors="error: 'code.hsaco': can't find target"
        )
        install(tmp_path / "bin", "llvm-objdump-16", monkeypatch, status=1, errors="\nerror: no space left\nmore")
        with pytest.raises(DisassemblyError) as caught:
            disassemble(device)
        reasons = str(caught.value).partition("no llvm-objdump for gfx942: ")[2].split("; ")
        assert [reason.partition("llvm-objdump-")[2] for reason in reasons[:-1]] == [
            "19 is too old: it cannot read over 1 % of its instructions", "18 crashes on it", "17 does not support it",
            "16 fails: error: no space left",
        ]  # fmt: skip
        install(tmp_path / "bin", "llvm-objdump-16", monkeypatch, text=printed(start, *CODE))  # there is space again
        assert len(parse_assembly(disassemble(device))) == 2

    def test_what_a_tool_cannot_read_is_not_left_out(self, hand, tmp_path, monkeypatch):
        """A word in a hundred stands for an instruction of an unknown kind."""
        device, start = hand
        monkeypatch.setattr(disassembly, "_MAX_UNREADABLE", 0.2)
        code = [(".long 0xbe800080", 0xBE800080) if line == CODE[3] else line for line in CODE]
        install(tmp_path / "bin", "llvm-objdump", monkeypatch, text=printed(start, *code))
        first = parse_assembly(disassemble(device))[0].blocks[0].instructions[0]
        assert (first.mnemonic, first.operands, first.unit) == (UNREADABLE, "0xbe800080", Pipe.OTHER)

    def test_the_newest_tool_is_asked_first(self, tmp_path, monkeypatch):
        """ROCm's before all, then by version; a file under two names is one tool."""
        for name in ("llvm-objdump-15", "llvm-objdump-20", "llvm-objdump"):
            install(tmp_path / "bin", name, monkeypatch)
        (tmp_path / "bin" / "llvm-objdump-19").symlink_to(tmp_path / "bin" / "llvm-objdump-20")
        rocm = tmp_path / "rocm" / "llvm" / "bin"
        rocm.mkdir(parents=True)
        (rocm / "llvm-objdump").symlink_to(tmp_path / "bin" / "llvm-objdump-15")
        monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
        found = [path.removeprefix(str(tmp_path)) for path in find_objdumps()]
        assert found == ["/rocm/llvm/bin/llvm-objdump", "/bin/llvm-objdump-20", "/bin/llvm-objdump"]

    def test_without_a_tool_there_is_one_line(self, hand, tmp_path, monkeypatch):
        """It says what to install."""
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("ROCM_PATH", str(tmp_path))
        with pytest.raises(DisassemblyError, match="no llvm-objdump for gfx942: none is on PATH or in ROCm"):
            disassemble(hand[0])

    @pytest.mark.usefixtures("hand")
    def test_what_is_not_linked_is_refused(self, tmp_path):
        """Its branches may be relocations."""
        (device,) = read_objects((tmp_path / "h.o").read_bytes(), "h.o")
        with pytest.raises(DisassemblyError, match="it is not linked"):
            disassemble(device)


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"])
def test_disassembly_is_what_the_compiler_wrote(tmp_path, target):
    """Instruction by instruction, block by block, with the source lines; by whatever llvm-objdump is here."""
    compiler = pinned()
    data, assembly = compile_text(compiler.argv, compiler.linker, tmp_path, target, "-gline-tables-only")
    (device,) = read_objects(data, "k")
    try:
        text = disassemble(device)
    except DisassemblyError as error:
        pytest.skip(str(error))
    ours, theirs = ({one.name: one for one in parse_assembly(each)} for each in (text, assembly))
    assert set(ours) == set(theirs)
    for name, function in theirs.items():
        found = ours[name]
        assert found.unknown_targets == ()
        assert (found.target, found.wave_size, found.is_kernel) == (target, function.wave_size, True)
        assert shape(found) == shape(function)
        pairs = list(zip(code(found.blocks), code(function.blocks), strict=True))
        assert all(one.mnemonic == other.mnemonic for one, other in pairs)
        assert all(one.source == other.source for one, other in pairs if other.source)  # llvm-objdump skips line 0
    assert any(other.source.startswith("k.hip:") for _, other in pairs)
    assert sum(len(find_loops(function)) for function in ours.values()) >= 2


@pytest.mark.parametrize("target", ["gfx908", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250"])
def test_the_library_reads_what_was_assembled(tmp_path, target):
    """In this process, also where no objdump knows the target; of gfx1250, what its LLVM has."""
    if (library := disassembly._library()) is None:
        pytest.skip("rocm-llvm-python is not installed")
    compiler = pinned()
    data, assembly = compile_text(compiler.argv, compiler.linker, tmp_path, target)
    (device,) = read_objects(data, "k")
    assert disassembly.find_disassemblers()[0] == str(library)
    assert disassembly.find_disassemblers(lines=True)[-1] == str(library)
    (ours, *_), (theirs, *_) = (parse_assembly(each) for each in (disassemble(device), assembly))
    assert shape(ours) == shape(theirs)
    pairs = zip(code(ours.blocks), code(theirs.blocks), strict=True)
    assert [one.mnemonic for one, _ in pairs] == [each.mnemonic for each in code(theirs.blocks)]


def test_the_library_is_not_asked_what_would_end_it(hand, tmp_path, monkeypatch):
    """LLVM ends the process whose processor it cannot disassemble: that is found out in another one."""
    if (library := disassembly._library()) is None:
        pytest.skip("rocm-llvm-python is not installed")
    assert disassembly._knows(str(library), "gfx942") == ""
    for processor in ("gfx600", "gfx99", ""):
        assert disassembly._knows(str(library), processor) == snapshot("librocmllvm.so does not support it")
    for variable in ("PATH", "ROCM_PATH"):
        monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(DisassemblyError, match="does not support it"):
        disassemble(replace(hand[0], target="gfx600"))


def test_code_that_ends_the_library_is_one_line(hand, tmp_path, monkeypatch):
    """LLVM 22 dies of some words that are no instructions; then a program is asked."""
    monkeypatch.setattr(disassembly, "_library", lambda: disassembly._LIBRARY)
    monkeypatch.setattr(disassembly, "_knows", lambda *_: "")
    monkeypatch.setattr(disassembly, "_llvm", lambda _: None)
    monkeypatch.setattr(disassembly, "_decoded", lambda *_: os.kill(os.getpid(), signal.SIGSEGV))
    install(tmp_path / "bin", "llvm-objdump", monkeypatch, status=1, errors="error: no space left")
    with pytest.raises(DisassemblyError, match=r"librocmllvm.so crashes on it \(killed by SIGSEGV\); .*no space left"):
        disassemble(hand[0])


def code(blocks):
    """Return their instructions without s_nop, which the assembler puts before aligned loops."""
    return [one for block in blocks for one in block.instructions if one.mnemonic != "s_nop"]


def shape(function):
    """Return how many instructions each block has, and what follows it."""
    return [(len(code([block])), block.successors) for block in function.blocks]
