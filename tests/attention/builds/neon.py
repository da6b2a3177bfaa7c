"""Build the CPU kernels for aarch64 (NEON) and run random problems through them, under QEMU's user-mode emulator.

    python -m tests.attention.builds.neon [--problems 6] [--seed 7000]

Every call of the library becomes one of a program for aarch64, with copies of its arrays and of whatever lies between
their rows. Nothing is timed: an emulator says nothing about speed.

Exit status 0: all right; 1: a result is wrong; 3: no emulator or compiler here.
"""

import argparse
import ctypes
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rocattn.backends import BACKENDS, cpu_flash
from rocattn.sources import kernel_root
from rocattn.toolchain.cpu_library import SOURCES
from tests.attention.random_problems import DTYPES, judged, random_problem

EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
ITEM_BYTES = {0: 4, 1: 2, 2: 2, 3: 1}  # by the dtypes of abi.h
NEON = 4000  # what rocattn_cpu_isa says: vectors of 4 floats


def missing():
    """Say what is needed and not here; empty if all is."""
    if not any(map(shutil.which, EMULATORS)):
        return "no qemu-aarch64: install qemu-user-static"
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return "no ziglang, whose clang and musl build programs for aarch64"
    return ""


def build(folder):
    """Return the program for aarch64. Unoptimised: it compiles ten times as fast."""
    program, kernels = Path(folder, "neon"), kernel_root() / "cpu"
    options = ("-std=c++17", "-O0", "-nostdlib++", "-ffp-contract=fast", "-fno-exceptions", "-fno-rtti", f"-I{kernels}")
    sources = [Path(__file__).with_name("neon_driver.cpp"), *(kernels / name for name in SOURCES)]
    caches = {f"ZIG_{which}_CACHE_DIR": str(Path(folder, which)) for which in ("GLOBAL", "LOCAL")}
    compiler = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl", *options]
    subprocess.run([*compiler, *map(str, sources), "-o", str(program)], env=os.environ | caches, check=True)
    return program


def spans(packed):
    """Yield (index of the pointer, first byte, bytes) of each array of a call; index 1 is q."""
    pointers = cpu_flash._POINTERS.unpack_from(packed)
    s = cpu_flash._Shape.from_buffer_copy(packed, cpu_flash._POINTERS.size)
    rows = {
        1: (s.H, s.Sq, s.D, s.qs), 2: (s.Hkv, s.Sk, s.D, s.ks), 3: (s.Hkv, s.Sk, s.Dv, s.vs),
        4: (s.H, s.Sq, s.Dv, s.os), 9: (s.H, s.Sq, s.Dv, s.dos), 10: (s.H, s.Sq, s.D, s.dqs),
        11: (s.Hkv, s.Sk, s.D, s.dks), 12: (s.Hkv, s.Sk, s.Dv, s.dvs),
    }  # fmt: skip
    item = ITEM_BYTES[s.dtype]
    shapes = {i: ((s.B, h, n, d), (*steps, 1), item) for i, (h, n, d, steps) in rows.items()}
    shapes[5] = ((s.B * s.H, s.Sq), (s.ls, 1), 4)
    shapes[6] = ((s.B, s.H, s.Sq, s.Sk), tuple(s.ms), ITEM_BYTES.get(s.mask_dtype, 0))
    shapes[7], shapes[8] = ((s.B * s.H,), (1,), 4), ((s.H,), (1,), 4)
    for index, (counts, steps, size) in shapes.items():
        if pointers[index] and math.prod(counts):
            ends = [(n - 1) * step * size for n, step in zip(counts, steps, strict=True)]
            first = pointers[index] + sum(min(end, 0) for end in ends)
            yield index, first, sum(map(abs, ends)) + size


class Emulated:
    """Takes the place of the library: its calls run in the emulator."""

    def __init__(self, program, folder):
        self.command = [next(filter(None, map(shutil.which, EMULATORS))), str(program)]
        self.file = Path(folder, "call")

    def rocattn_cpu_forward(self, packed):
        """As the library's."""
        return self._call("forward", packed, written=(4, 5))

    def rocattn_cpu_backward(self, packed):
        """As the library's."""
        return self._call("backward", packed, written=(10, 11, 12))

    def _call(self, what, packed, written):
        pointers = list(cpu_flash._POINTERS.unpack_from(packed))
        data, back = bytearray(cpu_flash._ARGS_SIZE), []
        for index, first, size in spans(packed):
            data += bytes(-len(data) % 64)
            if index in written:
                back.append((first, len(data), size))
            pointers[index] = 1 + len(data) + pointers[index] - first
            data += ctypes.string_at(first, size)
        data[: cpu_flash._ARGS_SIZE] = cpu_flash._POINTERS.pack(*pointers) + packed[cpu_flash._POINTERS.size :]
        self.file.write_bytes(data)
        done = subprocess.run([*self.command, str(self.file), what], capture_output=True, text=True, check=False)
        if done.stdout.strip() != str(NEON):
            raise SystemExit(f"the program ended with {done.returncode}: {done.stdout} {done.stderr}")
        data = self.file.read_bytes()
        for first, start, size in back:
            ctypes.memmove(first, data[start : start + size], size)
        return done.returncode


def main():
    """Judge random problems; exit status 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", type=int, default=6)
    parser.add_argument("--seed", type=int, default=7000)
    chosen = parser.parse_args()
    if reason := missing():
        print(reason)
        return 3
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="rocattn-neon-") as folder:
        library = Emulated(build(folder), folder)
        cpu_flash._library = lambda: library
        for seed in range(chosen.seed, chosen.seed + chosen.problems):
            for dtype in DTYPES:
                for direction in ("forward", "backward"):
                    config, inputs = random_problem(seed, dtype, direction)
                    check, intact = judged(config, inputs, BACKENDS.get("cpu-flash"))
                    if not (check.ok and intact):
                        wrong += 1
                        print(f"{seed} {config.label}: {check}, outside intact: {intact}")
    print(f"{chosen.problems * 6} problems on NEON in an emulator, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
