"""What assembly text says of its kernels: equal to the code object's metadata, and unknown where it says nothing."""

import pytest

from rocattn.errors import ToolchainError
from rocattn.toolchain import choose_compiler, compile_hip
from rocattn.toolchain.code_object import kernels_of
from rocattn_profiling.audit.assembly import parse_assembly
from rocattn_profiling.audit.text_files import compiler_of, kernels_of_text

HEAD = '\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n\t.type k,@function\nk:\n\ts_endpgm\n.Lend:\n\t.size k, .Lend-k\n'
DESCRIPTOR = "\t.amdhsa_kernel k\n\t\t.amdhsa_next_free_vgpr {}\n\t.end_amdhsa_kernel\n"
METADATA = "\t.amdgpu_metadata\n---\namdhsa.kernels:\n  - .name: {}\n    .vgpr_count: {}\n...\n\t.end_amdgpu_metadata\n"
KERNEL = """\
#include <rocattn/device.h>
using namespace rocattn;
ROCATTN_KERNEL(first, 64, (float* x, u32 n)) {
    ROCATTN_LDS(float, shared, 64);
    lds_store(shared + thread_id(), x[thread_id()]);
    block_barrier();
    x[n] = shared[63 - thread_id()];
}
ROCATTN_KERNEL(second, 128, (float* x, u32 n)) { for (u32 i = 0; i < n; ++i) x[i] += 1.0f; }
"""


def read(text):
    """Return what a text says of its kernels."""
    return kernels_of_text(text, parse_assembly(text))


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"])
def test_text_and_code_object_say_the_same(arch, tmp_path, monkeypatch):
    """Of two kernels in one file, every number that both have."""
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path))
    source = tmp_path / "two.hip"
    source.write_text(KERNEL)
    try:
        compiler = choose_compiler().version
    except ToolchainError as error:
        pytest.skip(str(error))
    made = compile_hip(source, arch)
    said = read(made.assembly)
    assert list(said) == ["first", "second"]
    for kernel in kernels_of(made.data):
        for name in (
            "wave_size", "block", "vgprs", "agprs", "sgprs", "vgpr_spills", "sgpr_spills", "lds_bytes", "scratch_bytes",
            "kernarg_bytes", "code_bytes",
        ):  # fmt: skip
            assert getattr(said[kernel.symbol], name) == getattr(kernel, name), name
        assert said[kernel.symbol].unknown == ()
    assert compiler_of(made.assembly).split()[:3] == compiler.split()[:3]


def test_without_metadata_the_descriptor_says_what_it_can():
    """Registers are known then; spills and the block are not."""
    (kernel,) = read(HEAD + DESCRIPTOR.format(24)).values()
    assert kernel.vgprs == 24
    assert {"vgpr_spills", "sgpr_spills", "block"} <= set(kernel.unknown)
    assert "vgprs" not in kernel.unknown


def test_metadata_of_another_kernel_says_nothing_of_this_one():
    """Entries belong to the kernels that they name."""
    (kernel,) = read(HEAD + DESCRIPTOR.format(24) + METADATA.format("other", 99)).values()
    assert kernel.vgprs == 24


@pytest.mark.parametrize("value", ["9" * 5000, "-1", "max(3, k.num_vgpr)", "0x18", "'", "1e3", str(1 << 32)])
def test_what_is_no_number_is_unknown(value):
    """Expressions of newer compilers, and nonsense, are neither guessed nor a crash."""
    (kernel,) = read(HEAD + DESCRIPTOR.format(value) + METADATA.format("k", value)).values()
    assert kernel.vgprs == 0
    assert "vgprs" in kernel.unknown


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 1_000_000,
        ".amdgpu_metadata\n" * 100_000,
        ".amdhsa_kernel k\n" * 100_000,
        ".amdgpu_metadata\n  - .name: " + "x" * 1_000_000,
        '.ident "' * 100_000,
        "; Kernel info:\n" * 100_000,
    ],
    ids=["blank lines", "metadata without end", "descriptors", "a long name", "quotes", "comments"],
)
def test_hostile_text_takes_no_longer_than_any(text):
    """Patterns that start at every line must not look at all the rest each time: these would take minutes."""
    assert read(text) == {}
    assert compiler_of(text) in {"", ".ident "}
