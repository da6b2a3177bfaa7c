"""``rocattn kernels capture``: a program's kernels without a GPU; its Triton here is a tiny one with the same hooks."""

import json
import subprocess
import sys

import pytest
from inline_snapshot import snapshot

from rocattn_profiling import cli
from rocattn_profiling.kernels.audit import audit_files
from rocattn_profiling.kernels.capture.run import gpu_of
from rocattn_profiling.kernels.pairs import pairs_of

from ..screens import line, screen
from .audit.test_other_files import KERNEL

TRITON = {
    "__init__.py": """
__version__ = "9.9.9"
from ._C import libtriton
from .compiler import compile
from .runtime import jit, Autotuner
from . import testing
""",
    "_C/__init__.py": "",
    "_C/libtriton.py": '"""Its "LLVM version 24.1.0git" is in the file."""',
    "testing.py": "def do_bench(call, quantiles=None, return_mode='mean'):\n    raise OSError('no GPU')\n",
    "backends/__init__.py": "",
    "backends/compiler.py": """
from dataclasses import dataclass
@dataclass(frozen=True)
class GPUTarget:
    backend: str
    arch: str
    warp_size: int
""",
    "compiler/__init__.py": "from .compiler import compile\n",
    "compiler/compiler.py": """
from collections import namedtuple
from ..runtime import driver
TEXT = {kernel!r}
class Source:
    def __init__(self, fn, signature, constants, attrs):
        self.fn, self.name, self.signature, self.constants, self.attrs = fn, fn.__name__, signature, constants, attrs
class Kernel:
    def __init__(self, src, target, options):
        said = dict(options, shared=0, warp_size=64, triton_version="9.9.9", target=target, name=src.name)
        self.metadata = namedtuple("Metadata", said)(**said)
        text = TEXT.format(name=src.name, target=target.arch)
        self.asm = dict(amdgcn=text, ttir="module")
        self.run = driver.active.launcher_cls(src, self.metadata)
        driver.active.utils.load_binary(src.name, b"", 0, 0)
        assert driver.active.utils.get_device_properties(0)["warpSize"] == 64
def compile(src, target=None, options=None):
    if src.constants.get((2,)) == 13:
        raise ValueError("13 brings bad luck\\nand more")
    return Kernel(src, target, options)
""",
    "runtime/__init__.py": """
from .driver import driver
class Jit:
    arg_names = ["x", "n", "BLOCK"]
    starting_line_number = 7
    src = "def add(x, n, BLOCK): ..."
    def __init__(self, fn):
        self.fn, self.__name__ = fn, fn.__name__
    def run(self, x, n, BLOCK, num_warps=4):
        from ..compiler.compiler import Source
        from ..compiler import compiler
        signature = {"x": "*fp16", "n": "i32", "BLOCK": "constexpr"}
        source = Source(self, signature, {(2,): BLOCK}, {(0,): [["tt.divisibility", 16]]})
        compiler.compile(source, None, {"num_warps": num_warps}).run(1, 1, 1, 0)
jit = Jit
class Autotuner:
    def __init__(self, fn, configs):
        self.fn, self.configs = fn, configs
    def run(self, x, n):
        timed = driver.active.get_benchmarker()
        times = [timed(lambda: self.fn.run(x, n, **config), quantiles=(0.5, 0.2, 0.8)) for config in self.configs]
        self.best = min(range(len(times)), key=times.__getitem__)
""",
    "runtime/driver.py": """
class Config:
    def __init__(self):
        self._default = self.active = None
    def set_active(self, driver):
        self.active = driver
driver = Config()
""",
}
TORCH = {
    "__init__.py": """
from types import SimpleNamespace as Some
__version__ = "2.0"
version = Some(hip=None, cuda=None)
_C = Some()
get_rng_state = lambda: 0
set_default_device = None
class device:
    def __init__(self, type, index=0):
        self.type = type
class Generator:
    def __new__(cls, device):
        assert device == "cpu"
        return object.__new__(cls)
class Tensor:
    device = property(lambda self: device("cpu"))
    is_cuda = property(lambda self: False)
    is_cpu = property(lambda self: True)
    cuda = pin_memory = record_stream = get_device = lambda self: None
from . import accelerator, cuda
""",
    "accelerator.py": "set_device_index = current_device_index = device_index = None",
    "cuda/__init__.py": """
is_available = lambda: False
get_device_name = get_device_capability = get_device_properties = synchronize = None
from . import random
""",
    "cuda/random.py": "",
    "overrides.py": """
modes = []
class TorchFunctionMode:
    def __enter__(self):
        modes.append(self)
""",
}
PROGRAM = """\
import sys
import triton
def add(x, n, BLOCK): ...
kernel = triton.jit(add)
tuned = triton.Autotuner(kernel, [{"BLOCK": size} for size in (13, 64, 128)])
"""


@pytest.fixture
def capture(tmp_path, capsys, monkeypatch):
    """Return a function that captures a program and gives the status, what it said and the JSON files by kernel."""
    place = tmp_path / "packages"
    for package, files in (("triton", TRITON), ("torch", TORCH)):
        for name, text in files.items():
            (place / package / name).parent.mkdir(parents=True, exist_ok=True)
            (place / package / name).write_text(text.replace("{kernel!r}", repr(KERNEL)))
    monkeypatch.setenv("PYTHONPATH", str(place))

    def run(text, *options, arch=("gfx942",), out="out"):
        (tmp_path / "bench.py").write_text(PROGRAM + text)
        words = [
            "kernels",
            "capture",
            *(["--arch", *arch] if arch else []),
            "--out",
            str(tmp_path / out),
            *options,
            "--",
            sys.executable,
        ]
        status = cli.main([*words, str(tmp_path / "bench.py")])
        said = [json.loads(path.read_text()) for path in sorted((tmp_path / out).glob("*/*/*/*.json"))]
        return status, capsys.readouterr().err, said

    return run


def test_every_configuration_is_kept_for_every_architecture(capture, tmp_path):
    """With all that made it; what does not compile is the slowest, and named."""
    status, err, said = capture(
        "tuned.run(None, 1000)\nassert tuned.best == 1\nassert triton.testing.do_bench(list) == 1.0\n",
        arch=("gfx942", "gfx90a"),
    )
    assert (status, len(said)) == (3, 6)
    assert screen(err, tmp=tmp_path) == snapshot("""\
gfx942: 2 variants of 1 kernel
gfx942: add did not compile: ValueError: 13 brings bad luck
gfx90a: 2 variants of 1 kernel
gfx90a: add did not compile: ValueError: 13 brings bad luck
capture: 4 kernels for gfx942, gfx90a in tmp/out\
""")
    captured = next(each["captured"] for each in said if each["captured"]["constants"] == {"BLOCK": 64})
    assert captured["signature"] == {"x": "*fp16:16", "n": "i32"}
    assert captured["options"] == {"num_warps": 4}
    assert captured["versions"] == {"triton": "9.9.9", "llvm": "24.1.0git"}
    (compiler,) = audit_files([tmp_path / "out"]).compilers
    assert compiler == "Triton 9.9.9 with LLVM 24.1.0git"
    assert captured["source"]["line"] == 7
    listing = json.loads((tmp_path / "out/capture.json").read_text())
    kept = {run["arch"]: run["kernels"] for run in listing["runs"]}
    assert kept == {"gfx942": {"add": 2}, "gfx90a": {"add": 2}}


def test_captured_kernels_are_paired_by_what_made_them(capture, tmp_path):
    """Types and constants by name; a later capture replaces an earlier one, and nothing else."""
    for out, sizes in (("old", (64, 128)), ("new", (128, 64, 256))):
        for again in range(2):
            status, _, said = capture(f"for size in {sizes}: kernel.run(None, 1, size)\n", out=out)
            assert (status, len(said), again) == (0, len(sizes), again)
    old, new = (audit_files([tmp_path / name]) for name in ("old", "new"))
    pairs = pairs_of(old, new)
    constants = [tuple(facts.config["constants"] for facts in both) for both in pairs.both]
    assert sorted(constants) == [("BLOCK=128", "BLOCK=128"), ("BLOCK=64", "BLOCK=64")]
    assert [facts.config["constants"] for facts in pairs.new] == ["BLOCK=256"]


def test_what_no_longer_compiles_is_worse(capture, tmp_path, capsys):
    """The kernel is gone, and the audit says why."""
    capture("kernel.run(None, 1, 64)\nkernel.run(None, 1, 128)\n", out="old")
    assert capture("kernel.run(None, 1, 64)\ntuned.run(None, 1)\n", out="new")[0] == 3
    for path in (tmp_path / "new").glob("*/*/*/*.json"):  # as if it were the one of the older Triton
        if json.loads(path.read_text())["captured"]["constants"] == {"BLOCK": 128}:
            path.with_suffix(".amdgcn").unlink()
    words = ["kernels", "audit", str(tmp_path / "new"), "--against", str(tmp_path / "old")]
    assert cli.main([*words, "--out", str(tmp_path / "audit")]) == 1
    assert line(capsys.readouterr().out, "no longer compiles") == snapshot(
        "add on gfx942: it no longer compiles: ValueError: 13 brings bad luck"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "",
            snapshot("""\
gfx942: 0 variants of 0 kernels
rocattn kernels: no Triton kernel was compiled for gfx942: run the program with a Python that has Triton, not isolated (-I, -E, -S), on inputs that reach a kernel\
"""),  # noqa: E501
        ),
        (
            "kernel.run(None, 1, 64)\nsys.exit('wrong result')\n",
            snapshot("""\
gfx942: 1 variant of 1 kernel
gfx942: the program failed after 1 kernel: the process ended with exit status 1: wrong result
gfx942: output: tmp/out/gfx942/program.log
capture: 1 kernel for gfx942 in tmp/out\
"""),
        ),
        (
            "kernel.run(None, 1, 13)\n",
            snapshot("""\
gfx942: 0 variants of 0 kernels
gfx942: add did not compile: ValueError: 13 brings bad luck
gfx942: the program failed after 0 kernels: the process ended with exit status 1: ValueError: 13 brings bad luck
gfx942: output: tmp/out/gfx942/program.log
rocattn kernels: no Triton kernel was compiled for gfx942: run the program with a Python that has Triton, not isolated (-I, -E, -S), on inputs that reach a kernel\
"""),  # noqa: E501
        ),
    ],
)
def test_a_program_that_fails_is_no_pass(capture, tmp_path, text, told):
    """What was kept until then is said, too."""
    got, err, said = capture(text)
    assert (got, screen(err, tmp=tmp_path)) == (3, told)
    if "wrong" in text:
        assert len(said) == 1
        audit = audit_files([tmp_path / "out"])
        assert screen(audit.not_audited[0].text, tmp=tmp_path) == snapshot(
            "tmp/out: the program failed on gfx942: the process ended with exit status 1: wrong result"
        )
        (tmp_path / "out/capture.json").write_text('{"runs": [')  # torn
        audit = audit_files([tmp_path / "out"])
        assert screen(audit.not_audited[0].text, tmp=tmp_path) == snapshot(
            "tmp/out: its capture.json cannot be read (Input data was truncated): missing kernels are unknown"
        )


HERE = """
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
class Own:
    arch, backend, launched = "gfx90a", "hip", 0
    utils = type("Utils", (), {"load_binary": lambda *_: None, "get_device_properties": lambda _: {"warpSize": 64}})
    launcher_cls = lambda *_: lambda *_: setattr(Own, "launched", Own.launched + 1)
    get_current_target = lambda: GPUTarget(Own.backend, Own.arch, 64)
driver.set_active(Own)
"""


def test_without_an_architecture_the_gpu_runs_it(capture, tmp_path):
    """Its own driver launches; what it compiles is kept for the architecture that it has."""
    status, err, said = capture(f"{HERE}kernel.run(None, 1, 64)\nassert Own.launched == 1\n", arch=())
    assert (status, [each["captured"]["arch"] for each in said]) == (0, ["gfx90a"]), err
    assert audit_files([tmp_path / "out"]).kernels[0].arch == "gfx90a"
    status, err, _ = capture(f"{HERE}kernel.run(None, 1, 64)\nsys.exit('late')\n", arch=())
    assert (status, screen(err, tmp=tmp_path)) == (
        3,
        snapshot("""\
gfx90a: 1 variant of 1 kernel
gfx90a: the program failed after 1 kernel: the process ended with exit status 1: late
gfx90a: output: tmp/out/program.log
capture: 1 kernel for gfx90a in tmp/out\
"""),
    )
    status, err, said = capture(f"{HERE}Own.backend = 'cuda'\nkernel.run(None, 1, 64)\n", arch=())
    assert (status, said, screen(err, tmp=tmp_path)) == (
        3,
        [],
        snapshot(
            "rocattn kernels: no Triton kernel was compiled for an AMD GPU of this machine (output: "
            "tmp/out/program.log): run the program with a Python that has Triton, not isolated (-I, -E, -S), on "
            "inputs that reach a kernel"
        ),
    )


def test_own_sitecustomize_runs_too(capture, tmp_path):
    """And children of the program are captured as well."""
    (tmp_path / "packages/sitecustomize.py").write_text("import sys\nsys.own = 1\n")
    child = "import subprocess\nassert sys.own == 1\n"
    child += "if len(sys.argv) == 1: sys.exit(subprocess.run([sys.executable, __file__, '1']).returncode)\n"
    status, err, said = capture(f"{child}kernel.run(None, 1, 64)\n")
    assert (status, len(said)) == (0, 1), err


def test_libraries_ask_amdsmi_for_the_gpu(capture):
    """As vLLM does before it imports PyTorch; what is not known is refused as a GPU's absence is."""
    status, err, _ = capture("""
import amdsmi
import importlib.util
assert importlib.util.find_spec("amdsmi")
amdsmi.amdsmi_init()
(gpu,) = amdsmi.amdsmi_get_processor_handles()
assert amdsmi.amdsmi_get_gpu_asic_info(gpu)["target_graphics_version"] == "gfx942"
assert amdsmi.amdsmi_get_gpu_memory_total(gpu, amdsmi.AmdSmiMemoryType.VRAM) >> 30 == 192
try:
    amdsmi.amdsmi_get_power_info(gpu)
except amdsmi.AmdSmiException as error:
    assert "no GPU" in str(error)
else:
    raise SystemExit("answered")
assert not hasattr(amdsmi, "other")
kernel.run(None, 1, 64)
""")
    assert status == 0, err


def test_tensors_say_that_they_are_on_the_gpu(capture):
    """They are on the CPU; streams, events and what a device is asked have answers."""
    status, err, said = capture("""
import torch
from torch.overrides import modes
(mode,) = modes
ask = lambda func, *args, **named: mode.__torch_function__(func, (), args, named)
x, show = torch.Tensor(), lambda *args, **named: (args, named)
assert (ask(torch.Tensor.device.__get__, x).type, ask(torch.Tensor.is_cuda.__get__, x)) == ("cuda", True)
assert not ask(torch.Tensor.is_cpu.__get__, x) and ask(torch.Tensor.cuda, x) is x
(size, place), named = ask(show, 4, "cuda:0", device=torch.device("hip"), pin_memory=True)
assert (size, place.type, named["device"].type, len(named)) == (4, "cpu", "hip", 1)
assert ask(show, "cudagraphs")[0] == ("cudagraphs",)
assert isinstance(torch.Generator(device="cuda"), torch.Generator)
assert torch.cuda.is_available() and torch.version.hip
assert torch.cuda.get_device_capability() == (9, 4)
assert torch.cuda.get_device_properties(0).gcnArchName == "gfx942"
with torch.cuda.Stream() as stream, torch.cuda.graph(torch.cuda.CUDAGraph()):
    assert torch.cuda.Event().elapsed_time(stream) == 1.0
torch.set_default_device("cuda")
with torch.accelerator.device_index(0):
    assert (torch.accelerator.current_device_index(), torch.accelerator.set_device_index(0)) == (0, None)
kernel.run(None, 1, 64)
""")
    assert status == 0, err
    assert said[0]["captured"]["versions"]["torch"] == "2.0"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--arch", "gfx1", "--", "python"], "gfx1"),
        (["--arch", "gfx942"], "give the program after --"),
        (["--arch", "gfx942", "--python", "nowhere", "--", "python"], "neither a virtual environment nor a Python"),
        (["--arch", "gfx942", "--", "no-such-program"], "cannot start no-such-program"),
        (["--arch", "gfx942", "--out", "tests", "--", "python"], "not an earlier capture"),
    ],
)
def test_bad_input_is_one_line(options, line, tmp_path, capsys, monkeypatch):
    """Nothing is run, nothing is written over."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/mine").write_text("")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["kernels", "capture", *options]) == 4
    err = capsys.readouterr().err
    assert (err.count("\n"), line in err) == (1, True), err


def test_the_python_is_the_given_environments(tmp_path, capsys, monkeypatch):
    """Also for a program that starts it by its name."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    monkeypatch.chdir(tmp_path)
    for words in (["python"], ["env", "python3"]):
        options = ["--arch", "gfx1100", "--python", "env", "--out", "out", "--", *words]
        assert cli.main(["kernels", "capture", *options, "-c", "import sys; print(sys.prefix)"]) == 3
        assert (tmp_path / "out/gfx1100/program.log").read_text() == f"{tmp_path / 'env'}\n"
    assert "no Triton kernel" in capsys.readouterr().err


def test_devices_are_the_tables():
    """Wave sizes and LDS decide what compiles."""
    assert (gpu_of("gfx950").lds_bytes, gpu_of("gfx950").wave_size, gpu_of("gfx950").cus) == (163840, 64, 256)
    assert (gpu_of("gfx1201").wave_size, gpu_of("gfx1201").cus) == (32, 64)
