"""Save what Triton compiles. It runs first in a captured program, as its ``sitecustomize``.

The program's Python may be any version from 3.9, without rocattn or torch: this file, `gpu_hook` and `torch_hook` need
only the standard library. ``ROCATTN_CAPTURE`` holds the GPU to simulate (`run.StandInGpu`; null to run on this
machine's GPU) and the output folder. Triton's internals are those of versions 3.4 to 3.9.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import mmap
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_TOLD = json.loads(os.environ["ROCATTN_CAPTURE"])
_TEXTS = ("ttir", "ttgir", "amdgcn")  # saved next to the code object, where its readers look for them
_HERE = Path(__file__).resolve().parent
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class _AfterImport:
    """An import hook that calls a function with each registered module after its import."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, _: Any = None) -> Any:
        patch = self._patches.pop(name, None)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            patch(module)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec


def _triton_compiler(module: Any) -> None:
    """Save all that Triton compiles for an AMD GPU; a simulated GPU overrides the caller's target."""
    compile_it = module.compile

    def kept(src: Any, target: Any = None, options: Any = None, *rest: Any, **named: Any) -> Any:
        if target is None or _TOLD["gpu"]:
            target = sys.modules["triton.runtime.driver"].driver.active.get_current_target()
        try:
            kernel = compile_it(src, target, options, *rest, **named)
        except Exception as error:
            _keep(src, target, options, None, f"{type(error).__name__}: {error}")
            error.noted = True  # type: ignore[attr-defined]
            raise
        _keep(src, target, options, kernel, "")
        return kernel

    module.compile = kept


def _keep(source: Any, target: Any, options: Any, kernel: Any, error: str) -> None:
    """Write a kernel's code object and texts, and its inputs as JSON: Triton's own metadata, and ``captured``."""
    if target.backend != "hip":
        return
    captured = _made_from(source, options or {})
    name, digest = captured["kernel"][:80], hashlib.sha256(json.dumps(captured, sort_keys=True).encode()).hexdigest()
    packages = {name: sys.modules[name] for name in ("triton", "torch") if name in sys.modules}
    captured["versions"] = {package: str(module.__version__) for package, module in packages.items()} | _llvm()
    captured["source"] = _source(getattr(source, "fn", None))
    captured["arch"] = target.arch
    place = Path(_TOLD["out"], target.arch, name, digest[:12], name)
    place.parent.mkdir(parents=True, exist_ok=True)
    said: dict[str, Any] = {"captured": captured}
    if kernel is None:
        captured["error"] = error
    else:
        said |= {**kernel.metadata._asdict(), "target": dict(vars(kernel.metadata.target))}
        for kind in {*_TEXTS, "hsaco"} & kernel.asm.keys():
            data = kernel.asm[kind]
            _write(place.with_name(f"{name}.{kind}"), data if isinstance(data, bytes) else data.encode())
    _write(place.with_name(f"{name}.json"), json.dumps(said, indent=1, sort_keys=True, default=str).encode())


@functools.cache
def _llvm() -> dict[str, str]:
    """Return the version of LLVM inside Triton, found only in its library; empty if it is not there."""
    library = getattr(sys.modules.get("triton._C.libtriton"), "__file__", None)
    if library is None:
        return {}
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:  # noqa: PTH123
        said = re.search(rb"LLVM version (\d[\w.]*)", data)
        return {"llvm": said[1].decode()} if said else {}


def _made_from(source: Any, options: dict[str, Any]) -> dict[str, Any]:
    names = list(getattr(getattr(source, "fn", None), "arg_names", ()))

    def named(key: Any) -> str:
        first, *rest = key if isinstance(key, tuple) else (key,)
        name = names[first] if isinstance(first, int) and first < len(names) else str(first)
        return ".".join([name, *map(str, rest)])

    attributes = getattr(source, "attrs", None) or {}
    known = {named(key): "".join(f":{value}" for _, value in given) for key, given in attributes.items()}
    types = {named(key): kind for key, kind in source.signature.items() if kind != "constexpr"}
    constants = getattr(source, "constants", None) or {}
    return {
        "kernel": str(source.name),
        "signature": {name: f"{kind}{known.get(name, '')}" for name, kind in types.items()},
        "constants": {named(key): _plain(value) for key, value in constants.items()},
        "options": {name: _plain(value) for name, value in options.items() if name != "extern_libs"},  # paths
    }


def _source(function: Any) -> dict[str, Any]:
    if not hasattr(function, "src"):  # a kernel from text
        return {}
    file = function.fn.__code__.co_filename
    return {"file": file, "line": function.starting_line_number, "text": function.src}


def _plain(value: Any) -> Any:
    """Return a constant as JSON data that is the same in every process."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return _ADDRESS.sub("", str(getattr(value, "__name__", None) or value))


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def _hook(name: str) -> Any:
    """Import a file next to this one and register it in ``sys.modules``, where torch.compile looks for it."""
    known = f"rocattn_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, _HERE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


def _run_hidden() -> None:
    """Run the program's own ``sitecustomize``, which this one hides."""
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_patches: dict[str, Callable[[Any], None]] = {"triton.compiler.compiler": _triton_compiler}
if _TOLD["gpu"]:
    gpu = _hook("gpu_hook")
    sys.modules["amdsmi"] = gpu.amdsmi()
    _patches |= {
        "torch": lambda module: _hook("torch_hook").stand_in(module, gpu.GPU, gpu.capability()),
        "torch._inductor.compile_fx": lambda module: _hook("torch_hook").compile_for_gpu(module),
        "torch._inductor.select_algorithm": lambda module: _hook("torch_hook").compile_choices(module),
        **gpu.PATCHES,
    }
sys.meta_path.insert(0, _AfterImport(_patches))
_run_hidden()
