"""Truncated, foreign and hostile files: one clear line each, never a traceback, in bounded time and memory."""

import random
import struct
import tracemalloc
import zlib
from contextlib import suppress

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError, ToolchainError
from rocattn.toolchain import code_object
from rocattn.toolchain.code_object import read_elf, read_metadata
from rocattn.toolchain.elf import Elf, shown
from rocattn_profiling.kernels.model.cost import loop_cost
from rocattn_profiling.kernels.model.loops import find_loops, hot_loop, usual_path
from rocattn_profiling.kernels.read import bundles
from rocattn_profiling.kernels.read.assembly import parse_assembly
from rocattn_profiling.kernels.read.code_objects import CodeObjectError, read_objects

from ..code_files import archive, bundle, compile_text, compressed, elf_of, host_object, pinned

EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63, 2**64 - 1, 2**64 - 4096)


def seeded(number):
    """Return a source of chance that is the same in every run."""
    return random.Random(number)  # noqa: S311 - damage to files is no secret


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a good file of each kind, with its assembly under the name "assembly"."""
    compiler, folder = pinned(), tmp_path_factory.mktemp("good")
    made = {}
    for target in ("gfx90a", "gfx1100"):
        made[target], made["assembly"] = compile_text(compiler.argv, compiler.linker, folder, target)
    fat = bundle({f"hip-amdgcn-amd-amdhsa--{target}": made[target] for target in ("gfx90a", "gfx1100")}, align=64)
    made |= {
        "bundle": fat,
        "compressed": compressed(fat, 2),
        "stored": compressed(fat, 3, content=zlib.compress(fat, level=0)),
        "host": host_object(folder, fat),
        "archive": archive({"a.o": host_object(folder, compressed(fat, 1)), "b.hsaco": made["gfx90a"]}),
    }
    return made


KINDS = ("gfx90a", "gfx1100", "bundle", "compressed", "stored", "host", "archive")


def check(data):
    """Read a file: it is described, or refused, in lines that can be printed. Return whether it was described."""
    try:
        found = read_objects(data, "k")
    except CodeObjectError as error:
        check_line(str(error))
        return False
    assert found
    for device in found:
        for problem in device.problems:
            check_line(problem)
        for kernel in device.kernels:
            assert kernel.symbol.isprintable()
            assert kernel.wave_size in {32, 64} or "wave_size" in kernel.unknown
            assert 0 <= kernel.code_bytes <= len(device.elf)
    return True


def check_line(text):
    """Hold a line to being one."""
    assert text.isprintable(), repr(text)
    assert 0 < len(text) < 700


class TestFuzz:
    """Seeded damage to files of every kind."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_truncated_files(self, files, kind):
        """Cut anywhere: the first kilobyte at each byte, then at random, and the last bytes."""
        data, chosen = files[kind], seeded(1)
        cuts = {*range(min(200, len(data))), *(chosen.randrange(len(data)) for _ in range(60)), len(data) - 1}
        described = [check(data[:cut]) for cut in sorted(cuts)]
        assert not any(described[:64])
        assert check(data)

    @pytest.mark.parametrize("kind", KINDS)
    def test_files_with_changed_bytes(self, files, kind):
        """A few bytes, most of them in headers and tables."""
        data, chosen = files[kind], seeded(2)
        described = 0
        for _ in range(400):
            changed = bytearray(data)
            for _ in range(chosen.choice((1, 2, 8))):
                at = chosen.randrange(min(256, len(data)) if chosen.random() < 0.5 else len(data))
                changed[at] = chosen.randrange(256)
            described += check(bytes(changed))
        assert described or kind == "stored"  # which has a checksum over all

    @pytest.mark.parametrize("kind", KINDS)
    def test_files_with_extreme_numbers(self, files, kind):
        """Sizes, offsets, counts and addresses of 4 and 8 bytes overwritten, the section table included."""
        data, chosen = files[kind], seeded(3)
        (table,) = struct.unpack_from("<Q", data, 40)
        for _ in range(400):
            changed = bytearray(data)
            place = chosen.choice((0, 0, table % len(data), chosen.randrange(len(data))))
            form = chosen.choice(("<I", "<Q"))
            at = min(place + 4 * chosen.randrange(64), len(data) - 8)
            struct.pack_into(form, changed, at, chosen.choice(EXTREMES) & (2 ** (8 * struct.calcsize(form)) - 1))
            check(bytes(changed))

    def test_random_bytes(self):
        """Behind every magic, and without."""
        chosen = seeded(4)
        elf = b"\x7fELF\x02\x01\x01\x40\x03".ljust(16, b"\0") + struct.pack("<HH", 3, 224)
        magics = (
            b"",
            elf,
            elf[:18] + b"\x3e\0",
            b"__CLANG_OFFLOAD_BUNDLE__",
            b"CCOB",
            b"\x10\xff\x10\xad",
            b"!<arch>\n",
        )
        for magic in magics:
            for _ in range(60):
                assert not check(magic + chosen.randbytes(chosen.choice((0, 3, 40, 500, 5000))))


def note(content):
    """Return a metadata note."""
    return struct.pack("<III", 7, len(content), 32) + b"AMDGPU\0\0" + content + b"\0" * (-len(content) % 4)


def peak_of(read, *arguments):
    """Return the most memory that a call takes beyond what was there; its errors are its own."""
    tracemalloc.start()
    try:
        read(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestHostileElf:
    """What a file claims costs nothing."""

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"\x81\xa1a" + b"\x91" * 100_000 + b"\x00", "recursion depth"),
            (b"\x81\xa1a" * 100_000, "recursion depth"),
            (b"\x81\xa1a\xdd\xff\xff\xff\xff\x00", "truncated"),
            (b"\xdf\xff\xff\xff\xff\xa1a\x00", "truncated"),
            (b"\x81\xdb\xff\xff\xff\xffabc", "truncated"),
            (b"\x81\x90\x00", "Expected `str`, got `array`"),
            (b"\x81\xa1a\x81\x80\x00", "hashable"),
            (b"\x81\xa1\xff\x00", "(?i)utf-8"),
            (b"\x81\xa1a\xc1", "invalid opcode"),
            (b"", "truncated"),
            (b"\x90", "Expected `object`, got `array`"),
            (b"\x80\x80", "trailing characters"),
        ],
    )
    def test_metadata_of_no_sense(self, content, words):
        """Deep nesting, counts without content, keys that are lists, names that are no text."""
        with pytest.raises(ToolchainError, match=words):
            read_metadata(elf_of([(7, 0, note(content))]))

    def test_metadata_of_too_many_bytes(self, monkeypatch):
        """A note beyond the limit is not decoded: each of its bytes may become an object."""
        monkeypatch.setattr(code_object, "_MAX_METADATA_BYTES", 1000)
        assert read_metadata(elf_of([(7, 0, note(msgspec.msgpack.encode({"a": [0] * 990})))]))
        with pytest.raises(ToolchainError, match="none of a compiler's"):
            read_metadata(elf_of([(7, 0, note(msgspec.msgpack.encode({"a": [0] * 1000})))]))

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({".vgpr_count": -1}, ".vgpr_count is -1"),
            ({".vgpr_count": "many"}, ".vgpr_count is 'many'"),
            ({".sgpr_count": 2**63}, ".sgpr_count is 9223"),
            ({".wavefront_size": 48}, "waves of 48 lanes"),
            ({".group_segment_fixed_size": True}, "is True"),
            ({".args": 7}, "arguments are no list"),
            ({".args": [7]}, "arguments are no list"),
            ({".args": [{".offset": 0}]}, ".size is None"),
            ({".args": [{".offset": 0, ".size": 8, ".name": "a\n\x1b[31m"}]}, "argument's .name is no text"),
            ({".name": "a\x1b[2Jb\n"}, "no name, or none that can be printed"),
            ({".name": 7}, "no name, or none"),
        ],
    )
    def test_kernels_of_no_sense(self, change, words):
        """Each is one line that names the field."""
        kernel = {
            ".name": "k", ".symbol": "k.kd", ".wavefront_size": 32, ".max_flat_workgroup_size": 64, ".vgpr_count": 1,
            ".sgpr_count": 1, ".group_segment_fixed_size": 0, ".private_segment_fixed_size": 0,
            ".kernarg_segment_size": 0,
        }  # fmt: skip
        data = elf_of([(7, 0, note(msgspec.msgpack.encode({"amdhsa.kernels": [kernel | change]})))])
        with pytest.raises(CodeObjectError, match=r"^k: ") as caught:
            read_objects(data, "k")
        assert words in str(caught.value)
        assert str(caught.value).isprintable()

    def test_what_the_metadata_leaves_out_is_unknown(self):
        """No zero is passed off as a fact."""
        data = elf_of([(7, 0, note(msgspec.msgpack.encode({"amdhsa.kernels": [{".name": "k"}]})))])
        (device,) = read_objects(data, "k")
        assert {"wave_size", "block", "vgprs", "sgprs", "lds_bytes", "vgpr_spills"} <= set(device.kernels[0].unknown)

    def test_sizes_that_nothing_holds(self):
        """A table of sections beyond the end, more sections than the file has room for, a section of 2^64 bytes."""
        for data in (
            elf_of([], count=65535),
            elf_of([(7, 0, b"", 0, 2**64 - 1)]),
            elf_of([(7, 0, b"", 2**64 - 1, 8)]),
            elf_of([(11, 9, b"\0" * 48)]),
            elf_of([(11, 0, b"\0" * 24 + struct.pack("<IBBHQQ", 2**32 - 1, 2, 0, 0, 0, 0))]),
        ):
            assert peak_of(check, data) < 1 << 20

    def test_sections_that_overlap_cost_nothing(self):
        """A thousand note sections, or symbol tables, over the whole file: refused, not read a thousand times."""
        for kind in (7, 2):
            whole = b"\0" * 100_000
            data = elf_of([(kind, 0, whole), *[(kind, 0, b"", 64, len(whole))] * 1000])
            with pytest.raises(ToolchainError, match="larger than the file"):
                _ = Elf.read(data).notes if kind == 7 else Elf.read(data).symbols

    def test_symbols_that_share_a_long_name_cost_nothing(self):
        """Ten thousand symbols with one name of 200 kB would be 2 GB."""
        names = b"\0" + b"a" * 200_000 + b"\0"
        symbols = struct.pack("<IBBHQQ", 1, 2, 0, 1, 0, 0) * 10_000
        data = elf_of([(3, 0, b""), (3, 0, names), (2, 1, symbols)])
        with pytest.raises(ToolchainError, match="names are longer than the file"):
            _ = read_elf(data).symbols

    def test_names_are_shown_in_one_line(self):
        """Whatever is in them."""
        assert shown("a\nb\x1b[0m") == "a\\nb\\x1b[0m"
        assert len(shown("k" * 10_000)) == 201


class TestHostileContainers:
    """Bundles and archives that lie."""

    @pytest.mark.parametrize(
        "table",
        [
            struct.pack("<Q", 2**64 - 1),
            struct.pack("<Q", 1 << 17),
            struct.pack("<Q", 3),
            struct.pack("<QQQQ", 1, 2**64 - 8, 16, 0),
            struct.pack("<QQQQ", 1, 0, 2**64 - 1, 0),
            struct.pack("<QQQQ", 1, 0, 0, 2**64 - 1),
        ],
    )
    def test_bundles_whose_numbers_overflow(self, table):
        """Counts, offsets and lengths to the end of 64 bits."""
        assert not check(b"__CLANG_OFFLOAD_BUNDLE__" + table)

    def test_entries_that_overlap(self, files):
        """The same bytes a thousand times would cost a thousand times."""
        data = files["gfx1100"]
        table = struct.pack("<QQQ", 24 + 8 + 1000 * 25, len(data), 1) + b"x"
        with pytest.raises(CodeObjectError, match="entries overlap"):
            read_objects(b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1000) + table * 1000 + data, "k")

    def test_a_compression_bomb_is_not_unpacked(self, monkeypatch):
        """More than the limit is refused by the header; more than the header says is not unpacked at all."""
        with pytest.raises(CodeObjectError, match="more than 512 MiB"):
            read_objects(compressed(b"", 3, content=b"\0" * (3 << 20), size=(512 << 20) + 1), "k")
        with pytest.raises(CodeObjectError, match="that is not code"):
            read_objects(compressed(b"", 3, content=b"\0" * 1000, size=2 << 20), "k")
        bomb = zlib.compress(b"__CLANG_OFFLOAD_BUNDLE__" + b"\0" * (64 << 20))
        assert len(bomb) < 100_000
        data = compressed(b"", 2, content=bomb, size=5000)
        assert peak_of(check, data) < 1 << 20
        monkeypatch.setattr(bundles, "MAX_UNPACKED_BYTES", 1000)
        monkeypatch.setattr(bundles.Budget, "__init__", lambda self: setattr(self, "left", 1000))
        small = compressed(bundle({}, align=8), 2)
        with pytest.raises(CodeObjectError, match="contains no code"):
            read_objects(small, "k")
        with pytest.raises(CodeObjectError, match="unpack to more than"):
            read_objects(small * 30, "k")

    @pytest.mark.parametrize("size", [b"-1", b"99999999", b"1e3", b"", b"0x10"])
    def test_archives_whose_sizes_lie(self, size):
        """Negative, beyond the end, no number."""
        header = b"%-16s%-32s%-10s`\n" % (b"a.o/", b"0", size)
        assert not check(b"!<arch>\n" + header + b"\0" * 100)

    def test_archives_in_archives_are_not_entered(self, files):
        """However deep."""
        library = archive({"k.hsaco": files["gfx1100"]})
        with pytest.raises(CodeObjectError, match="is not an AMD GPU code object"):
            read_objects(archive({"a.a": library}), "k")

    def test_what_is_good_before_the_damage_is_kept(self, files, tmp_path):
        """The second bundle of a section is damaged: the first is described, and a line says what is left out."""
        fat = files["bundle"]
        found = read_objects(host_object(tmp_path, fat + b"\0" * 64 + fat[:5000]), "app")
        assert [len(device.kernels) for device in found] == [3, 3, 0]
        assert found[-1].problems[0] == snapshot(
            "the rest of the file is skipped: its bundle is truncated: hip-amdgcn-amd-amdhsa--gfx90a ends at byte "
            "9680 of 5000"
        )


def program(chosen, functions, instructions, labels):
    """Return assembly with branches between random places: cycles, loops with several entries, dead code."""
    lines = ['\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"']
    kinds = ("s_cbranch_scc1", "s_cbranch_execz", "s_branch", "s_cbranch_vccnz", "s_cbranch_scc0")
    for function in range(functions):
        lines += [f"\t.type\tf{function},@function", f"f{function}:"]
        for _ in range(instructions):
            lines.append(f".L{chosen.randrange(labels)}:" if chosen.random() < 0.3 else "")
            lines.append(
                chosen.choice(
                    (
                        f"\t{chosen.choice(kinds)} .L{chosen.randrange(labels)}",
                        "\tv_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]",
                        "\tglobal_load_dwordx4 v[0:3], v[4:5], off",
                        "\ts_endpgm" if chosen.random() < 0.2 else "\tv_exp_f32_e32 v0, v1",
                    )
                )
            )
        lines += [f".Lfunc_end{function}:", f"\t.amdhsa_kernel f{function}", "\t.end_amdhsa_kernel"]
    return "\n".join(lines)


def walk(text):
    """Read assembly and ask everything of it; return how many loops were found."""
    loops = 0
    for function in parse_assembly(text):
        found = find_loops(function)
        loops += len(found)
        for loop in found[:20]:
            assert set(usual_path(function, loop)) <= loop.blocks
        hot = hot_loop(function)
        assert (hot is None) == (not found)
        for arch in ("gfx942", "gfx1100", ""):
            with suppress(RocattnError):  # one line: no waves of this size there, no such architecture
                loop_cost(function, arch)
    return loops


class TestHostileAssembly:
    """Text that no compiler writes."""

    def test_random_branches(self):
        """Cycles of every shape."""
        chosen = seeded(5)
        assert sum(walk(program(chosen, 2, chosen.choice((3, 20, 80)), chosen.choice((2, 9, 40)))) for _ in range(60))

    def test_branches_in_a_cycle(self):
        """Nothing but branches, each to the next, the last to the first; and each to itself."""
        for step in (0, 1, 7):
            body = "".join(f".L{i}:\n\ts_branch .L{(i + step) % 500}\n" for i in range(500))
            walk(f"\t.type\tf,@function\nf:\n{body}.Lfunc_end0:\n")

    def test_many_blocks_lead_anywhere(self):
        """Two thousand blocks with conditional branches back and forth."""
        chosen = seeded(6)
        body = "".join(
            f".L{i}:\n\tv_exp_f32_e32 v0, v1\n\ts_cbranch_scc1 .L{chosen.randrange(2000)}\n" for i in range(2000)
        )
        walk(f"\t.type\tf,@function\nf:\n{body}.Lfunc_end0:\n")

    def test_damaged_assembly(self, files):
        """A compiler's text cut anywhere, with lines exchanged, doubled, and characters changed."""
        text, chosen = files["assembly"], seeded(7)
        assert walk(text) > 0
        lines = text.splitlines()
        for _ in range(25):
            changed = lines[: chosen.randrange(len(lines))]
            for _ in range(20):
                if changed:
                    changed[chosen.randrange(len(changed))] = chosen.choice(lines)
            whole = list("\n".join(changed))
            for _ in range(20 if whole else 0):
                whole[chosen.randrange(len(whole))] = chr(chosen.choice((0, 9, 10, 13, 34, 58, 59, 0x2028, 0x1F600)))
            walk("".join(whole))

    def test_binaries_read_as_text(self, files):
        """Nothing of it is code."""
        for kind in KINDS:
            assert not any(function.blocks for function in parse_assembly(files[kind].decode("latin-1")))
