"""Occupancy: LLVM's own tests and the pinned compiler, a simulated machine, and the words."""

import csv
import itertools
import math
import random
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rocattn.errors import ToolchainError
from rocattn.toolchain.compilers import choose_compiler
from rocattn_profiling.base.gpus import architecture, architectures
from rocattn_profiling.kernels.model import occupancy as module
from rocattn_profiling.kernels.model.occupancy import OccupancyError, occupancy

from .llvm_occupancy import llvm_waves_per_simd

BLOCKS = (1, 31, 32, 33, 64, 96, 128, 192, 250, 256, 320, 512, 768, 1000, 1024)


def llvm_cases():
    """Return what LLVM's tests expect, a dict for each."""
    with (Path(__file__).parent / "llvm_occupancy.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return [{name: cell if name in {"arch", "test"} else int(cell) for name, cell in row.items()} for row in rows]


def ask(case, **changes):
    """Return the occupancy of a case of `llvm_cases`; LDS counts for the largest block."""
    arguments = {
        "wave_size": case["wave"], "vgprs": case["vgprs"], "agprs": case["agprs"], "sgprs": case["sgprs"],
        "lds_bytes": case["lds"], "block": case["block_max"] if case["lds"] else None,
    }  # fmt: skip
    return occupancy(case["arch"], **arguments | changes)


def test_llvms_tests_are_answered_as_llvm_does():
    """626 cases of (arch, wave size, VGPRs, AGPRs, SGPRs, LDS, block) from LLVM's tests, each one equal."""
    cases = llvm_cases()
    for case in cases:
        found = llvm_waves_per_simd(
            architecture(case["arch"]), wave_size=case["wave"], vgprs=ask(case).vgprs, sgprs=case["sgprs"],
            lds_bytes=case["lds"], blocks=(case["block_min"], case["block_max"]),
            trap_handler=bool(case["trap_handler"]),
        )  # fmt: skip
        assert found == case["waves"], case
    assert len(cases) == 626
    assert {case["arch"] for case in cases} >= {"gfx90a", "gfx950", "gfx1030", "gfx1100", "gfx1150", "gfx1200"}


def test_hardware_differs_from_llvm_only_as_documented(monkeypatch):
    """With LLVM's granule of LDS, its trap handler and its rounding up, our rules give its number in all but one case.

    That one has more LDS than a block can have: it runs nowhere, and LLVM calls that one wave.
    """

    def as_llvm(case):
        chip = architecture(case["arch"])
        trap = chip.trap_sgprs if case["trap_handler"] else 0
        return replace(chip, lds_granule_bytes=chip.compiler_lds_granule_bytes, trap_sgprs=trap)

    differ = []
    for case in llvm_cases():
        monkeypatch.setattr(module, "architecture", lambda _, case=case: as_llvm(case))
        if math.ceil(ask(case).waves_per_simd) != case["waves"]:
            differ.append(case["test"])
    assert differ == ["llvm-calc-occupancy/basic.test BIGLDS"]


def test_sgprs_may_be_what_a_wave_is_given():
    """26 of 40 of aiter's code objects say 112 in their metadata, and profilers 128 of every RDNA kernel."""
    assert occupancy("gfx942", wave_size=64, vgprs=64, sgprs=112).waves_per_simd == 6
    assert occupancy("gfx1100", wave_size=32, vgprs=64, sgprs=128).waves_per_simd == 16
    with pytest.raises(OccupancyError, match="113 SGPRs are impossible: gfx942 has 0 to 112"):
        occupancy("gfx942", wave_size=64, vgprs=64, sgprs=113)


def test_registers_as_given_are_not_over_any_step():
    """112 SGPRs are what 97 to 108 are rounded up to: nothing to shrink by 4, and no slack below 0."""
    made = occupancy("gfx942", wave_size=64, vgprs=256, sgprs=112, block=256)
    assert made.sentence == "VGPRs bind at 2 waves of 8: 88 VGPRs over the step to 3 waves"
    assert made.slack == {"VGPRs": 0, "SGPRs": 0, "LDS": 32768}


def test_steps_are_those_of_llvms_calculator():
    """What llvm-calc-occupancy's own test expects for the next step, and the registers of its table of limits."""
    over = occupancy("gfx950", wave_size=64, vgprs=250, block=64)
    assert (over.next_step.waves, over.next_step.needs[0].at_most, over.binding.name) == (3, 168, "VGPRs")
    both = occupancy("gfx90a", wave_size=64, vgprs=80, sgprs=102)
    assert [(need.resource, need.at_most) for need in both.next_step.needs] == [("VGPRs", 72), ("SGPRs", 96)]
    assert both.next_step.waves == 7
    lds = occupancy("gfx90a", wave_size=64, vgprs=8, block=256, lds_bytes=40960)
    assert (lds.next_step.waves, lds.next_step.needs) == (2, (module.Need("LDS", 40960, 32768),))
    assert both.bound_by == ("VGPRs", "SGPRs")
    assert occupancy("gfx90a", wave_size=64, vgprs=64, sgprs=80).slack == {"VGPRs": 0, "SGPRs": 0}
    assert occupancy("gfx90a", wave_size=64, vgprs=40, sgprs=20, block=64).next_step is None


def compiled(compiler, chip, wave_size, cu_mode, kernels):
    """Return (VGPRs, SGPRs, occupancy) of kernels (VGPRs, AGPRs, LDS, block), as the compiler prints them."""
    text = ['target triple = "amdgcn-amd-amdhsa"']
    for index, (vgprs, agprs, lds, block) in enumerate(kernels):
        if lds:
            text.append(f"@lds{index} = internal addrspace(3) global [{lds} x i8] poison, align 4")
        used = ",".join([f"~{{v{vgprs - 1}}}", *([f"~{{a{agprs - 1}}}"] if agprs else [])])
        store = f"store volatile i8 1, ptr addrspace(3) @lds{index}" if lds else ""
        text.append(
            f'define amdgpu_kernel void @k{index}() "amdgpu-flat-work-group-size"="{block},{block}" {{\n'
            f'  call void asm sideeffect "", "{used}"()\n  {store}\n  ret void\n}}'
        )
    options = [
        *(["-mwavefrontsize64"] if (wave_size, chip.wave_sizes[0]) == (64, 32) else []),
        *(["-mcumode"] if cu_mode else []),
    ]
    command = [
        *compiler.argv, "-x", "ir", "-target", "amdgcn-amd-amdhsa", f"-mcpu={chip.name}", "-nogpulib",
        *options, "-S", "-", "-o", "-",
    ]  # fmt: skip
    done = subprocess.run(command, input="\n".join(text), capture_output=True, text=True, check=True)
    found = []
    for part in done.stdout.split(".AMDGPU.csdata")[1:]:
        said = {name: int(number) for name, number in re.findall(r"^; (\w+): (\d+)", part, re.MULTILINE)}
        found.append((said.get("TotalNumVgprs", said["NumVgprs"]), said["TotalNumSgprs"], said["Occupancy"]))
    assert len(found) == len(kernels)
    return found


OTHERS = ("gfx1010", "gfx10-1-generic", "gfx10-3-generic", "gfx11-generic", "gfx12-generic")
"""Of those that there are no kernels for."""


def drawn(rng, chip, wave_size, cu_mode):
    """Return a kernel that the compiler takes as it is: its block fits, and its LDS is whole granules."""
    block = rng.choice(BLOCKS)
    simds = chip.simds_per_cu * (1 if cu_mode else chip.cus_per_wgp)
    waves = math.ceil(block / wave_size / simds)
    granule = chip.vgpr_granule[wave_size]
    most = min(chip.vgprs[wave_size] // waves // granule * granule, chip.max_vgprs)
    vgprs, agprs = rng.randint(2, most), 0  # the store to LDS needs two
    if chip.max_agprs and rng.random() < 0.5:
        most = min(chip.vgprs[wave_size] // waves, 2 * chip.max_vgprs)
        vgprs = rng.randint(2, min(chip.max_vgprs, most // 2))
        agprs = rng.randint(1, min(chip.max_agprs, most - (vgprs + 3) // 4 * 4))
    step = chip.compiler_lds_granule_bytes
    lds = rng.choice([0, step * rng.randint(1, chip.lds_block_bytes // step)])
    return vgprs, agprs, lds, block


@pytest.fixture(scope="module")
def compiler():
    """The pinned compiler."""
    try:
        chosen = choose_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))
    if chosen.kind != "ziglang":
        pytest.skip(f"{chosen.version} may count otherwise than the pinned compiler")
    return chosen


def test_the_compiler_counts_the_same(compiler):
    """Random kernels, every architecture, both wave sizes and modes: its occupancy and its sum of registers are ours.

    LDS is in whole granules and SGPRs are few: there LLVM 22, the pinned one, and LLVM's main branch agree.
    """
    rng = random.Random(7)  # noqa: S311 - test data
    jobs = []
    for name in (*architectures(), *OTHERS):
        chip = architecture(name)
        for wave_size, cu_mode in itertools.product(chip.wave_sizes, (False, True)[: chip.cus_per_wgp]):
            kernels = [drawn(rng, chip, wave_size, cu_mode) for _ in range(25)]
            jobs.append((chip, wave_size, cu_mode, kernels))
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda job: compiled(compiler, *job), jobs))
    checked = 0
    for (chip, wave_size, cu_mode, kernels), found in zip(jobs, answers, strict=True):
        for (vgprs, agprs, lds, block), (total, sgprs, waves) in zip(kernels, found, strict=True):
            ours = occupancy(
                chip.name, wave_size=wave_size, vgprs=vgprs, agprs=agprs, sgprs=sgprs, lds_bytes=lds, block=block,
                wgp_mode=not cu_mode,
            )  # fmt: skip
            what = (chip.name, wave_size, cu_mode, vgprs, agprs, lds, block)
            theirs = llvm_waves_per_simd(
                chip, wave_size=wave_size, vgprs=ours.vgprs, sgprs=sgprs, lds_bytes=lds, blocks=(block, block),
                wgp_mode=not cu_mode,
            )  # fmt: skip
            assert (ours.vgprs, theirs) == (total, waves), what
            checked += 1
    assert checked == 25 * (71 + 4 * len(OTHERS))


def simulated(chip, wave_size, vgprs, sgprs, lds, block, wgp_mode):
    """Return the blocks that an empty CU or WGP takes, by giving each wave the emptiest SIMD that has room."""
    cus = chip.cus_per_wgp if wgp_mode else 1
    free_lds, barriers = cus * chip.lds_bytes, cus * chip.blocks_per_cu
    simds = [[chip.waves_per_simd, chip.vgprs[wave_size], chip.sgprs] for _ in range(cus * chip.simds_per_cu)]
    granules = range(chip.vgpr_granule[wave_size], 10**4, chip.vgpr_granule[wave_size])
    wave = [1, next(size for size in granules if size >= vgprs), 0]
    if chip.sgprs:
        wave[2] = next(size for size in range(16, 10**4, 16) if size >= sgprs) + 16
    if lds > chip.lds_block_bytes:
        return 0  # in WGP mode two CUs have more than one block may take
    lds = next(size for size in range(0, 10**6, chip.lds_granule_bytes) if size >= lds)
    blocks = 0
    while True:
        if lds > free_lds or (block > wave_size and barriers == 0):
            return blocks
        for _ in range(-(-block // wave_size)):
            room = [simd for simd in simds if all(have >= want for have, want in zip(simd, wave, strict=True))]
            if not room:
                return blocks
            emptiest = max(room)
            emptiest[:] = [have - want for have, want in zip(emptiest, wave, strict=True)]
        free_lds, barriers, blocks = free_lds - lds, barriers - 1, blocks + 1


@pytest.mark.parametrize("name", ["gfx90a", "gfx950", "gfx1030", "gfx1100", "gfx1201"])
def test_filling_a_machine_block_by_block_gives_the_same(name):
    """The formulas agree with handing out register files and LDS one wave at a time; steps and slack, too, hold there.

    Never more waves than LLVM's: whole blocks and granules only take away.
    """
    chip, rng = architecture(name), random.Random(name)  # noqa: S311 - test data
    for _ in range(300):
        size, wgp_mode = rng.choice(chip.wave_sizes), rng.random() < 0.7
        most = chip.lds_block_bytes
        case = {
            "vgprs": rng.randint(0, 256), "sgprs": rng.randint(0, 108), "block": rng.choice(BLOCKS),
            "lds_bytes": rng.choice([0, rng.randint(1, 4096), rng.randint(1, most)]),
        }  # fmt: skip

        def fill(size=size, wgp_mode=wgp_mode, case=case, **changes):
            now = case | changes
            return simulated(chip, size, now["vgprs"], now["sgprs"], now["lds_bytes"], now["block"], wgp_mode)

        found = occupancy(name, wave_size=size, wgp_mode=wgp_mode, **case)
        cus = 2 if found.unit == "WGP" else 1
        assert found.blocks == fill(), case
        assert found.waves_per_simd * chip.simds_per_cu * cus == found.blocks * -(-case["block"] // size)
        assert found.waves_per_simd <= llvm_waves_per_simd(
            chip, wave_size=size, vgprs=case["vgprs"], sgprs=case["sgprs"], lds_bytes=case["lds_bytes"],
            blocks=(case["block"], case["block"]), wgp_mode=wgp_mode,
        )  # fmt: skip
        assert found.waves_per_simd + found.lost_wave_slots == chip.waves_per_simd
        names = {"VGPRs": "vgprs", "SGPRs": "sgprs", "LDS": "lds_bytes"}
        if found.next_step is not None:
            met = {names[need.resource]: need.at_most for need in found.next_step.needs}
            assert fill(**met) == found.next_step.blocks > found.blocks
            for field, number in met.items():
                assert fill(**met | {field: number + 1}) < found.next_step.blocks, (case, field)
        for resource, by in found.slack.items():
            field = names[resource]
            assert fill(**{field: case[field] + by}) == found.blocks, (case, resource)


def test_the_trap_handlers_registers_count_as_on_an_mi300():
    """A CU of a gfx942 held 28 blocks of a kernel with 92 SGPRs, where 32 were promised (rocm-systems#10618)."""
    found = occupancy("gfx942", wave_size=64, vgprs=32, sgprs=92, block=64)
    assert (found.blocks, found.binding.name) == (28, "SGPRs")


@pytest.mark.parametrize(
    ("arch", "vgprs", "waves"), [("gfx900", 130, 1), ("gfx908", 24, 10), ("gfx1250", 130, 7), ("gfx1250", 1024, 1)]
)
def test_of_what_there_are_no_kernels_for(arch, vgprs, waves):
    """As clang 22 prints them."""
    size = architecture(arch).wave_sizes[0]
    assert occupancy(arch, wave_size=size, vgprs=vgprs, sgprs=4, block=64).waves_per_simd == waves


def test_barriers_never_bind_first():
    """With two waves or more in a block, the wave slots are full before the barriers are used up."""
    for name in architectures():
        chip = architecture(name)
        assert 2 * chip.blocks_per_cu >= chip.simds_per_cu * chip.waves_per_simd


@pytest.mark.parametrize(
    ("arch", "kernel", "sentence"),
    [
        ("gfx1100", {"vgprs": 124}, "VGPRs bind at 10 waves of 16: 4 VGPRs over the step to 12 waves"),
        ("gfx1100", {"vgprs": 97}, "VGPRs bind at 12 waves of 16: 1 VGPR over the step to 16 waves"),
        ("gfx1100", {"vgprs": 96}, "registers allow all 16 wave slots of a SIMD"),
        ("gfx942", {"vgprs": 65}, "VGPRs bind at 7 waves of 8: 1 VGPR over the step to 8 waves"),
        ("gfx942", {"vgprs": 24, "block": 256}, "registers, LDS and block size allow all 8 wave slots of a SIMD"),
        ("gfx942", {"vgprs": 60, "sgprs": 97}, "SGPRs bind at 6 waves of 8: 1 SGPR over the step to 7 waves"),
        ("gfx942", {"vgprs": 60, "block": 768},
         ("at most 6 waves of 8: blocks of 12 waves fit 24 of the CU's 32 wave slots; "
          "only another block size gives more")),
        ("gfx942", {"vgprs": 130, "block": 512, "lds_bytes": 65536},
         "VGPRs and LDS bind at 2 waves of 8: 2 VGPRs and 32768 bytes of LDS over the step to 4 waves"),
        ("gfx90a", {"vgprs": 8, "block": 256, "lds_bytes": 40960},
         "LDS binds at 1 wave of 8: 8192 bytes of LDS over the step to 2 waves"),
        ("gfx1030", {"vgprs": 256, "block": 1024},
         "no block of 1024 threads fits a WGP: VGPRs allow none: 128 VGPRs over the step to 8 waves"),
    ],
)  # fmt: skip
def test_the_sentence_says_what_binds_and_by_how_much(arch, kernel, sentence):
    """As an engineer would say it."""
    size = architecture(arch).wave_sizes[0]
    assert occupancy(arch, wave_size=size, **kernel).sentence == sentence


def test_agprs_lie_behind_the_vgprs():
    """gfx90a and later: 9 VGPRs and 32 AGPRs are 44 registers; the sum may also be given as VGPRs."""
    split = occupancy("gfx942:sramecc+:xnack-", wave_size=64, vgprs=9, agprs=120)
    assert (split.vgprs, split.waves_per_simd) == (132, 3)
    assert occupancy("gfx942", wave_size=64, vgprs=132) == split


def test_a_wave_has_a_granule_even_without_registers():
    """0 VGPRs take as much as 1."""
    none, one = (occupancy("gfx1100", wave_size=32, vgprs=vgprs) for vgprs in (0, 1))
    assert none.limits == one.limits


def test_in_cu_mode_a_block_has_half_of_the_wgp():
    """Two SIMDs, 64 KiB of LDS and half of the blocks; the waves of a SIMD stay the same."""
    wgp = occupancy("gfx1201", wave_size=32, vgprs=24, block=64, lds_bytes=9000)
    cu = occupancy("gfx1201", wave_size=32, vgprs=24, block=64, lds_bytes=9000, wgp_mode=False)
    assert (wgp.unit, wgp.blocks, cu.unit, cu.blocks) == ("WGP", 14, "CU", 7)
    assert wgp.waves_per_simd == cu.waves_per_simd == 7


@pytest.mark.parametrize(
    ("arch", "kernel", "reason"),
    [
        ("gfx1100", {"wave_size": 16, "vgprs": 1}, "no waves of 16 lanes"),
        ("gfx942", {"wave_size": 32, "vgprs": 1}, "its waves have 64"),
        ("gfx1100", {"wave_size": 32, "vgprs": 257}, "257 VGPRs are impossible"),
        ("gfx90a", {"wave_size": 64, "vgprs": 513}, "0 to 512"),
        ("gfx90a", {"wave_size": 64, "vgprs": 257, "agprs": 1}, "0 to 256"),
        ("gfx1100", {"wave_size": 32, "vgprs": 1, "agprs": 4}, "has no AGPRs"),
        ("gfx942", {"wave_size": 64, "vgprs": 1, "sgprs": 113}, "113 SGPRs"),
        ("gfx942", {"wave_size": 64, "vgprs": -1}, "-1 VGPRs"),
        ("gfx942", {"wave_size": 64, "vgprs": 1, "block": 0}, "a block of 0 threads"),
        ("gfx942", {"wave_size": 64, "vgprs": 1, "block": 1025}, "1025 threads in a block"),
        ("gfx942", {"wave_size": 64, "vgprs": 1, "block": 64, "lds_bytes": -1}, "-1 bytes of LDS"),
        ("gfx942", {"wave_size": 64, "vgprs": 1, "lds_bytes": 1}, "give its threads"),
    ],
)
def test_impossible_numbers_are_refused_with_the_reason(arch, kernel, reason):
    """One line that says what cannot be."""
    with pytest.raises(OccupancyError, match=reason):
        occupancy(arch, **kernel)
