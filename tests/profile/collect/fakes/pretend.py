"""What the fake profilers share: a pretend GPU, its counters, the application they run, and how each of them fails.

Settings (a JSON file beside the fake program):
    release       ROCm release, "6.2.4"
    arch          gfx942
    limits        block -> counters a pass; the real hardware's, which may be less than the tables say
    unknown       counters that this release does not know
    undefined     number -> architecture of the other GPUs, which have no counter definitions
    kernels       in place of KERNELS
    zeros         everything but SQ_WAVES reads 0, as on a Radeon at performance level auto
    says          text printed to stderr before the application runs
    fails         "" or: hangs, writes nothing, samples nothing, traces nothing, refuses the trace, breaks the
                  application, full (disk), orphan (aborts and leaves a worker)
    fails_in      the failure comes only in the passes that ask for this counter ("" all of them)
    log           every call's arguments and environment are appended here, as JSON lines
    tool_version  of rocprof-compute itself
    fifo, started of "orphan": the pipe that the worker holds open, and the one that says that it does
"""

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

# Registers of a block, from projects/aqlprofile/gfxip/gfx*/gfx*_block_info.h of ROCm/rocm-systems: not from our table.
LIMITS = {"SQ": 8, "TCC": 4, "TCP": 4, "TA": 2, "TD": 2, "GRBM": 2, "SPI": 6, "CPC": 2, "CPF": 2, "GL2C": 4}
KERNELS = [
    ("__amd_rocclr_fillBufferAligned", 8192, 256, 0, 16),
    ('void attn_fwd<64, true>(float const*, "tile", Args<int, 3>)', 131072, 128, 16384, 96),
    ("attn_combine(float*, int)", 4096, 64, 0, 24),
]
START_NS = 311622868751628


class Settings(dict):
    """The settings, by attribute."""

    __getattr__ = dict.get


def settings(path):
    """Read the settings and note this call."""
    found = Settings(json.loads(Path(path).read_text()))
    if found.log:
        call = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": str(Path.cwd())}
        with Path(found.log).open("a") as log:
            log.write(json.dumps(call) + "\n")
    return found


def release(found):
    """Return the release as numbers: (6, 2, 4)."""
    return tuple(int(part) for part in found.release.split("."))


def block_of(counter):
    """Return the block of a counter by its name, as the tables name them."""
    head = counter.split("_")[0]
    return "SQ" if head in {"SQ", "SQC"} else head


def plain(counter):
    """Return the raw counter behind a reduction."""
    for suffix in ("_sum", "_avr", "_max", "_min"):
        counter = counter.removesuffix(suffix)
    return counter


def over(counters, found):
    """Return the block that these counters ask too much of, or ""."""
    limits = LIMITS | ({"SQ": 16} if found.arch.startswith("gfx12") else {}) | (found.limits or {})
    for block in {block_of(counter) for counter in counters}:
        if len({plain(counter) for counter in counters if block_of(counter) == block}) > limits.get(block, 1 << 30):
            return block
    return ""


def value(counter, ordinal, kernel, grid, found):
    """Return a made-up but repeatable value, as large as the launch suggests."""
    if counter == "SQ_WAVES":
        return grid // 64
    if found.zeros:
        return 0
    return 1 + int(hashlib.sha256(f"{counter} {ordinal} {kernel}".encode()).hexdigest()[:6], 16)


def dispatches(found):
    """Return (number, kernel, grid, block, LDS bytes, VGPRs, start, end) of every dispatch of the application."""
    rows = []
    for number in range(1, 2 * len(KERNELS) + 1):
        name, grid, block, lds, vgprs = (found.kernels or KERNELS)[(number - 1) % len(KERNELS)]
        start = START_NS + 1_000_000 * number
        rows.append((number, name, grid, block, lds, vgprs, start, start + 10_000 + 37 * number))
    return rows


def number(amount):
    """Return a counter's value as rocprofv3 prints it."""
    return f"{amount:.6f}" if amount >= 1 else f"{amount:.8e}"


def fails(found, counters):
    """Return the failure of this pass, or ""."""
    return found.fails if found.fails and (not found.fails_in or found.fails_in in counters) else ""


def say(text):
    """Print to stderr."""
    print(text, file=sys.stderr, flush=True)


def abort():
    """End as glog's FATAL does."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def run_application(command, found, counters, env=None):
    """Run the profiled command; return its process id and exit status. Some failures end here."""
    how = fails(found, counters)
    if how == "hangs":
        while True:
            signal.pause()
    if how == "orphan":  # what an aborted application leaves behind: a worker that holds the pipe open
        subprocess.Popen([sys.executable, "-c", f"import signal; held = open({found.fifo!r}, 'w'); signal.pause()"])
        with Path(found.started).open() as ready:  # until it holds it
            ready.read()
        abort()
    if how == "breaks the application":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    process = subprocess.Popen(command, env=env)
    status = process.wait()
    if how == "full":
        say("terminate called after throwing: No space left on device")
        sys.exit(1)
    return process.pid, status
