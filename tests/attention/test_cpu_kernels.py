"""The native kernels of cpu-flash: what the contract's own tests cannot see from outside."""

import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

import rocattn
from rocattn.backends import BACKENDS, cpu_flash
from rocattn.config import AttentionConfig
from rocattn.errors import SettingError
from rocattn.sources import kernel_root
from rocattn.toolchain.cpu_library import SOURCES
from rocattn.toolchain.host import compile_host, host_isa
from rocattn_profiling.workloads.inputs import make_inputs, numpy_dtype

from ..host_compilers import building_with, each_compiler
from .builds import neon, sanitized
from .random_problems import DTYPES, judged, random_problem

ROOT = Path(__file__).resolve().parents[2]
EPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

pytestmark = pytest.mark.usefixtures("cpu_flash")


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", range(0, 120, 15))
def test_random_problems_are_as_exact_as_a_naive_program(first, dtype, direction):
    """The project's rule holds for all options, strides and masks; NaN around buffers is not read, nor changed."""
    for seed in range(first, first + 15):
        config, inputs = random_problem(seed, dtype, direction)
        check, intact = judged(config, inputs, BACKENDS.get("cpu-flash"))
        assert check.ok, f"seed {seed}, {config.label}: {check}"
        assert intact, f"seed {seed}, {config.label}: something beside the results was written"


def solve(dtype="float32", seed=5):
    """Forward and backward of problems on every path: tiles, shares, split keys, decode, all together as bytes."""
    shapes = [
        (1, 4, 4, 257, 257, 64), (2, 8, 2, 130, 300, 80), (1, 8, 2, 1, 3000, 128), (1, 2, 1, 70, 3000, 64),
        (1, 3, 1, 3, 700, 20), (2, 32, 8, 1, 1100, 128), (1, 8, 8, 2, 1500, 64),
        (1, 1, 1, 128, 200, 48), (1, 3, 1, 33, 90, 96),
    ]  # fmt: skip
    found = []
    for batch, heads, kv_heads, seq_q, seq_k, dim in shapes:
        rng = np.random.default_rng(seed)
        q, k, v = (
            rng.standard_normal((batch, n, h, dim)).astype(numpy_dtype(dtype))
            for n, h in ((seq_q, heads), (seq_k, kv_heads), (seq_k, kv_heads))
        )
        out, lse = rocattn.attention(q, k, v, causal=True, return_lse=True, backend="cpu-flash")
        found += [out, lse, *rocattn.attention_backward(out, q, k, v, out, lse, causal=True, backend="cpu-flash")]
    return b"".join(array.tobytes() for array in found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_the_number_of_threads(dtype, monkeypatch):
    """1, 2, 3, 7 and 33 threads give the same bytes, forward and backward."""
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "1")
    alone = solve(dtype)
    for count in (2, 3, 7, 33):
        monkeypatch.setenv("ROCATTN_NUM_THREADS", str(count))
        assert solve(dtype) == alone, f"{count} threads"


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_of_a_long_cache_keeps_the_rule(dtype, layout):
    """What streams from memory: several ranges of keys, a last block that is not full, 1 to 8 rows a KV head."""
    for heads, kv_heads, seq_q in ((8, 8, 1), (16, 8, 1), (32, 8, 1), (12, 4, 1), (8, 1, 1), (6, 3, 3)):
        config = AttentionConfig(
            batch=1, num_heads=heads, num_kv_heads=kv_heads, seq_q=seq_q, seq_k=1357, head_dim=128, dtype=dtype,
            layout=layout, causal=True, sinks=True, return_lse=True,
        )  # fmt: skip
        check, intact = judged(config, make_inputs(config, seed=3), BACKENDS.get("cpu-flash"))
        assert check.ok, f"{config.label}: {check}"
        assert intact, f"{config.label}: something beside the results was written"


def test_addresses_are_those_of_the_array_interface():
    """Also for views that start later, run backwards or hold nothing."""
    base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    for array in (base, base[1:, 2:], base[::-1], base[:0], np.broadcast_to(base[0, 0], (7, 5)), base[..., 3]):
        assert cpu_flash.address(array) == array.__array_interface__["data"][0]


def test_several_python_threads_share_the_pool(monkeypatch):
    """Calls from four threads at once give what one call gives."""
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "3")
    alone, found = solve(), []
    workers = [threading.Thread(target=lambda: found.append(solve())) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [alone] * 4


def test_threads_woken_for_nothing_change_nothing(monkeypatch):
    """Woken before, between and beside jobs, asleep or not, they compute the same, and then sleep again."""
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "3")
    backend, alone, stop = BACKENDS.get("cpu-flash"), solve(), threading.Event()

    def keep_waking():  # without a pause it would mostly wait for the interpreter's lock, and make others wait
        while not stop.wait(2e-5):
            backend.expect(1 << 30)

    waker = threading.Thread(target=keep_waking)
    waker.start()
    try:
        assert [solve() for _ in range(3)] == [alone] * 3
    finally:
        stop.set()
        waker.join()
    for pause in (0.0, 0.02):
        time.sleep(pause)
        backend.expect(1 << 30)
        assert solve() == alone
    time.sleep(0.05)
    backend.expect(1 << 30)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.05


def test_a_call_wakes_threads_only_for_work_that_is_theirs(monkeypatch):
    """Not before the library is open, nor for one thread or little K."""
    told = []
    library = types.SimpleNamespace(rocattn_cpu_rouse=told.append)
    backend = cpu_flash.CpuFlashBackend()
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "3")
    backend.expect(1 << 30)
    monkeypatch.setattr(backend, "_opened", library)
    backend.expect(1 << 10)
    assert told == []
    backend.expect(1 << 30)
    assert told == [3]
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "1")
    backend.expect(1 << 30)
    assert told == [3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(monkeypatch):
    """Forked while another thread computes, the child computes the same, and so does the parent after it."""
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "3")
    alone, stop = solve(), threading.Event()

    def keep_busy():
        while not stop.is_set():
            solve()

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for _ in range(3):
            child = os.fork()
            if child == 0:
                os._exit(0 if solve() == alone else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        busy.join()
    assert solve() == alone


@pytest.mark.parametrize(("team", "borrows"), [(5, True), (1, False)])
def test_beside_pytorch_its_threads_are_used(team, borrows, tmp_path):
    """A team that is large enough is taken whole, and never by a forked child; the results stay the same."""
    runtime = tmp_path / "libopenmp.so"
    runtime.write_bytes(compile_host([Path(__file__).parent / "builds" / "openmp_standin.cpp"]))
    script = f"""
import ctypes, os, sys, types
from tests.attention.test_cpu_kernels import solve
os.environ["ROCATTN_NUM_THREADS"] = "1"
sys.modules["torch"] = types.ModuleType("torch")  # its import has begun: no runtime yet
alone = solve()
os.environ["ROCATTN_NUM_THREADS"] = "3"
runtime = ctypes.CDLL({str(runtime)!r}, ctypes.RTLD_GLOBAL)
size, calls, entered = (ctypes.c_int32.in_dll(runtime, name) for name in ("size", "calls", "entered"))
size.value = {team}
sys.modules["torch"].get_num_threads = lambda: size.value
threads = len(os.listdir("/proc/self/task"))
assert solve() == alone
print(calls.value > 0, calls.value * size.value == entered.value, len(os.listdir("/proc/self/task")) == threads)
before = calls.value
child = os.fork()
if child == 0:
    os._exit(0 if solve() == alone and calls.value == before else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Threads of its own are started if no others are there.
    assert done.stdout.split() == [str(borrows), "True", str(borrows)]


@pytest.mark.parametrize("seq_q", [1, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_keys_do_not_leak(dtype, seq_q):
    """NaN and inf in K and V behind causal, window, bool mask and a -inf mask change nothing."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, n, 32)).astype(numpy_dtype(dtype)) for n in (seq_q, 150, 150))
    mask = np.ones((1, 1, 1, 150), bool)
    mask[..., [3, 77, 140]] = False
    spoiled = [x.copy() for x in (k, v)]
    for x in spoiled:
        x[:, :, 3], x[:, :, 77], x[:, :, 140] = np.nan, np.inf, -np.inf
    for hidden in (mask, np.where(mask, 0, -np.inf).astype(np.float32)):
        options = {"layout": "BHSD", "causal": True, "window": (90, 0), "mask": hidden, "backend": "cpu-flash"}
        clean = rocattn.attention(q, k, v, return_lse=True, **options)
        found = rocattn.attention(q, *spoiled, return_lse=True, **options)
        for mine, theirs in zip(found, clean, strict=True):
            # Pairs of keys and the matrix unit sum in another order than the vectors that tiles with NaN are left to.
            if dtype == "bfloat16" or (host_isa() == "amx" and seq_q > 1):
                near = EPS[dtype] * (4 if dtype == "float32" else 2)  # fp32: sums of up to 91 keys
                np.testing.assert_allclose(mine.astype(np.float32), theirs.astype(np.float32), rtol=near, atol=near)
            else:
                np.testing.assert_array_equal(mine, theirs)
        for mine, theirs in zip(
            rocattn.attention_backward(q, q, *spoiled, *found, **options),
            rocattn.attention_backward(q, q, k, v, *clean, **options), strict=True,
        ):  # fmt: skip
            assert np.isfinite(mine.astype(np.float32)).all()
            near = 8 * EPS[dtype]
            np.testing.assert_allclose(mine.astype(np.float32), theirs.astype(np.float32), rtol=near, atol=near)


def test_a_finite_mask_pushes_far_but_does_not_hide():
    """A row masked with finfo.min everywhere is uniform, as a program that adds the mask has it."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, n, 16)).astype(np.float32) for n in (20, 30, 30))
    mask = np.full((1, 1, 1, 30), np.finfo(np.float32).min, np.float32)
    out, lse = rocattn.attention(q, k, v, mask=mask, layout="BHSD", return_lse=True, backend="cpu-flash")
    np.testing.assert_allclose(out, np.broadcast_to(v.mean(axis=2, keepdims=True), out.shape), atol=1e-6)
    assert (lse == np.finfo(np.float32).min).all()


@pytest.mark.parametrize("value", [-2.4e38, -3e38, float(np.finfo(np.float32).min)], ids=str)
@pytest.mark.parametrize("seq_q", [1, 40])
def test_the_lse_of_a_row_pushed_far_is_its_mask(seq_q, value):
    """Values whose multiple by log2(e) is beyond float32 keep their order and their LSE; gradients stay finite."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (seq_q, 30, 30))
    mask = np.full((1, 1, 1, 30), value, np.float32)
    options = {"mask": mask, "layout": "BHSD", "backend": "cpu-flash"}
    _, lse = rocattn.attention(q, k, v, return_lse=True, **options)
    np.testing.assert_allclose(lse, np.float32(value), rtol=4 * EPS["float32"])
    mask[..., 7] = np.float32(value) * np.float32(0.9999)  # a little less far: it takes the whole row
    out, lse = rocattn.attention(q, k, v, return_lse=True, **options)
    np.testing.assert_array_equal(out, np.broadcast_to(v[:, :, 7:8], out.shape))
    for gradient in rocattn.attention_backward(q, q, k, v, out, lse, **options):
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [257, 576])
def test_wide_heads(dim, dtype):
    """D up to 576 and more (multi-head latent attention) with another Dv."""
    config = AttentionConfig(
        batch=1, num_heads=2, num_kv_heads=1, seq_q=70, seq_k=90, head_dim=dim, head_dim_v=130, causal=True, dtype=dtype
    )
    check, intact = judged(config, make_inputs(config), BACKENDS.get("cpu-flash"))
    assert check.ok, check
    assert intact


STREAMS = [
    {"num_heads": 32, "num_kv_heads": 8, "seq_k": 997, "head_dim": 128},
    {"num_heads": 16, "num_kv_heads": 4, "seq_k": 1500, "head_dim": 64, "head_dim_v": 192, "causal": True, "seq_q": 1},
    {"num_heads": 16, "num_kv_heads": 8, "seq_k": 1003, "head_dim": 96, "seq_q": 2, "window": (700, 0)},
    {"num_heads": 12, "num_kv_heads": 3, "seq_k": 1999, "head_dim": 128, "mask": "bool", "mask_shape": (1, 1, 1, 1999)},
    {"num_heads": 8, "num_kv_heads": 2, "seq_k": 2049, "head_dim": 128, "layout": "BHSD", "sinks": True},
    {"num_heads": 40, "num_kv_heads": 8, "seq_k": 901, "head_dim": 128, "alibi": True, "softcap": 20.0},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", STREAMS, ids=lambda sizes: f"h{sizes['num_heads']}x{sizes['num_kv_heads']}")
def test_decode_from_memory_is_as_exact_as_from_cache(sizes, dtype):
    """K and V of more than a MiB go through tiles of their own, and what these leave over: heads, keys, columns."""
    config = AttentionConfig(**{"batch": 1, "seq_q": 1, "dtype": dtype} | sizes)
    assert config.kv_bytes > 1 << 20
    check, intact = judged(config, make_inputs(config), BACKENDS.get("cpu-flash"))
    assert check.ok, check
    assert intact


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_at_hidden_keys_does_not_leak_from_memory(dtype):
    """Neither through the tiles' ends nor through what is fetched ahead."""
    rng = np.random.default_rng(3)
    q, k, v = (
        rng.standard_normal((1, n, h, 128)).astype(numpy_dtype(dtype)) for n, h in ((2, 8), (2000, 2), (2000, 2))
    )
    want = rocattn.attention(q[:, :1], k[:, :1999], v[:, :1999], backend="cpu-flash").astype(np.float32)
    k[:, 1999:] = v[:, 1999:] = np.nan
    out = rocattn.attention(q, k, v, causal=True, backend="cpu-flash")
    np.testing.assert_allclose(out[:, :1].astype(np.float32), want, rtol=0, atol=EPS[dtype] / 8)
    assert np.isnan(out[:, 1:].astype(np.float32)).all()


@each_compiler
@pytest.mark.parametrize("isa", ["own", "optimized", "portable", "avx2", "avx512", "avx512bf16", "amx"])
def test_every_compiler_and_instruction_set_keeps_the_rule(isa, compiler, tmp_path, monkeypatch):
    """Random problems with each library this CPU can run (in a process of its own: one library a process).

    Unoptimised, which compiles ten times as fast; all other tests take the optimised one of this CPU.
    """
    if isa not in {"own", "optimized"}:
        monkeypatch.setenv("ROCATTN_CPU_ISA", isa)
    try:
        chosen = host_isa.__wrapped__()
    except SettingError as error:  # of one that this CPU lacks
        pytest.skip(str(error))
    library = tmp_path / "kernels.so"
    sources = [kernel_root() / "cpu" / name for name in SOURCES]
    with building_with(compiler, *([] if isa == "optimized" else ["-O0"])):
        library.write_bytes(compile_host(sources, isa=chosen))
    done = subprocess.run(
        [sys.executable, "-m", "tests.attention.random_problems", "--problems", "3", "--seed", "5001"],
        env=os.environ | {"ROCATTN_CPU_LIBRARY": str(library)}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def three(dtype):
    """Return q of 70 rows, k and v of 200."""
    rng = np.random.default_rng(8)
    return [rng.standard_normal((1, 2, n, 40)).astype(numpy_dtype(dtype)) for n in (70, 200, 200)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1e-39, 2.0**-101, 2.0**127, 3.3e38, -np.inf, np.nan])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_inexact_element_affects_only_its_row_head_or_feature(where, value, dtype):
    """In Q its row, in K its head, in V its feature: the rest is as if it were 1, whatever unit computes it."""
    clean = three(dtype)
    clean[where][0, 1, 33, 7] = 1
    spoiled = [x.copy() for x in clean]
    with np.errstate(over="ignore"):  # inf in float16
        spoiled[where][0, 1, 33, 7] = value
    same = np.ones((1, 2, 70, 40), bool)
    same[0, 1, (33, slice(None), slice(None))[where], 7 if where == 2 else slice(None)] = False
    found, other = (
        rocattn.attention(*inputs, layout="BHSD", backend="cpu-flash").astype(np.float32) for inputs in (spoiled, clean)
    )
    near = EPS[dtype] * 4
    np.testing.assert_allclose(found[same], other[same], rtol=near, atol=near)
    if abs(value) < 1:  # what it touches is finite: the rule itself
        wanted = rocattn.attention(*(x.astype(np.float64) for x in spoiled), layout="BHSD", backend="cpu")
        np.testing.assert_allclose(found, wanted, rtol=near, atol=near)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [2.0**-101, 2.0**127, np.nan])
@pytest.mark.parametrize("where", ["dout", "lse"])
def test_inexact_row_leaves_other_gradients_unchanged(where, value, dtype):
    """Its own dq is what it must be, and so are dk and dv, in which it takes part; the rest is that of a clean row."""
    q, k, v = three(dtype)
    out, lse = rocattn.attention(q, k, v, layout="BHSD", return_lse=True, backend="cpu-flash")
    dout = q[..., ::-1].copy()
    dout[0, 1, 33, 7] = 0
    clean = rocattn.attention_backward(dout, q, k, v, out, lse, layout="BHSD", backend="cpu-flash")
    with np.errstate(over="ignore"):
        (dout if where == "dout" else lse[..., None])[0, 1, 33, 7 if where == "dout" else 0] = value
    found = rocattn.attention_backward(dout, q, k, v, out, lse, layout="BHSD", backend="cpu-flash")
    near = EPS[dtype] * 8
    tiny = where == "dout" and abs(value) < 1
    for name, mine, theirs in zip(("dq", "dk", "dv"), found, clean, strict=True):
        same = np.ones(mine.shape, bool)
        if not tiny:
            same[0, 1, 33 if name == "dq" else slice(None)] = False
        wanted = theirs[same].astype(np.float32)
        np.testing.assert_allclose(mine[same].astype(np.float32), wanted, rtol=near, atol=near, err_msg=name)
        if np.isnan(value):
            assert np.isnan(mine[~same].astype(np.float32)).any(), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("powers", [(112, -112, 0), (-112, 112, 0), (0, 0, -118), (0, 0, 118)])
def test_far_exponents_are_as_exact_as_near_ones(powers, dtype):
    """Q, K and V times powers of two whose parts would not all be normal numbers: the same result, times that of V."""
    near = three(dtype)
    far = [
        (x.astype(np.float64) * 2.0**power).astype(numpy_dtype(dtype)) for x, power in zip(near, powers, strict=True)
    ]
    out, scaled = (
        rocattn.attention(*inputs, layout="BHSD", backend="cpu-flash").astype(np.float64) for inputs in (near, far)
    )
    np.testing.assert_allclose(scaled / 2.0 ** powers[2], out, rtol=0, atol=EPS[dtype] * 4)


@pytest.mark.parametrize("dim", [32, 47, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_subnormal_outputs_are_kept(dtype, dim):
    """A quarter of a smallest normal value is what it is, not 0."""
    q = np.zeros((1, 40, 1, dim), numpy_dtype(dtype))
    k = np.ones((1, 4, 1, dim), numpy_dtype(dtype))
    v = np.zeros((1, 4, 1, dim), numpy_dtype(dtype))
    v[:, 1, :, ::3] = 1.5 * 2.0**-126
    out = rocattn.attention(q, k, v, backend="cpu-flash").astype(np.float64)
    np.testing.assert_array_equal(out, np.broadcast_to(v[:, 1:2].astype(np.float64) / 4, out.shape))


@pytest.mark.skipif(host_isa() != "amx", reason="this CPU has no matrix unit")
@pytest.mark.parametrize("stack", [0, 8192])
def test_vectors_are_used_when_linux_refuses_amx(stack):
    """As Linux does where a signal stack is too small for its registers: the results keep the rule."""
    script = f"""
import ctypes, sys
class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
if {stack}:
    room = ctypes.create_string_buffer({stack})
    stack = Stack(ctypes.addressof(room), 0, {stack})
    assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
from rocattn.backends.cpu_flash import load_library
from tests.attention.random_problems import main
print(load_library().rocattn_cpu_isa() % 1000)
sys.argv[1:] = ["--problems", "4", "--seed", "6000"]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == ("0" if stack else "2")


@pytest.mark.slow
def test_sanitizers_find_nothing():
    """AddressSanitizer and UBSan keep silent over random problems, every path and three threads.

    With AVX-512 one build has both, the vectors and a stand-in for the matrix unit.
    """
    missing = sanitized.missing()
    if missing:
        pytest.skip(missing)
    isa = "amx" if host_isa().startswith(("avx512", "amx")) else host_isa()
    done = subprocess.run(
        [sys.executable, sanitized.__file__, "--isa", isa, "--problems", "8"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_neon_keeps_the_rule():
    """Random problems with the library for aarch64, in an emulator: right, not timed."""
    if missing := neon.missing():
        pytest.skip(missing)
    command = [sys.executable, "-m", "tests.attention.builds.neon", "--problems", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
