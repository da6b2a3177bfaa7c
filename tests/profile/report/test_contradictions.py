"""No two sentences about one kernel contradict each other: random launches within what the hardware can do."""

import random
import re

import pytest

from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.findings import _rules, wastes

from .test_limits import made_of
from .test_wastes import HALO, MI300A

MI210 = {
    "arch": "gfx90a", "product": "MI210", "cus": 104, "simds": 416, "xccs": 1, "max_clock_mhz": 1700,
    "max_memory_clock_mhz": 1600, "memory_channels": 32, "l2_channels": 32,
}  # fmt: skip
MI350X = {"arch": "gfx950", "product": "MI350X", "cus": 256, "simds": 1024, "max_clock_mhz": 2200}
GPUS = {
    "MI210": (MI210, "TCC_EA", 32), "MI300X": ({}, "TCC_EA0", 128),
    "MI300A": (MI300A | {"l2_channels": 96}, "TCC_EA0", 96), "MI350X": (MI350X, "TCC_EA0", 128),
    "8060S": (HALO | {"l2_channels": None}, "", 8),
}  # fmt: skip
QUANTITIES = (
    r"(\d+) % of the wave slots filled", r"where (?:at most )?(\d+) % fit", r"its waves wait (\d+) % of their time",
    r"conflicts cost (\d+) % of the kernel's time", r"([\d,]+) L1 accesses per", r"with (\d+) % L2 hits",
    r"([\d.]+) µs per launch", r"(\d+) VGPRs", r"fewer blocks \((\d+)\)", r"fit at once|([\d,]+) blocks, and",
)  # fmt: skip
"""What a sentence may say of a kernel: the same number wherever it is said."""


def launch(rng, gpu):
    """Return counters of one launch, each part of its whole, none more than its unit can do in the time."""
    agent, prefix, channels = GPUS[gpu]
    cus, clock = agent.get("cus", 304), agent.get("max_clock_mhz", 2100) / 1000
    ns = rng.choice([3000, 6000, 40_000, 1_000_000])
    speed = rng.uniform(0.7, 1.0)  # of the highest clock
    cycles = ns * clock * speed
    mine = cycles + rng.choice([0, 0, 20_000])  # with the profiler's own
    block = rng.choice([64, 256, 1024])
    blocks = rng.choice([8, 200, cus, 2 * cus + 7, 4096])
    waves = blocks * block // 64
    low = rng.choice([0.02, 0.3, 0.95])

    def of(most, part=None):
        return int(most * rng.uniform(0, low if part is None else part))

    busy = cycles * rng.uniform(0.5, 1.0)
    level = waves * busy * rng.uniform(0.01, 1.0) if waves <= 32 * cus else 32 * cus * busy * rng.uniform(0.01, 1)
    if not prefix:
        counted = {
            "GRBM_GUI_ACTIVE": mine,
            "FETCH_SIZE": of(ns * 256 / 1024),
            "MemUnitBusy": 100 * rng.random(),
            "OccupancyPercent": 100 * rng.random(),
            "LDSBankConflict": 50 * rng.random(),
            "L2CacheHit": 100 * rng.random(),
            "SQ_INSTS_VALU": of(2 * cus * cycles),
            "WriteUnitStalled": 100 * rng.random(),
        }
    else:
        reads = of(min(channels * cycles, ns * 4000 / 64))
        lds = of(cus * cycles)
        conflict = of(lds, 1)
        instructions = max(1, of(cus * cycles / 16))
        atomics = rng.choice([0, waves])
        ta = of(cus * busy, 1)
        counted = {
            "GRBM_GUI_ACTIVE": mine * agent.get("xccs", 8), "SQ_WAVES": waves, "SQ_WAVE_CYCLES": level / 4,
            "SQ_WAIT_ANY": level / 4 * rng.random(), "SQ_BUSY_CU_CYCLES": cus * busy,
            "SQ_LDS_IDX_ACTIVE": lds, "SQ_LDS_BANK_CONFLICT": conflict, "SQ_LDS_UNALIGNED_STALL": of(lds - conflict, 1),
            "SQ_INSTS_LDS": lds // 2, "SQ_ACTIVE_INST_VALU": (valu := of(cus * cycles)),
            "SQ_THREAD_CYCLES_VALU": valu * rng.uniform(8, 64), "SQ_VALU_MFMA_BUSY_CYCLES": of(4 * cus * cycles),
            "TA_FLAT_WAVEFRONTS_sum": instructions, "TA_BUFFER_WAVEFRONTS_sum": 0,
            "TCP_TOTAL_CACHE_ACCESSES_sum": min(instructions * rng.choice([4, 16, 64]), int(cus * cycles)),
            "TA_FLAT_READ_WAVEFRONTS_sum": instructions, "TA_BUFFER_READ_WAVEFRONTS_sum": 0,
            "TA_TA_BUSY_sum": ta, "TA_ADDR_STALLED_BY_TC_CYCLES_sum": of(ta, 0.5),
            "TA_DATA_STALLED_BY_TC_CYCLES_sum": of(ta, 0.5), "TCC_REQ_sum": (asked := of(channels * cycles)),
            "TCC_HIT_sum": (hits := of(asked, 1)), "TCC_MISS_sum": asked - hits,
            f"{prefix}_RDREQ_sum": reads, f"{prefix}_RDREQ_32B_sum": 0, "TCC_BUBBLE_sum": 0,
            f"{prefix}_WRREQ_sum": reads // 4, f"{prefix}_WRREQ_64B_sum": reads // 4,
            f"{prefix}_ATOMIC_sum": atomics, f"{prefix}_ATOMIC_LEVEL_sum": atomics * rng.choice([400, 2000, 9000]),
            "TCP_UTCL1_REQUEST_sum": (asks := of(cus * cycles, 1)), "TCP_UTCL1_TRANSLATION_MISS_sum": of(asks, 0.3),
            f"{prefix}_WRREQ_STALL_sum": of(channels * cycles, 1), "TCC_BUSY_sum": channels * cycles,
        }  # fmt: skip
    for name in rng.sample(sorted(counted), rng.choice([0, 0, 3, 12]) if prefix else 2):
        counted.pop(name)
    made = made_of({"ns": ns, **counted}, **agent)
    made.dispatches = made.dispatches.assign(
        grid=blocks * block, block=block, vgprs=rng.choice([32, 128, 256]), lds_bytes=rng.choice([0, 16_384, 65_536]),
    ).astype(made.dispatches.dtypes)  # fmt: skip
    return profile_report.build(made).kernels[0]


def said(kernel):
    """Return every sentence about a kernel."""
    return [kernel.verdict.text, *(finding.sentence for finding in kernel.findings)]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("seed", range(12))
def test_no_two_sentences_contradict_each_other(gpu, seed):
    """Numbers of one thing are equal, what fits is no less than what there is, and no gain beyond what limits leave."""
    kernel = launch(random.Random(f"{gpu} {seed}"), gpu)  # noqa: S311 - test data
    text, keys = " | ".join(said(kernel)).lower(), {finding.key for finding in kernel.findings}
    numbers = {each: {found for found in re.findall(each.lower(), text) if found} for each in QUANTITIES}
    assert all(len(found) <= 1 for found in numbers.values()), numbers
    filled, fit = (next(iter(numbers[each]), None) for each in QUANTITIES[:2])
    assert filled is None or fit is None or int(filled) <= int(fit), text
    nearest = kernel.bounds.nearest
    bound = [key for key in keys if key.endswith("-bound") and not key.startswith(("latency", "launch", "infinity"))]
    is_near = nearest is not None and nearest.pct >= 50
    assert bool(bound) == is_near
    assert not is_near or not ({"latency-bound", "latency-bound-waiting", "launch-bound"} & keys or "far from" in text)
    assert (kernel.verdict.code == "bound") == is_near
    assert not {"contended-atomics", "many-atomics"} <= keys
    assert len({"few-rounds", "occupancy-below-theory", "dynamic-lds"} & keys) <= 1
    words = {word for word, rule in wastes().values() if rule in keys}
    uncounted = kernel.verdict.text.partition("not counted: ")[2]
    assert not any(word in uncounted for word in words)
    if cost := next(iter(numbers[QUANTITIES[3]]), None):
        assert int(cost) <= next(each.pct for each in kernel.bounds.known if each.key == "lds") + 1
    eases = {rule.key: rule.eases for rule in _rules()}
    for finding in kernel.findings:
        if finding.gain is not None and finding.key in eases:
            assert finding.gain <= 1 - kernel.bounds.without(eases[finding.key]) / 100 + 1e-9
        elif finding.gain is not None:
            assert finding.gain <= 1 - nearest.reached / 100 + 1e-9
        assert finding.gain is None or 0 <= finding.gain <= 1
