"""Build the CPU kernels with AddressSanitizer and UBSan (system g++) and run random problems through them.

    python tests/attention/builds/sanitized.py [--isa portable|avx2|avx512|avx512bf16|amx] [--problems 60]

The matrix unit of ``amx`` is a stand-in in AVX-512 (``amx_standin.h``): it runs where there is none, and every load and
store of it is one that the sanitizers see. The problems then run twice, with the unit and, as if Linux refused it, with
the vectors that take its place.

Exit status 0: nothing found; 1: a sanitizer or a check spoke; 3: no g++ with sanitizers here.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STANDIN = Path(__file__).with_name("amx_standin.h")
# Unoptimised: no access is optimised away, and as g++ takes most of the time, all of it takes half as long as with -O1.
OPTIONS = (
    *("-std=c++17", "-O0", "-g1", "-fPIC", "-ffreestanding", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"),
    *("-ffp-contract=fast", "-w"),
    *("-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined"),
)


def runtimes():
    """Return the sanitizers' libraries, which must be loaded before Python; a bare name is one that is not there."""
    names = ("libasan.so", "libubsan.so")
    return [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names]


def missing():
    """Say what the check needs and is not here; empty if all is."""
    if not shutil.which("g++"):
        return "no g++: the sanitizer build needs one"
    absent = [path for path in runtimes() if not Path(path).is_absolute()]
    return f"g++ has no {' and no '.join(absent)}" if absent else ""


def build(isa, folder):
    """Compile all kernels with sanitizers, files side by side; returns the library."""
    from rocattn.toolchain.cpu_library import SOURCES
    from rocattn.toolchain.host import ISA_OPTIONS

    def compiled(name):
        target = Path(folder, name).with_suffix(".o")
        source = ROOT / "kernels" / "cpu" / name
        standin = ["-include", str(STANDIN)] if isa == "amx" else []
        subprocess.run(["g++", *OPTIONS, *ISA_OPTIONS[isa], *standin, "-c", str(source), "-o", str(target)], check=True)
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, SOURCES))
    library = Path(folder, "sanitized.so")
    subprocess.run(["g++", *OPTIONS, "-shared", *objects, "-o", str(library)], check=True)
    return library


def run_problems(count, isa):
    """Run random problems, forward and backward, in this (preloaded) process; returns how many are wrong."""
    from rocattn.backends import BACKENDS
    from rocattn.backends.cpu_flash import load_library
    from tests.attention.random_problems import DTYPES, judged, random_problem

    unit = 2 if isa == "amx" and "AMX_REFUSED" not in os.environ else 0
    assert load_library().rocattn_cpu_isa() % 1000 == unit, "not the unit that was asked for"
    wrong = 0
    for seed in range(1000, 1000 + count):
        for dtype in DTYPES:
            for direction in ("forward", "backward"):
                config, inputs = random_problem(seed, dtype, direction)
                check, intact = judged(config, inputs, BACKENDS.get("cpu-flash"))
                if not (check.ok and intact):
                    wrong += 1
                    print(f"seed {seed} {config.label}: {check}, outside intact: {intact}")
    return wrong


def main():
    """Build, then start this file again under the sanitizers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--isa", help="default: the widest of this CPU")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT)]
    if options.inside:
        return int(run_problems(options.problems, options.isa) > 0)
    from rocattn.toolchain.host import host_isa

    if reason := missing():
        print(reason, file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as folder:
        try:
            options.isa = options.isa or host_isa()
            library = build(options.isa, folder)
        except subprocess.CalledProcessError:
            print("g++ cannot build the kernels with sanitizers here (above)", file=sys.stderr)
            return 3
        environment = os.environ | {
            "LD_PRELOAD": ":".join(runtimes()), "ASAN_OPTIONS": "detect_leaks=0", "ROCATTN_CPU_LIBRARY": str(library),
            "ROCATTN_NUM_THREADS": "3",
        }  # fmt: skip
        again = [sys.executable, __file__, "--inside", "--problems", str(options.problems), "--isa", options.isa]
        variants = [{}, {"AMX_REFUSED": "1"}] if options.isa == "amx" else [{}]
        spoke = [subprocess.run(again, env=environment | more, check=False).returncode != 0 for more in variants]
    print("the sanitizers or a check spoke (above)" if any(spoke) else "nothing found", file=sys.stderr)
    return int(any(spoke))


if __name__ == "__main__":
    raise SystemExit(main())
