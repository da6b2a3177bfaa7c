"""``rocattn kernels audit kernel.hip``: sources of others, compiled here, and compared with their past."""

import subprocess

import pytest
from inline_snapshot import snapshot

from rocattn_profiling import cli

from ...screens import line, screen

PROGRAM = """\
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <hipblas/hipblas.h>
#include <algorithm>
#include <vector>
#include "size.h"

template <typename T>
__global__ __launch_bounds__(SIZE) void scale(T* x, float4* y, float by, int n) {
    __shared__ float part[SIZE];
    part[threadIdx.x] = __shfl_xor(by, 1);
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        x[i] = std::max(x[i], T(0)) * T(part[SIZE - 1 - threadIdx.x] FACTOR);
        y[i] += make_float4(by, expf(by), 0, 1) * 2.0f;
    }
}

int main() {
    std::vector<half> host(64);
    half* x;
    hipblasHandle_t blas;
    if (hipblasCreate(&blas) != HIPBLAS_STATUS_SUCCESS) return 1;
    if (hipMalloc(&x, 64 * sizeof(half)) != hipSuccess) return 1;
    scale<<<dim3(1), dim3(64)>>>(x, static_cast<float4*>(nullptr), 2.0f, 64);
    return hipDeviceSynchronize() == hipSuccess ? 0 : 1;
}
"""
# Without the standard library's headers, which take longer to read than the kernel to compile.
LEAN = (
    PROGRAM.replace("#include <algorithm>\n#include <vector>\n", "")
    .replace("std::max(x[i], T(0))", "(x[i] > T(0) ? x[i] : T(0))")
    .replace("    std::vector<half> host(64);\n", "")
)


@pytest.fixture
def audit(tmp_path, capsys, monkeypatch):
    """Return a function that audits in a repository with a program, and gives the status, stdout and stderr."""
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scale.hip").write_text(LEAN)
    (tmp_path / "include").mkdir()
    (tmp_path / "include/size.h").write_text("#define SIZE 64\n")

    def run(*arguments):
        status = cli.main(["kernels", "audit", "--out", "out", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def git(*arguments):
    """Run git in the current folder as somebody."""
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True, capture_output=True)


def test_a_program_compiles_without_rocm_for_each_target(audit, tmp_path):
    """Its host's side is passed over, and its kernel instantiated by the launch there."""
    (tmp_path / "scale.hip").write_text(PROGRAM)
    status, _, err = audit("scale.hip", "--arch", "gfx90a", "gfx1201", "--options=-Iinclude -DFACTOR= -std=c++17")
    assert status == 0
    assert err.count("scale") >= 2
    assert "gfx90a" in err
    assert "gfx1201" in err


def test_a_source_is_compared_with_a_revision_and_its_headers(audit, tmp_path):
    """Of each side its own headers count, also where the option names their folder from the root."""
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    again = ("scale.hip", "--arch", "gfx942", f"--options=-I{tmp_path}/include -DFACTOR=", "--against", "HEAD")
    status, out, _ = audit(*again)
    assert status == 0
    assert "1 unchanged" in out
    (tmp_path / "include/size.h").write_text("#define SIZE 1024\n")
    git("commit", "-qam", "two")
    (tmp_path / "scale.hip").write_text(LEAN.replace("y[i] +=", "__syncthreads(); y[i] +="))
    status, out, _ = audit(*again)
    assert status == 1
    assert "0 -> 1" in out
    assert "scale.hip:" in out
    assert "256 -> 4096" not in out
    assert "256 -> 4096" in audit(*again[:-1], "HEAD~1", "--notes")[1]


def test_a_source_is_compared_with_another_one(audit, tmp_path):
    """Either may be older: what is named first is judged."""
    (tmp_path / "slow.cu").write_text(LEAN)
    options = ("--arch", "gfx942", "--options=-Iinclude -DFACTOR=/SIZE*1.0")
    assert audit("scale.hip", *options, "--against", "slow.cu")[0] == 0
    (tmp_path / "slow.cu").write_text(LEAN.replace("FACTOR", "* FACTOR_2 / (1.0 + x[i])").replace("FACTOR_2", "2"))
    status, out, _ = audit("slow.cu", *options, "--against", "scale.hip")
    assert status == 1
    assert "f32 made f64" in out


def test_what_our_headers_lack_or_simplify_is_said(audit, tmp_path):
    """A status of 0 is for what was compiled; a function that is only simpler is named."""
    options = ("--arch", "gfx1100", "--options=-Iinclude -DFACTOR=")
    (tmp_path / "scale.hip").write_text(LEAN.replace("expf(by)", "tanhf(by)"))
    status, _, err = audit("scale.hip", *options)
    assert status == 0
    assert line(err, "simplified") == snapshot("scale.hip: with simplified versions of ROCm's functions: tanhf")
    (tmp_path / "other.hip").write_text(PROGRAM)
    status, out, err = audit("scale.hip", *options, "--against", "other.hip")
    assert status in {1, 3}
    assert line(out, "  library") == snapshot(
        "library functions of 1 kernel: only one side's tanhf is simpler than ROCm's"
    )
    (tmp_path / "scale.hip").write_text(PROGRAM.replace("expf(by)", '(printf("%f", by), expf(by))'))
    assert line(audit("scale.hip", *options)[2], "simplified") == snapshot(
        "scale.hip: with simplified versions of ROCm's functions: printf"
    )
    (tmp_path / "scale.hip").write_text("#include <rocprim/rocprim.hpp>\n")
    status, _, err = audit("scale.hip", *options)
    assert status == 3
    assert screen(err, tmp=tmp_path) == snapshot("""\
scale.hip does not compile for gfx1100: tmp/scale.hip:1:10: fatal error: 'rocprim/rocprim.hpp' file not found; ROCm's headers were not found: set ROCM_PATH, or add folders with --options=-I…
rocattn kernels: no kernels to audit\
""")  # noqa: E501
    (tmp_path / "scale.hip").write_text(PROGRAM.replace("    scale<<<", "    // scale<<<"))
    status, _, err = audit("scale.hip", *options)
    assert status == 3
    assert "template" in err


def test_options_of_sources_are_obeyed_or_refused(audit, tmp_path):
    """And a file that a revision does not have is no kernel without a change."""
    (tmp_path / "other.s").write_text("")
    for arguments, said in (
        (("scale.hip",), "--arch"),
        (("other.s", "--options=-DN=1"), "--options"),
        (("--options=-DN=1",), "--options"),
        (("other.s", "--against", "HEAD"), "only sources can"),
    ):
        status, _, err = audit(*arguments)
        assert status == 4
        assert said in err
    git("init", "-q")
    git("add", "include")
    git("commit", "-qm", "one")
    status, _, err = audit("scale.hip", "--arch", "gfx942", "--options=-Iinclude -DFACTOR=", "--against", "HEAD")
    assert status == 3
    assert line(err, "revision").endswith("): scale.hip does not exist in that revision")
