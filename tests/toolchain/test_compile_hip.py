"""Compiling a kernel: the same bytes for the same source, a cache that notices every change, errors in one line."""

import shutil
import subprocess
import sys

import pytest

from rocattn import toolchain
from rocattn.errors import ToolchainError
from rocattn.sources import kernel_root
from rocattn.toolchain import hip
from rocattn.toolchain.elf import Elf

SOURCE = """#include <lib/scale.h>
#include "near.h"
extern "C" __attribute__((global)) void scale(float* x, const char** names) {
    x[__builtin_amdgcn_workitem_id_x()] *= FACTOR * near();
    names[0] = __FILE__ __DATE__ __TIME__;
    names[1] = header_file();
}
"""
HEADER = '#include "deep.h"\n#define FACTOR DEEP\n'
HEADER += "inline __attribute__((device)) const char* header_file() { return __FILE__; }\n"

pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture
def make_tree():
    """Return a function: folder -> a source in it that includes a header of its own and a nested pair."""

    def make(folder):
        (folder / "include" / "lib").mkdir(parents=True)
        (folder / "hip").mkdir()
        (folder / "hip" / "scale.hip").write_text(SOURCE)
        (folder / "hip" / "near.h").write_text("inline __attribute__((device)) float near() { return 2.0f; }\n")
        (folder / "include" / "lib" / "scale.h").write_text(HEADER)
        (folder / "include" / "lib" / "deep.h").write_text("#define DEEP 3.0f\n")
        return folder

    return make


@pytest.fixture
def tree(make_tree, tmp_path):
    """One such folder."""
    return make_tree(tmp_path / "tree")


def build(tree, arch="gfx942", **options):
    """Compile the tree's kernel."""
    return toolchain.compile_hip(tree / "hip" / "scale.hip", arch, include_root=tree / "include", **options)


def test_two_folders_give_the_same_bytes_and_no_path(make_tree, tmp_path, monkeypatch):
    """Key, code object and assembly do not depend on where the source, the cache and temporary files are."""
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "cache-1"))
    one = build(make_tree(tmp_path / "first"))
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "cache-2"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    two = build(make_tree(tmp_path / "a second, longer folder"))
    assert (one.key, one.data, one.assembly) == (two.key, two.data, two.assembly)
    everything = one.data + one.assembly.encode()
    for leak in (str(tmp_path), "/tmp", str(kernel_root())):  # noqa: S108 - a path to look for, not to write
        assert leak.encode() not in everything
    assert b"include/lib/scale.h" in one.data


def test_a_second_use_does_not_compile(tree, monkeypatch):
    """An entry is taken from the cache as it was made."""
    first = build(tree)
    monkeypatch.setattr(hip, "_three_steps", lambda *_: pytest.fail("it compiled again"))
    assert build(tree) == first


@pytest.mark.parametrize("changed", ["hip/scale.hip", "hip/near.h", "include/lib/scale.h", "include/lib/deep.h"])
def test_every_file_that_is_included_is_part_of_the_key(tree, changed):
    """A change in the source or any header, however deep, is another key."""
    before = build(tree)
    with (tree / changed).open("a") as file:
        file.write("// changed\n")
    assert build(tree).key != before.key


def test_a_header_that_appears_in_front_of_another_is_noticed(tree):
    """`#include "x"` looks beside the includer first: a new file there wins from then on."""
    before = build(tree)
    (tree / "hip" / "deep.h").write_text("#define DEEP 5.0f\n")
    assert build(tree).key == before.key  # beside the source, not beside the header that includes it
    (tree / "hip" / "near.h").unlink()
    (tree / "include" / "near.h").write_text("inline __attribute__((device)) float near() { return 4.0f; }\n")
    assert build(tree).data != before.data


def test_options_are_part_of_the_key(tree):
    """Target, defines and code-object version each make another entry; equal defines in another order do not."""
    keys = [
        build(tree).key,
        build(tree, arch="gfx1100").key,
        build(tree, code_object_version=6).key,
        build(tree, defines={"A": 1, "B": True}).key,
        build(tree, defines={"A": 1, "B": None}).key,
        build(tree, defines={"A": "1.5f", "B": False}).key,
    ]
    assert len(set(keys)) == len(keys)
    assert build(tree, defines={"B": True, "A": 1}).key == keys[3]


def test_a_file_edited_during_the_build_is_not_cached(tree, own_cache, monkeypatch):
    """The key was taken from the old text, the code object from the new: neither is kept."""
    build_steps = hip._three_steps

    def edit_meanwhile(*arguments):
        (tree / "hip" / "near.h").write_text("inline __attribute__((device)) float near() { return 9.0f; }\n")
        return build_steps(*arguments)

    monkeypatch.setattr(hip, "_three_steps", edit_meanwhile)
    with pytest.raises(ToolchainError, match="changed while it was compiled"):
        build(tree)
    assert not list(own_cache.rglob("code.hsaco"))


COMPUTED = r"scale.hip: cannot follow the include of .*: name the header literally"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        # System headers are out of sight, so a key cannot miss one.
        ("#include <stdint.h>", r"scale.hip does not compile for gfx942: .*stdint.h"),
        # A header whose name only the preprocessor knows could not be part of the key.
        ("#include HEADER", COMPUTED),
        ("# include MACRO(x)", COMPUTED),
        ("#if __has_include(NAME)\n#endif", COMPUTED),
    ],
)
def test_what_the_key_could_not_have_cannot_be_included(tree, line, why):
    """In one line that names the source."""
    with (tree / "hip" / "scale.hip").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ToolchainError, match=why):
        build(tree)


def test_a_compile_error_is_the_compilers_first_line(tree, own_cache):
    """The message has file, line and text; the command and all output are attributes and shown under --debug."""
    source = tree / "hip" / "scale.hip"
    source.write_text(source.read_text().replace("x[__", "y[__"))
    with pytest.raises(ToolchainError) as caught:
        build(tree)
    error = caught.value
    assert str(error).startswith("scale.hip does not compile for gfx942: scale.hip:4:5: error: use of undeclared")
    assert "\n" not in str(error)
    assert "--offload-arch=gfx942" in error.command
    assert "scale.hip:4:5" in error.output
    assert error.__notes__[0].startswith("command: ")
    assert not list(own_cache.rglob("code.hsaco"))


def test_an_undefined_function_is_found_when_linking(tree):
    """What would only fail when the GPU loads it fails here."""
    source = tree / "hip" / "scale.hip"
    source.write_text(
        "extern __attribute__((device)) float missing_function();\n"
        + source.read_text().replace("FACTOR * near()", "missing_function()")
    )
    with pytest.raises(ToolchainError, match=r"does not compile for gfx942: .*undefined.*missing_function"):
        build(tree)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "sm_90"}, "'sm_90' is no GPU architecture"),
        ({"arch": "gfx942 -o /etc/passwd"}, "is no GPU architecture"),
        ({"arch": "gfxfff"}, "does not know gfxfff"),
        ({"defines": {"A=1 -I": 2}}, "cannot be defined"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(tree, arguments, message):
    """One line that says what is wrong."""
    with pytest.raises(ToolchainError, match=message):
        build(tree, **arguments)


def test_a_missing_source_is_named():
    """The path that was looked for is in the message."""
    with pytest.raises(ToolchainError, match=r"cannot read the kernel source .*hip/nothing.hip: No such file"):
        toolchain.compile_hip("hip/nothing.hip", "gfx942")


def test_variables_of_the_environment_do_not_reach_the_compiler(tree, tmp_path, monkeypatch):
    """CPATH and its like could slip in a header, or an option, that the key does not know."""
    plain = build(tree)
    monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", "# O0")
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "other"))
    assert build(tree).data == plain.data
    (tree / "hip" / "near.h").rename(tmp_path / "near.h")
    monkeypatch.setenv("CPATH", str(tmp_path))
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"'near.h' file not found"):
        build(tree)


def test_a_kernel_root_without_headers_says_to_reinstall(monkeypatch, tmp_path):
    """Neither a wheel's folder nor a checkout's: the message names both places."""
    monkeypatch.setattr("rocattn.sources.__file__", str(tmp_path / "rocattn" / "sources.py"))
    with pytest.raises(ToolchainError, match="reinstall rocattn"):
        kernel_root()
    shutil.copytree(kernel_root.__globals__["Path"](toolchain.__file__).parents[2] / "kernels", tmp_path / "kernels")
    assert kernel_root() == tmp_path / "kernels"


def test_it_needs_no_numpy():
    """Finding compilers and compiling stay light."""
    code = "import sys, rocattn.toolchain as t; t.find_compilers(); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_line_tables_leave_the_machine_code_as_it_is(tree):
    """Source lines of an audit are those of the shipped code: its instructions are the same bytes with tables."""
    plain, with_tables = build(tree), build(tree, line_tables=True)
    codes = [
        [elf.content(each) for each in elf.named(".text")] for elf in map(Elf.read, (plain.data, with_tables.data))
    ]
    assert codes[0] == codes[1] != [b""]
    assert ".loc" in with_tables.assembly
    assert ".loc" not in plain.assembly
    assert plain.key != with_tables.key
