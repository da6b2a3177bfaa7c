"""Device tensors in and out: DLPack with numpy as producer and consumer, torch with a double, on the stand-in GPU."""

import re

import numpy as np
import pytest

import rocattn
from rocattn.errors import ConfigError, NoBackendError

# Producer and consumer of DLPack capsules that know nothing of ours: numpy's, told that the memory is a ROCm device's.
PRELUDE = r"""
import collections, ctypes, gc, json, sys, types
import numpy as np
import rocattn
from rocattn import BACKENDS
from rocattn.errors import RocattnError
from rocattn.gpu import tensors
gpu = BACKENDS.get("gpu")
runtime = gpu.runtime()
signature = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
pointer = signature(("PyCapsule_GetPointer", ctypes.pythonapi))

def patched(capsule, device):
    ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8).value = device
    return capsule

class Producer:
    '''A tensor in the stand-in's memory, with a padded last axis, as some other library would hold it.'''
    def __init__(self, host, device=10, step=1):
        wide = np.zeros((*host.shape[:-1], host.shape[-1] * step + 3), host.dtype)
        wide[..., : host.shape[-1] * step : step] = host
        self.address = runtime.hip.malloc(wide.nbytes)
        runtime.hip.copy_to_device(self.address, wide.ctypes.data, wide.nbytes, 0)
        memory = (ctypes.c_ubyte * wide.nbytes).from_address(self.address)
        self.array = np.frombuffer(memory, host.dtype).reshape(wide.shape)[..., : host.shape[-1] * step : step]
        self.device, self.streams = device, []
    def __dlpack_device__(self):
        return self.device, 0
    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return patched(self.array.__dlpack__(), self.device)

class Consumer:
    '''What numpy may take: our capsule, said to be in host memory.'''
    def __init__(self, ours):
        self.ours = ours
    def __dlpack_device__(self):
        return 1, 0
    def __dlpack__(self, **_):
        return patched(self.ours.__dlpack__(), 1)

def to_host(address, shape, dtype):
    out = np.empty(shape, dtype)
    runtime.hip.copy_to_host(out.ctypes.data, address, out.nbytes, 0)
    runtime.hip.stream_synchronize(0)
    return out

rng = np.random.default_rng(3)
def normal(*shape):
    return rng.standard_normal(shape).astype(np.float16)
q, k, v = normal(2, 19, 4, 32), normal(2, 23, 2, 32), normal(2, 23, 2, 32)
def close(a, b):
    return bool(np.max(np.abs(a.astype(float) - b.astype(float)), initial=0) < 4e-3)
"""


def test_dlpack_tensors_are_computed_where_they_are(hostgpu):
    """Padded strides, options with data, LSE and gradients; nothing goes through the host, nothing is left behind."""
    code = """
slopes = np.array([[.5, .25, .125, .1]] * 2, np.float32)
sinks = np.array([0, 1, 2, 3], np.float32)
mask = rng.random((2, 1, 19, 23)) > .3
dq, dk, dv, dmask = Producer(q), Producer(k), Producer(v), Producer(mask)
# alibi and sinks must be contiguous: no padding
class Flat(Producer):
    def __init__(self, host):
        self.address = runtime.hip.malloc(host.nbytes)
        runtime.hip.copy_to_device(self.address, host.ctypes.data, host.nbytes, 0)
        memory = (ctypes.c_ubyte * host.nbytes).from_address(self.address)
        self.array = np.frombuffer(memory, host.dtype).reshape(host.shape)
        self.device, self.streams = 10, []
copies = []
real = runtime.hip.copy_to_device, runtime.hip.copy_to_host
runtime.hip.copy_to_device = lambda *args: (copies.append("up"), real[0](*args))
runtime.hip.copy_to_host = lambda *args: (copies.append("down"), real[1](*args))
given = dict(mask=dmask, alibi_slopes=Flat(slopes), sinks=Flat(sinks))
copies.clear()
out, lse = rocattn.attention(dq, dk, dv, return_lse=True, **given)
ours = dict(mask=mask, alibi_slopes=slopes, sinks=sinks)
expected, logs = rocattn.attention(q, k, v, return_lse=True, backend="cpu", **ours)
found = {"kind": type(out).__name__, "device": out.__dlpack_device__(), "shape": out.shape, "dtype": out.dtype,
         "copies": list(copies), "streams": dq.streams}
found["out"] = close(to_host(out.address, out.shape, np.float16), expected)
found["lse"] = bool(np.allclose(to_host(lse.address, lse.shape, np.float32), logs, atol=1e-4))
taken = np.from_dlpack(Consumer(out))
found["taken"] = [taken.shape, taken.ctypes.data == out.address]
dropped = out.__dlpack__()
del dropped
gc.collect()
found["exported"] = len(tensors._exported)
address, before = out.address, runtime.pool.current_bytes
del out
gc.collect()
found["held"] = before - runtime.pool.current_bytes
del taken
gc.collect()
found["freed"] = [before - runtime.pool.current_bytes, len(tensors._exported)]
del lse
gc.collect()
found["left"] = runtime.pool.current_bytes
print(json.dumps(found))
"""
    found = hostgpu(PRELUDE + code)
    assert found == {
        "kind": "DeviceArray", "device": [10, 0], "shape": [2, 19, 4, 32], "dtype": "float16", "copies": [],
        "streams": [0], "out": True, "lse": True, "taken": [[2, 19, 4, 32], True], "exported": 1, "held": 0,
        "freed": [2 * 19 * 4 * 32 * 2, 0], "left": 0,
    }  # fmt: skip


TORCH = r"""
torch = types.ModuleType("torch")
torch.version = types.SimpleNamespace(hip="7.2")
torch.cuda = types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=stream))
torch.is_grad_enabled = lambda: True
torch.__file__ = "/nowhere/torch/__init__.py"
class Dtype:
    def __init__(self, name):
        self.name = name
    def __str__(self):
        return f"torch.{self.name}"
torch.float16, torch.float32, torch.int32 = map(Dtype, ("float16", "float32", "int32"))
torch.uint8, torch.bool = map(Dtype, ("uint8", "bool"))
sys.modules["torch"] = torch
stream = runtime.hip.stream_create()

Device = collections.namedtuple("Device", "type index")
class Tensor:
    '''As much of torch.Tensor (ROCm build) as is used.'''
    requires_grad, device, is_cuda = False, Device("cuda", 0), True
    def __init__(self, shape, dtype, strides=None):
        self.shape, self.dtype = shape, dtype
        self.steps = strides or tuple(int(np.prod(shape[i + 1:])) for i in range(len(shape)))
        self.nbytes = int(np.prod(shape)) * {"float32": 4, "int32": 4, "uint8": 1, "bool": 1}.get(dtype.name, 2)
        self.memory = runtime.hip.malloc(max(1, self.nbytes))
    def data_ptr(self):
        return self.memory
    def stride(self):
        return self.steps
    def __bool__(self):
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
    def new_empty_strided(self, shape, strides, dtype):
        return Tensor(shape, dtype, strides)
Tensor.__module__ = "torch"

def tensor(host):
    made = Tensor(host.shape, torch.float16 if host.dtype == np.float16 else torch.float32)
    runtime.hip.copy_to_device(made.memory, host.ctypes.data, host.nbytes, 0)
    return made
def host(made):
    runtime.hip.stream_synchronize(stream)
    return to_host(made.memory, made.shape, np.float16 if made.dtype is torch.float16 else np.float32)
"""


def test_torch_tensors_give_torch_tensors_on_torchs_stream(hostgpu):
    """Forward and backward, allocated by torch, launched on its current stream, without a copy."""
    code = """
streams = []
real = runtime.hip.launch
runtime.hip.launch = lambda words: (streams.append(int.from_bytes(words[16:24], "little")), real(words))[1]
tq, tk, tv = tensor(q), tensor(k), tensor(v)
out, lse = rocattn.attention(tq, tk, tv, causal=True, return_lse=True)
expected, logs = rocattn.attention(q, k, v, causal=True, return_lse=True, backend="cpu")
found = {"kind": type(out) is Tensor and type(lse) is Tensor, "out": close(host(out), expected),
         "lse": bool(np.allclose(host(lse), logs, atol=1e-4)), "dtypes": [str(out.dtype), str(lse.dtype)]}
dout = normal(*out.shape)
grads = rocattn.attention_backward(tensor(dout), tq, tk, tv, out, lse, causal=True)
wanted = rocattn.attention_backward(dout, q, k, v, expected, logs, causal=True, backend="cpu")
found["gradients"] = [close(host(mine), exact) for mine, exact in zip(grads, wanted)]
found["stream"] = set(streams) == {stream}
found["memory"] = runtime.pool.current_bytes
print(json.dumps(found))
"""
    found = hostgpu(PRELUDE + TORCH + code)
    assert found == {
        "kind": True, "out": True, "lse": True, "dtypes": ["torch.float16", "torch.float32"],
        "gradients": [True, True, True], "stream": True, "memory": 0,
    }  # fmt: skip


def test_dropout_drops_what_it_drops_of_arrays(hostgpu):
    """Forward and backward, of torch and by DLPack; while a stream is captured its key cannot go up."""
    code = """
options = dict(dropout_p=0.4, dropout_seed=7, dropout_offset=1 << 40, causal=True)
expected, logs = rocattn.attention(q, k, v, return_lse=True, backend="cpu", **options)
dout = normal(*expected.shape)
wanted = rocattn.attention_backward(dout, q, k, v, expected, logs, backend="cpu", **options)
found = []
for make, read in ((tensor, host), (Producer, lambda x: to_host(x.address, x.shape, x.dtype))):
    arrays = [make(x) for x in (q, k, v)]
    out, lse = rocattn.attention(*arrays, return_lse=True, **options)
    grads = rocattn.attention_backward(make(dout), *arrays, out, lse, **options)
    found.append([close(read(x), want) for x, want in zip((out, *grads), (expected, *wanted), strict=True)])
arrays, hip = [tensor(x) for x in (q, k, v)], runtime.hip
hip.call("hipStreamBeginCapture", stream, hip._hip.hipStreamCaptureMode.hipStreamCaptureModeGlobal)
try:
    rocattn.attention(*arrays, **options)
except RocattnError as error:
    found.append(str(error))
hip.capture_end(stream)
del out, lse, grads
gc.collect()
print(json.dumps([*found, runtime.pool.current_bytes]))
"""
    found = hostgpu(PRELUDE + TORCH + code)
    assert found == [
        [True] * 4,
        [True] * 4,
        "dropout_p in a captured graph: each replay would drop the same weights",
        0,
    ]


def test_in_a_graph_of_torchs_workspaces_are_torchs(hostgpu):
    """Its allocator knows how long the graph lives; a decode step, which has workspaces, takes none from our pool."""
    code = """
q, k, v = normal(1, 1, 2, 32), normal(1, 512, 2, 32), normal(1, 512, 2, 32)
tensors = tensor(q), tensor(k), tensor(v)
rocattn.attention(*tensors)
hip = runtime.hip
hip.stream_synchronize(stream)
hip.call("hipStreamBeginCapture", stream, hip._hip.hipStreamCaptureMode.hipStreamCaptureModeGlobal)
out = rocattn.attention(*tensors)
ready = hip.graph_instantiate(hip.capture_end(stream))
hip.graph_launch(ready, stream)
print(json.dumps([close(host(out), rocattn.attention(q, k, v, backend="cpu")), runtime.pool.peak_bytes]))
"""
    assert hostgpu(PRELUDE + TORCH + code) == [True, 0]


def test_the_callers_current_device_stays(hostgpu):
    """With several GPUs, a call on tensors of one must not move what the caller allocates next to it."""
    code = """
current, real = [3], runtime.hip.call
def call(name, *arguments):
    if name == "hipSetDevice":
        current[0] = arguments[0]
    return current[0] if name in {"hipSetDevice", "hipGetDevice"} else real(name, *arguments)
runtime.hip.call = call
seen = []
for arrays in ((tensor(q), tensor(k), tensor(v)), (q, k, v)):
    rocattn.attention(*arrays, backend="gpu")
    seen.append(current[0])
print(json.dumps(seen))
"""
    assert hostgpu(PRELUDE + TORCH + code) == [3, 3]


def test_what_cannot_be_computed_in_place_is_refused(hostgpu):
    """Each refusal names the argument and what to do."""
    code = """
def refusal(action):
    try:
        action()
    except RocattnError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"
attend, good = rocattn.attention, (Producer(q), Producer(k), Producer(v))
found = {
    "cuda": refusal(lambda: attend(Producer(q, device=2), *good[1:])),
    "host": refusal(lambda: attend(Producer(q, device=1), *good[1:])),
    "strided": refusal(lambda: attend(Producer(q, step=2), *good[1:])),
    "mixed": refusal(lambda: attend(good[0], k, v)),
    "numpy first": refusal(lambda: attend(q, *good[1:])),
    "backend": refusal(lambda: attend(*good, backend="cpu")),
    "shape": refusal(lambda: attend(Producer(q[:1]), *good[1:])),
    "dtype": refusal(lambda: attend(Producer(q.astype(np.int16)), *good[1:])),
    "sinks": refusal(lambda: attend(*good, sinks=Producer(np.ones(4, np.float16)))),
}
class Grad(Tensor):
    requires_grad = True
Grad.__module__ = "torch"
class OnCpu(Tensor):
    device = types.SimpleNamespace(type="cpu", index=None)
OnCpu.__module__ = "torch"
rest = tensor(k), tensor(v)
found["gradient"] = refusal(lambda: attend(Grad(q.shape, torch.float16), *rest))
found["torch on the CPU"] = refusal(lambda: attend(OnCpu(q.shape, torch.float16), *rest))
learnt = OnCpu(q.shape, Dtype("bfloat16"))
learnt.requires_grad = True
found["a parameter there"] = refusal(lambda: attend(learnt, *rest))
learnt.device = types.SimpleNamespace(type="meta", index=None)
found["no data"] = refusal(lambda: attend(learnt, *rest))
torch.version.hip = None
found["torch for CUDA"] = refusal(lambda: attend(tensor(q), *rest))
print(json.dumps(found))
"""
    found = hostgpu(PRELUDE + TORCH + code)
    words = {
        "cuda": "q is a __main__.Producer in a CUDA device: device tensors must be on a ROCm device",
        "host": "q is a __main__.Producer in host memory: pass it as a numpy array",
        "strided": "q's last axis has stride 2: the kernels need it contiguous",
        "mixed": "k is a ndarray, but q is a device tensor: use one kind for all",
        "numpy first": "k must be a numpy array, not Producer",
        "backend": "q is a device tensor: the gpu backend computes those, not 'cpu'",
        "shape": "q and k disagree: batch is 1 and 2",
        "dtype": "q has DLPack dtype (code 0, 16 bits, 1 lanes): use one of float16",
        "sinks": "sinks has dtype float16: on a device it must be float32",
        "gradient": "q requires a gradient, and no graph is recorded here",
        "torch on the CPU": "q is a torch tensor on cpu: pass q.numpy(), call rocattn.torch, or move it to the GPU",
        "a parameter there": "pass q.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16), call rocattn",
        "no data": "q is a torch tensor on meta: move it to an AMD GPU",
        "torch for CUDA": "q is on a CUDA device: the gpu backend runs on AMD GPUs",
    }
    assert {
        name: text for name, text in found.items() if not text.startswith("ConfigError: ") or words[name] not in text
    } == {}


class OnRocm:
    """An array on an AMD GPU that must not be touched: there is none here."""

    def __dlpack_device__(self):
        """Say where it is."""
        return 10, 0

    def __dlpack__(self, *, stream=None):
        """Give a capsule of host memory that says it is a GPU's."""
        return np.zeros((1, 2, 1, 8), np.float32).__dlpack__()


def test_device_tensor_without_a_gpu_is_refused():
    """The error is that of the gpu backend: why there is no device."""
    if rocattn.BACKENDS.get("gpu").available():
        pytest.skip("there is a GPU here")
    tensor = OnRocm()
    with pytest.raises(NoBackendError, match=r"backend 'gpu' cannot run .*: no (HIP runtime|AMD GPU)"):
        rocattn.attention(tensor, tensor, tensor)
    for name in ("cpu", ["cpu"]):
        with pytest.raises(ConfigError, match=re.escape(f"not {name!r}")):
            rocattn.attention(tensor, tensor, tensor, backend=name)
