"""Each finding has a kernel that causes it, at a known line and nothing else, and a twin that is right."""

import ctypes
import re

import numpy as np
import pytest

from .standin import INVALID_VALUE, KERNELS, LAUNCH_FAILURE, SUCCESS, TO_DEVICE

SOURCE = "findings.hip"
BAD_LANE = 5

# kernel: (finding, its place: block, thread, or None where every thread can be the first, words of the explanation)
FINDINGS = {
    "global_read_past_end": ("out-of-bounds global read", (0, 63), "0 bytes past the end of allocation"),
    "global_vector_read_past_end": ("out-of-bounds global read", (0, 60), "reads 16 bytes; their end is 0 bytes past"),
    "global_write_before_start": ("out-of-bounds global write", (0, 0), "4 bytes before allocation"),
    "global_null_read": ("out-of-bounds global read", (0, 0), "a null pointer"),
    "global_stray_write": ("out-of-bounds global write", (0, 0), "address 0x123456789000 is not in device memory"),
    "global_uninitialised_read": ("uninitialised global read", (0, 0), "byte 0 of allocation"),
    "global_misaligned": ("misaligned global element", (0, 0), "2 past a multiple"),
    "global_write_race": ("write race in global memory", (1, 0), "was written by thread 0 of another block"),
    "global_read_race": ("read race in global memory", (0, 63), "was written by thread 0 of this block"),
    "lds_read_past_end": ("out-of-bounds LDS read", (0, 63), "byte 256 of tile, which has 256"),
    "lds_write_past_end": ("out-of-bounds LDS write", (0, 63), "byte 256 of tile, which has 256"),
    "lds_global_address": ("out-of-bounds LDS read", (0, 0), "the address is in global memory"),
    "lds_uninitialised_read": ("uninitialised LDS read", (0, BAD_LANE), f"byte {4 * BAD_LANE} of tile was not written"),
    "lds_left_by_another_block": ("uninitialised LDS read", (1, 0), "was not written in this block"),
    "lds_misaligned": ("misaligned LDS access", (0, 0), "16 bytes need a multiple of 16, the address is 4 past one"),
    "lds_write_then_read": ("LDS race", None, "with no barrier between"),
    "lds_read_then_write": ("LDS race", None, "with no barrier between"),
    "lds_write_twice": ("LDS race", (0, 32), "writes byte 0 of tile, which thread 0 wrote at"),
    "lds_race_in_wave": ("LDS race", None, "with no barrier between"),
    "lds_too_large": ("LDS too large", (0, 0), "gfx1100 has 65536 for a block"),
    "barrier_without_some": ("divergent barrier", (0, 0), f"63 of 64 threads wait here, thread {BAD_LANE} has"),
    "barrier_in_a_branch": ("divergent barrier", (0, 32), "32 threads wait at"),
    "barrier_skipped": ("divergent barrier", None, "threads wait here, thread 16 is at"),
    "wave_barrier_without_some": ("divergent wave barrier", (0, 0), f"thread {BAD_LANE} has returned"),
    "shuffle_in_a_branch": ("divergent shuffle", (0, 0), "16 lanes wait here, thread 16 has returned"),
    "shuffle_in_different_lines": ("divergent shuffle", (0, 0), "16 lanes wait here, thread 16 is at"),
    "any_lane_without_some": ("divergent any_lane", (0, 0), f"thread {BAD_LANE} has returned"),
    "uniform_without_some": ("divergent uniform", (0, 0), f"thread {BAD_LANE} has returned"),
    "uniform_differs": ("uniform of different values", None, "lane 0 has 0, lane 1 has 1"),
    "shuffle_from_nobody": ("shuffle from an absent lane", None, "reads lane 20"),
    "matrix_without_some": ("divergent matrix product", (0, 0), f"thread {BAD_LANE} has returned"),
    "halves_differ": ("fragment halves differ", None, f"A of lane {16 + BAD_LANE} is no copy of lane {BAD_LANE}'s"),
}
LINE = re.compile(
    r"rocattn hostgpu: (.+) at (.+):(\d+), kernel (\w+), "
    r"block \((\d+), 0, 0\), thread (\d+) \(wave (\d+), lane (\d+)\): "
)
THREADS = {"shuffle_from_nobody": 16}
BLOCKS = {"global_write_race": 2, "lds_left_by_another_block": 2}


def line_of(kernel: str) -> int:
    """The line that a kernel's mistake is marked at."""
    lines = (KERNELS / SOURCE).read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if line.endswith(f"// HERE {kernel}"))
    return number


@pytest.fixture
def run(standin):
    """Return a function: kernel, BUG -> (status, report)."""

    def run(kernel: str, bug: int, arch: str = "gfx1100", **settings):
        device = standin(arch, **settings)
        wave = 64 if arch.startswith("gfx9") else 32
        threads, blocks = THREADS.get(kernel, 2 * wave), BLOCKS.get(kernel, 1)
        x = device.upload(np.ones(2 * wave, np.float32))
        y = device.empty(4 * 2 * wave * blocks)
        defines = {"BUG": bug, "MATRIX": 1, "LDS_BYTES": 160 << 10 if arch == "gfx950" else 64 << 10}
        try:
            return device.run(SOURCE, kernel, (blocks,), (threads,), x, y, **defines)
        finally:
            device.free(x)
            device.free(y)

    return run


@pytest.mark.parametrize("kernel", FINDINGS)
def test_each_mistake_is_found_by_name_and_place(run, kernel):
    """With kernel, block, thread, wave, lane, file and line, and why; a race is found on one of its sides, or both."""
    name, place, why = FINDINGS[kernel]
    status, report = run(kernel, bug=1)
    assert status == LAUNCH_FAILURE
    lines = report.splitlines()
    found = [LINE.match(line) for line in lines]
    assert all(found), report
    assert {match[1] for match in found} == {name}
    assert len(lines) == 1 or "race" in name
    found, line = next((m, text) for m, text in zip(found, lines, strict=True) if m[3] == str(line_of(kernel)))
    assert (found[2], found[4]) == (SOURCE, kernel)
    block, thread, wave, lane = map(int, found.groups()[4:])
    assert (wave, lane) == divmod(thread, 32)
    if place:
        assert (block, thread) == place
    assert why in line


@pytest.mark.parametrize("kernel", FINDINGS)
def test_the_corrected_kernel_gives_no_finding(run, kernel):
    """The twin differs in nothing but the mistake."""
    assert run(kernel, bug=0) == (SUCCESS, "")


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1201"])
def test_other_architectures_find_the_same(run, arch):
    """Waves of 64 and other limits; only gfx11 has copies to compare."""
    for kernel, (name, _, _) in FINDINGS.items():
        assert run(kernel, bug=0, arch=arch) == (SUCCESS, ""), kernel
        if kernel == "halves_differ":
            continue
        status, report = run(kernel, bug=1, arch=arch)
        assert status == LAUNCH_FAILURE, kernel
        assert f"rocattn hostgpu: {name} at {SOURCE}:{line_of(kernel)}, kernel {kernel}, " in report


def test_freed_memory_is_known_as_such(standin):
    """Reading it is a finding of its own, also after other memory was allocated."""
    device = standin()
    x, y = device.upload(np.ones(64, np.float32)), device.empty(256)
    device.free(x)
    device.free(device.empty(256))
    status, report = device.run(SOURCE, "reads_first", (1,), (64,), x, y, BUG=0, LDS_BYTES=64)
    assert status == LAUNCH_FAILURE
    assert f"use after free at {SOURCE}:{line_of('reads_first')}" in report
    assert "reads 4 bytes; byte 0 of allocation" in report
    x = device.upload(np.ones(64, np.float32))
    device.free(y)
    _, report = device.run(SOURCE, "reads_first", (1,), (64,), x, y, BUG=0, LDS_BYTES=64)
    assert "writes 4 bytes; byte 0 of allocation" in report


@pytest.mark.parametrize(
    ("name", "grid", "block", "lds", "cut", "why"),
    [
        ("read past end of kernel arguments", (1,), (64,), 0, -1, "parameter 1 is at 8 ... 16"),
        ("too many kernel arguments", (1,), (64,), 0, 1, "24 bytes are given, the kernel reads 16"),
        ("block too large", (1,), (2048,), 0, 0, "2048 x 1 x 1 threads"),
        ("wrong block size", (1,), (32,), 0, 0, "compiled for 64"),
        ("wrong block size", (1,), (32, 2), 0, 0, "32 x 2 x 1 threads"),
        ("grid too large", (1, 65536), (64,), 0, 0, "1 x 65536 x 1 blocks"),
        ("grid too large", (1 << 26,), (64,), 0, 0, "of 64 threads"),
        ("LDS too large", (1,), (64,), (64 << 10) + 1, 0, "65537 bytes of dynamic LDS"),
    ],
)
def test_launches_the_hardware_would_refuse(standin, name, grid, block, lds, cut, why):
    """They run nothing and say what is wrong."""
    device = standin()
    x, y = device.upload(np.ones(64, np.float32)), device.upload(np.zeros(64, np.float32))
    function = device.function(SOURCE, "reads_first", BUG=0, LDS_BYTES=64)
    arguments = [x, y, ctypes.c_uint64(0)][: 2 + cut]
    assert device.launch(function, grid, block, *arguments, lds=lds) == LAUNCH_FAILURE
    (line,) = device.report().splitlines()
    assert line.startswith(f"rocattn hostgpu: {name}, kernel reads_first: ")
    assert why in line
    assert not device.download(y, 64, np.float32).any()


@pytest.mark.parametrize(
    ("kernel", "thread", "why"),
    [
        ("plain_pointer", BAD_LANE, "address 0x1000, without load or store"),
        ("division_by_zero", BAD_LANE, "an integer division by zero"),
        ("endless_stack", 0, "more stack than there is"),
    ],
)
def test_faults_of_a_kernel_do_not_reach_python(run, kernel, thread, why):
    """They are findings as well, of a thread but of no line; the next launch runs."""
    for _ in range(2):
        status, report = run(kernel, bug=1)
        assert status == LAUNCH_FAILURE
        place = f"kernel {kernel}, block (0, 0, 0), thread {thread} "
        assert report.startswith(f"rocattn hostgpu: fault in the kernel at ?:0, {place}")
        assert why in report
        assert run(kernel, bug=0) == (SUCCESS, "")


def test_only_so_many_places_are_listed(run):
    """The rest are counted."""
    status, report = run("findings_at_many_places", bug=1)
    assert status == LAUNCH_FAILURE
    lines = report.splitlines()
    assert [int(LINE.match(line)[3]) for line in lines[:-1]] == list(range(1, 17))
    assert lines[-1] == f"rocattn hostgpu: {4 * 64} more findings at other places"


def test_a_variable_that_was_never_set_is_nan(standin):
    """No finding, but no result that looks right either."""
    device = standin()
    x, y = device.upload(np.ones(64, np.float32)), device.empty(256)
    for bug in (0, 1):
        ran = device.run(SOURCE, "unset_variable", (1,), (64,), x, y, BUG=bug, LDS_BYTES=64)
        assert ran == (SUCCESS, "")
        result = device.download(y, 64, np.float32)
        assert np.isnan(result).all() if bug else (result == 1).all()


def test_a_loop_that_goes_wrong_for_ever_is_stopped(run):
    """A bound that was read beyond an allocation never comes; 20000 findings are enough."""
    status, report = run("endless_findings", bug=1)
    assert status == LAUNCH_FAILURE
    assert "out-of-bounds global read" in report
    assert "(20000 times)" in report
    assert run("endless_findings", bug=0) == (SUCCESS, "")


def test_the_order_of_blocks_can_be_reversed(standin):
    """Blocks that need another's result fail in one order: here the later block reads what the earlier one writes."""
    for order, found in (("forward", True), ("reverse", False)):
        device = standin(order=order)
        x = device.upload(np.ones(128, np.float32))
        status, report = device.run(SOURCE, "needs_the_block_before", (2,), (64,), x, BUG=0, LDS_BYTES=64)
        assert (status == LAUNCH_FAILURE, "read race in global memory" in report) == (found, found)


def test_a_launch_after_a_failed_one_runs(run):
    """Nothing of a launch that stopped half-way stays behind."""
    for _ in range(2):
        assert run("barrier_without_some", bug=1)[0] == LAUNCH_FAILURE
        assert run("barrier_without_some", bug=0) == (SUCCESS, "")


def test_reports_repeat_exactly(run):
    """The same launch gives the same words, with a count."""
    reports = {run("lds_write_twice", bug=1)[1].rsplit("allocation", 1)[0] for _ in range(3)}
    assert len(reports) == 1
    assert "(32 times)" in reports.pop()


def test_what_is_refused_has_no_effect(standin):
    """Memory beyond an allocation keeps its content, and a refused read is NaN."""
    device = standin()
    x, y = device.upload(np.ones(64, np.float32)), device.upload(np.zeros(64, np.float32))
    device.run(SOURCE, "global_read_past_end", (1,), (64,), x, y, BUG=1, LDS_BYTES=64)
    result = device.download(y, 64, np.float32)
    assert (result[:-1] == 1).all()
    assert np.isnan(result[-1])
    before = ctypes.c_void_p(y.value - 4)
    zero = ctypes.c_float(0)
    assert device.copy(before, ctypes.byref(zero), 4, TO_DEVICE) == INVALID_VALUE
    assert "4 bytes before allocation" in device.report()


@pytest.mark.parametrize("kernel", ["global_null_read", "global_stray_write", "lds_global_address"])
def test_without_checks_impossible_accesses_still_do_not_crash(run, kernel):
    """They cannot be made at all, so they stay findings; what merely is wrong goes unseen."""
    status, report = run(kernel, bug=1, checks="none")
    assert status == LAUNCH_FAILURE
    assert FINDINGS[kernel][0] in report
    assert run("lds_race_in_wave", bug=1, checks="none") == (SUCCESS, "")
