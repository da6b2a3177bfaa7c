"""Calls on device tensors that are like one before: little Python, and nothing is missed that a check would see."""

from .test_runtime import PRELUDE as PLANS
from .test_runtime import outcome
from .test_tensors import PRELUDE, TORCH

COUNTING = r"""
ours = rocattn.__file__.rpartition("/")[0]
def counted(action):
    '''Python and C functions that the product's code calls, or that are the product's.'''
    for _ in range(2):
        action()
    found = [0]
    def note(frame, event, _):
        found[0] += event in {"call", "c_call"} and frame.f_code.co_filename.startswith(ours)
    sys.setprofile(note)
    action()
    sys.setprofile(None)
    return found[0]
"""


def test_a_steady_call_is_little_python(hostgpu):
    """Prefill and decode with a workspace, of torch, ours and by DLPack; the pool keeps its blocks, as on a GPU."""
    code = """
runtime.pool.exact, found = False, {}
arrays = rocattn.gpu.tensors.DeviceArray
for rows, keys in ((19, 23), (1, 600)):
    q, k, v = normal(1, rows, 4, 32), normal(1, keys, 2, 32), normal(1, keys, 2, 32)
    own = [arrays(runtime, x.shape, "float16", 0, 0) for x in (q, k, v)]
    for to, x in zip(own, (q, k, v)):
        runtime.hip.copy_to_device(to.address, np.ascontiguousarray(x).ctypes.data, x.nbytes, 0)
    given = {"torch": [tensor(x) for x in (q, k, v)], "ours": own, "DLPack": [Producer(x) for x in (q, k, v)]}
    for name, tensors in given.items():
        found[f"{name} {rows}"] = counted(lambda: rocattn.attention(*tensors))
print(json.dumps(found))
"""
    found = hostgpu(PRELUDE + TORCH + COUNTING + code)
    assert len(found) == 6
    most = {"torch": 40, "ours": 40, "DLPack": 64}  # foreign arrays must be exported anew
    assert {name: count for name, count in found.items() if not 0 < count <= most[name.split()[0]]} == {}


# Each attempt follows a plain call of the same shapes; "fresh" makes it where nothing is kept.
ATTEMPTS = r"""
from rocattn import steady
def said(action):
    try:
        result = action()
    except (RocattnError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    results = result if isinstance(result, tuple) else (result,)
    return [host(x).astype(float).tobytes().hex() for x in results]
def view(made, strides=None, offset=0, **changes):
    other = Tensor.__new__(changes.pop("cls", Tensor))
    other.shape, other.dtype, other.steps = changes.pop("shape", made.shape), made.dtype, strides or made.steps
    other.memory = made.memory + offset
    vars(other).update(changes)
    return other
class Learnt(Tensor):
    requires_grad = True
Learnt.__module__ = "torch"
wide = tensor(normal(2, 19 * 4 * 32 + 64))
tq, tk, tv = tensor(q), tensor(k), tensor(v)
square = tensor(normal(2, 19, 4, 32))
mask = Tensor((2, 1, 19, 23), torch.bool)
ones = np.ones((2, 1, 19, 23), bool)
ones[:, :, :, 5:9] = False
runtime.hip.copy_to_device(mask.memory, ones.ctypes.data, ones.nbytes, 0)
added = tensor(np.where(ones, 0, -3).astype(np.float32))
"""


def test_what_differs_is_looked_at_anew(hostgpu):
    """Right after a plain call of the same shapes, each other call gives what it gives where nothing is kept."""
    code = """
def attend(*tensors, **options):
    return lambda: rocattn.attention(*(tensors or (tq, tk, tv)), **options)
step = (19 * 4 * 32 + 64, 4 * 32, 32, 1)
attempts = {
    "plain": attend(),
    "misaligned": attend(view(wide, step, 2, shape=q.shape), tk, tv),
    "rows turned": attend(view(wide, (19 * 4 * 32 + 64, 32, 19 * 32, 1), shape=q.shape), tk, tv),
    "one row for all": attend(view(tq, (0, 128, 32, 1)), tk, tv),
    "strided last axis": attend(view(wide, (2432, 128, 32, 2), shape=q.shape), tk, tv),
    "another dtype": attend(view(tq, dtype=torch.float32), tk, tv),
    "another device": attend(tq, view(tk, device=Device("cuda", 1)), tv),
    "no device": attend(view(tq, device=Device("cpu", None)), tk, tv),
    "a gradient": attend(view(tq, cls=Learnt), tk, tv), "one later": attend(tq, view(tk, requires_grad=True), tv),
    "fewer keys": attend(tq, view(tk, shape=(2, 22, 2, 32)), view(tv, shape=(2, 22, 2, 32))),
    "keys and values disagree": attend(tq, view(tk, shape=(2, 22, 2, 32)), tv),
    "numpy keys": attend(tq, k, tv),
    "causal": attend(causal=True), "causal by number": attend(causal=1), "not causal by number": attend(causal=0),
    "window": attend(window=(3, 2)), "window of floats": attend(window=(3.0, 2)), "a list": attend(window=[3, 2]),
    "window by flags": attend(window=(True, 2)), "window of ones": attend(window=(1, 2)),
    "scale": attend(scale=1.0), "scale by flag": attend(scale=True), "scale by number": attend(scale=1),
    "softcap": attend(softcap=2.0), "LSE": attend(return_lse=True), "LSE by number": attend(return_lse=1),
    "layout": attend(square, square, square, layout="BHSD"), "square": attend(square, square, square),
    "heads": attend(num_heads=4, num_kv_heads=2), "wrong heads": attend(num_heads=2),
    "heads by float": attend(num_heads=4.0, num_kv_heads=2),
    "out_dtype": attend(out_dtype="float16"), "wrong out_dtype": attend(out_dtype="float32"),
    "mask": attend(mask=mask), "mask of a row": attend(mask=view(mask, shape=(2, 1, 1, 23), steps=(437, 437, 23, 1))),
    "added mask": attend(mask=added), "mask and causal": attend(mask=mask, causal=True),
    "sinks": attend(sinks=tensor(np.ones(4, np.float32))),
    "slopes as sinks": attend(alibi_slopes=tensor(np.ones(4, np.float32))),
    "sinks of 16 bits": attend(sinks=tensor(np.ones(4, np.float16))),
    "seed without dropout": attend(dropout_seed=7), "wrong seed": attend(dropout_seed=-7),
    "dropout": attend(dropout_p=0.5, dropout_seed=7), "another seed": attend(dropout_p=0.5, dropout_seed=8),
    "backend": attend(backend="gpu"), "another backend": attend(backend="cpu"), "backends": attend(backend=["gpu"]),
}
found = {}
for name, attempt in attempts.items():
    for options in ({}, {"causal": True}, {"scale": 1.0}, {"window": (3, 2)}, {"window": (1, 2)}, {"mask": mask},
                    {"sinks": tensor(np.ones(4, np.float32))}):
        rocattn.attention(tq, tk, tv, **options)
    if len(found) == 0:
        seen = len(steady._KEPT)
    again = [said(attempt), said(attempt)]
    steady._KEPT.clear()
    fresh = said(attempt)
    found[name] = [again == [fresh, fresh], fresh[:60] if isinstance(fresh, str) else "computed"]
print(json.dumps([found, seen]))
"""
    found, kept = hostgpu(PRELUDE + TORCH + ATTEMPTS + code)
    assert kept == 7
    assert {name: text for name, (same, text) in found.items() if not same} == {}
    refused = {name for name, (_, text) in found.items() if text != "computed"}
    assert refused == {
        "strided last axis", "another dtype", "another device", "no device", "a gradient", "one later",
        "keys and values disagree", "numpy keys", "causal by number", "not causal by number", "window of floats",
        "scale by flag", "LSE by number", "wrong heads", "heads by float", "wrong out_dtype", "sinks of 16 bits",
        "slopes as sinks", "wrong seed", "another backend", "backends",
    }  # fmt: skip


def test_what_is_set_later_is_obeyed(hostgpu):
    """The variable, the attribute, poison, and backends that go, come back, or are replaced by another of the name."""
    code = """
import os
paths, real = [], gpu.prepare
def prepare(*args, **options):
    prepared = real(*args, **options)
    paths.append(prepared.plan.path)
    return prepared
gpu.prepare = prepare
plain = lambda: rocattn.attention(tq, tk, tv)
def now(action=plain):
    paths.clear()
    result = said(action)
    return result if isinstance(result, str) else paths[:]
found = {"first": now(), "again": now()}
os.environ["ROCATTN_USE_FLASH_ATTENTION"] = "0"
found["variable"] = [now(), now()]
os.environ["ROCATTN_USE_FLASH_ATTENTION"] = "perhaps"
found["wrong"] = [now(), now()]
del os.environ["ROCATTN_USE_FLASH_ATTENTION"]
found["unset"] = now()
gpu.use_flash_attention = False
found["attribute"] = [now(), now()]
gpu.use_flash_attention = True
found["back"] = [now(), now()]
gpu.flash_choice = None
found["as at first"] = now()
BACKENDS.unregister("gpu")
found["gone"] = now()
class Other(rocattn.backends.gpu.GpuBackend):
    def supports(self, config):
        return rocattn.Support(ok=False, reason="another backend")
BACKENDS.register(Other())
found["another"] = now()
BACKENDS.unregister("gpu")
BACKENDS.register(gpu)
found["returned"] = now()
class Heads:
    count = 4
    def __index__(self):
        return self.count
heads = Heads()
with_heads = lambda: rocattn.attention(tq, tk, tv, num_heads=heads, num_kv_heads=2)
found["heads"] = [now(with_heads), now(with_heads)]
heads.count = 3
found["other heads"] = now(with_heads)
filled, poison = [], runtime.hip.poison
runtime.hip.poison = lambda *args: (filled.append(args[1]), poison(*args))
runtime.poison = True
found["poison"] = [now(), filled]
print(json.dumps(found))
"""
    found = hostgpu(PRELUDE + TORCH + ATTEMPTS + code)
    wrong = "SettingError: ROCATTN_USE_FLASH_ATTENTION is 'perhaps': set it to 1 or 0, or unset it"
    assert found.pop("gone").startswith("NoBackendError: no backend is named 'gpu'")
    assert found.pop("another").endswith("another backend")
    assert found.pop("other heads") == "ConfigError: q has 4 heads (shape (2, 19, 4, 32), BSHD), not the 3 given"
    assert found == {
        "first": ["flash"], "again": [], "variable": [["standard"], []], "wrong": [wrong, wrong], "unset": [],
        "attribute": [["standard"], []], "back": [["flash"], []], "as at first": [], "returned": [],
        "heads": [["flash"], ["flash"]],
        "poison": [[], [2 * 19 * 4 * 32 * 2]],
    }  # fmt: skip


def test_what_is_kept_is_bounded_and_holds_no_tensor(hostgpu):
    """Tensors and outputs go when their owners let them; a class is all that a key holds of them."""
    code = """
import weakref
steady._MOST_KEPT = 5
gone = []
for keys in range(1, 13):
    tensors = tensor(q), view(tk, shape=(2, keys, 2, 32)), view(tv, shape=(2, keys, 2, 32))
    outputs = rocattn.attention(*tensors, return_lse=True), rocattn.attention(*tensors, return_lse=True)
    gone += [weakref.ref(x) for x in (*tensors, *outputs[0], *outputs[1])]
    assert 0 < len(steady._KEPT) <= 5
    del tensors, outputs
gc.collect()
print(json.dumps([len(gone), sum(ref() is not None for ref in gone)]))
"""
    assert hostgpu(PRELUDE + TORCH + ATTEMPTS + code) == [84, 0]


def test_streams_and_threads_share_what_is_kept(hostgpu):
    """Four threads, each with a stream of its own, gradients among the calls: every bit as alone."""
    code = """
from concurrent.futures import ThreadPoolExecutor
import threading
local = threading.local()
torch.cuda.current_stream = lambda index: types.SimpleNamespace(cuda_stream=local.stream)
tensors_stream = local.stream = runtime.hip.stream_create()
dout = tensor(normal(2, 19, 4, 32))
def work(turn):
    if turn % 3 == 0:
        return rocattn.attention(tq, tk, tv, causal=turn % 2 == 0, return_lse=True)
    if turn % 3 == 1:
        return (rocattn.attention(tq, tk, tv, window=(turn % 5, 4)),)
    return rocattn.attention_backward(dout, tq, tk, tv, *alone[0], causal=True)
def bits(results):
    runtime.hip.stream_synchronize(local.stream)
    return [to_host(x.memory, x.shape, np.uint8 if x.nbytes < 1 else f"u{x.nbytes // int(np.prod(x.shape))}").tobytes()
            for x in results]
alone = {0: work(0)}
right = {turn: bits(work(turn)) for turn in range(30)}
def thread(_):
    local.stream = runtime.hip.stream_create()
    return sum(bits(work(turn % 30)) != right[turn % 30] for turn in range(60))
with ThreadPoolExecutor(4) as threads:
    print(json.dumps([sum(threads.map(thread, range(4))), len(steady._KEPT)]))
"""
    wrong, kept = hostgpu(PRELUDE + TORCH + ATTEMPTS + code)
    assert wrong == 0
    assert kept == 8


def test_a_plan_runs_on_its_device_and_the_thread_keeps_its_own(stub):
    """With two devices the current one is left as it was, also where a launch is refused."""
    code = """
second = open_runtime(1)
prepared = PreparedPlan(second, make(launches=2))
first = open_runtime(0)
log()
where = prepared._launcher
where.queue(7, [4096, 8192, 512])
ran = log()
os.environ["STUB_LAUNCH"] = "9"
import ctypes
ctypes.CDLL(None).setenv(b"STUB_LAUNCH", b"9", 1)
try:
    where.queue(7, [4096, 8192, 512])
except GpuError as error:
    said = str(error)
show(ran=[entry.split(" ")[:2] for entry in ran.split(";")[:-1]], refused=log().split(";")[-2], said=said)
"""
    found = outcome(stub(PLANS + code, STUB_ARCH="gfx1100 gfx1100"))
    assert [entry[0] for entry in found["ran"]] == ["device", "scale_rows", "scale_rows", "device"]
    assert [entry[1] for entry in found["ran"] if entry[0] == "device"] == ["1", "0"]
    assert found["refused"] == "device 0"
    assert found["said"] == "rows: hipModuleLaunchKernel gave hipErrorInvalidConfiguration"


def test_a_forked_child_keeps_nothing(hostgpu):
    """Its first call of a kind is refused as that of a process without the kept ones."""
    code = """
import os
rocattn.attention(tq, tk, tv)
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, str(said(lambda: rocattn.attention(tq, tk, tv)))[:200].encode())
    os._exit(0)
os.wait()
print(json.dumps([os.read(reading, 4096).decode(), isinstance(said(lambda: rocattn.attention(tq, tk, tv)), list)]))
"""
    text, parent = hostgpu(PRELUDE + TORCH + ATTEMPTS + code)
    assert "HIP was initialized in process" in text
    assert parent
