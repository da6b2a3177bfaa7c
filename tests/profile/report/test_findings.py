"""Findings are sentences with the numbers behind them, ordered by what they would gain."""

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.profile.report.findings import TOO_LOW, _rules
from rocattn_profiling.profile.report.findings import find as find_within
from rocattn_profiling.profile.report.limits import bounds

from ..kit import lines_of

MI300X = {"cus": 304.0, "simds_per_cu": 4.0, "peak_gbps": 5324.8}
WORDS = {"limiter": "", "bound": "", "place": "GPU 5", "others": "GPU 4", "long": "1 of 9", "median": "8 us"}
RX_7900_XT = {"cus": 84.0, "simds_per_cu": 2.0, "peak_gbps": 800.0, "median_ns": 50_000.0, "launches": 3.0}
BUSY = MI300X | {"median_ns": 50_000.0, "launches": 3.0, "blocks": 4096.0, "time_share": 1.0}


EXAMPLES = {
    "few-rounds": {
        "blocks": 640.0, "blocks_that_fit": 1216.0, "theoretical_occupancy_pct": 100.0, "achieved_occupancy_pct": 46.0,
    },
}  # fmt: skip
"""Numbers of rules whose conditions compare the same names twice."""
FAR = {"l2_pct": 1.0, "l1_pct": 1.0, "lds_busy_pct": 1.0, "matrix_busy_pct": 1.0, "valu_busy_pct": 1.0}
"""What each unit but the memory does of a kernel that is far from all their limits."""


def find(numbers, limiter="", too_low=frozenset()):
    """Return the findings of a kernel on an MI300X, or on an RX 7900 XT."""
    arch = "gfx942" if numbers.get("simds_per_cu", 4) == 4 else "gfx1100"
    return find_within(numbers, bounds(numbers, arch, too_low), limiter, too_low)


def keys(numbers, limiter=""):
    """Return which rules hold."""
    return [finding.key for finding in find(numbers, limiter)]


FITS = BUSY | {"theoretical_occupancy_pct": 100.0, "blocks_that_fit": 1216.0}
IDLE = BUSY | {"median_ns": 3000.0, "blocks": 100.0}
AT_PEAK = BUSY | {"read_gbps": 1.0, "write_gbps": 1.0}
CONFLICTS = {"lds_conflict_time_pct": 5.0, "lds_conflict_pct": 20.0}
HOLD = [
    ("no counters: nothing is said, not even that nothing is wrong", BUSY, []),
    # 42 blocks keep the 42 work group processors of an RX 7900 XT busy: no unit is idle with fewer than 84.
    ("41 blocks for 42 WGPs", RX_7900_XT | {"blocks": 41.0}, ["few-blocks-rdna"]),
    *((f"{blocks} blocks for 42 WGPs", RX_7900_XT | {"blocks": blocks}, []) for blocks in (42.0, 83.0, 84.0)),
    ("exactly at the peak", AT_PEAK | {"memory_pct": 100.0}, ["memory-bound"]),
    ("at the bound of the rule", AT_PEAK | {"memory_pct": 60.0}, ["memory-bound"]),
    ("0 bytes of scratch are none", BUSY | {"scratch_bytes": 0.0}, []),
    ("4 bytes of scratch", BUSY | {"scratch_bytes": 4.0}, ["scratch"]),
    ("ten whole rounds", FITS | {"blocks": 12160.0, "achieved_occupancy_pct": 46.0}, ["occupancy-below-theory"]),
    # A last round that is 99 % full does not halve the occupancy; nor is a tail to blame where it explains a part.
    *((f"{blocks:g} blocks at {achieved:g} %", FITS | {"blocks": blocks, "achieved_occupancy_pct": achieved},
       ["occupancy-below-theory"])
      for blocks, achieved in ((1216.0, 46.0), (2048.0, 46.0), (2400.0, 20.0), (640.0, 20.0))),
    # Short launches and few waves are no news beside lanes a row apart; a waste of 5 % is none beside them.
    ("lanes apart in a short launch", IDLE | {"l1_accesses_per_instruction": 64.0}, ["lanes-apart", "launch-bound"]),
    ("few conflicts in a short launch", IDLE | CONFLICTS, ["launch-bound", "bank-conflicts-of-time"]),
    ("contended atomics in a few blocks",
     IDLE | {"median_ns": 50_000.0, "atomic_latency_cycles": 1937.0, "atomic_wait_pct": 47.0},
     ["contended-atomics", "few-blocks"]),
    ("atomics as slow as reads", BUSY | {"atomic_latency_cycles": 1500.0, "read_latency_cycles": 1600.0}, []),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "found"), [each[1:] for each in HOLD], ids=[name for name, *_ in HOLD])
def test_which_rules_hold(numbers, found):
    """In their order, the most to gain first."""
    assert keys(numbers) == found


def test_findings_are_sentences_with_their_numbers():
    """Rounds are not taken for uneven blocks: 640 of which 1,216 fit leave slots empty as there are no more of them."""
    few = [FITS | {"blocks": blocks, "achieved_occupancy_pct": achieved}
           for blocks, achieved in ((640.0, 46.0), (700.0, 55.0), (1217.0, 49.0), (1300.0, 50.0))]  # fmt: skip
    cases = {
        # A Radeon with an Infinity Cache shows more than the DRAM's peak for K and V that fit there.
        "cache": RX_7900_XT | {"memory_pct": 140.0, "read_gbps": 1000.0, "write_gbps": 120.0},
        "memory": BUSY | {"memory_pct": 78.0}, **{f"{each['blocks']:.0f}": each for each in few},
        "uneven": FITS | {"blocks": 1216.0, "achieved_occupancy_pct": 46.0},
        # LDS of a size that only the launch has: neither the blocks nor their order are to blame before it is known.
        "dynamic": BUSY | {"theoretical_occupancy_pct": 100.0, "achieved_occupancy_pct": 46.0, "dynamic_lds": 1.0},
        "one block": BUSY | {"blocks": 1.0}, "4.2 % of the time": BUSY | {"blocks": 1.0, "time_share": 0.042},
    }  # fmt: skip
    found = {name: find(numbers) for name, numbers in cases.items()}
    assert {len(each) for each in found.values()} == {1}
    said = {f"{name}, {each.key}": f"{each.sentence} ({each.gain_text})" for name, (each,) in found.items()}
    assert lines_of(said) == snapshot("""\
cache, infinity-cache-bound: moves 1.12 TB/s between L2 and memory, 140 % of the DRAM's peak: an Infinity Cache serves
    part of it, so its distance to a limit is unknown; fewer bytes beyond L2 make it faster (gain not known)
memory, memory-bound: memory bound at 78 % of 5.32 TB/s: fewer bytes make it faster; fewer instructions do not (at
    most 22 % of all kernels' time, more with fewer bytes)
640, few-rounds: 46 % of the wave slots filled where 100 % fit: 640 blocks, and 1,216 fit at once, so the last round
    is 53 % full; a larger launch, or smaller blocks, would fill the GPU (gain not known)
700, few-rounds: 55 % of the wave slots filled where 100 % fit: 700 blocks, and 1,216 fit at once, so the last round
    is 58 % full; a larger launch, or smaller blocks, would fill the GPU (gain not known)
1217, few-rounds: 49 % of the wave slots filled where 100 % fit: 1,217 blocks, and 1,216 fit at once, so the last
    round is 0 % full; a larger launch, or smaller blocks, would fill the GPU (gain not known)
1300, few-rounds: 50 % of the wave slots filled where 100 % fit: 1,300 blocks, and 1,216 fit at once, so the last
    round is 7 % full; a larger launch, or smaller blocks, would fill the GPU (gain not known)
uneven, occupancy-below-theory: 46 % of the wave slots filled where 100 % fit, and the number of blocks does not
    explain it: if they finish unevenly, launch the heavy ones first, or make blocks smaller (gain not known)
dynamic, dynamic-lds: 46 % of the wave slots filled, where at most 100 % fit: it uses LDS although the files say 0
    bytes, so LDS is allocated at launch; less of it per block may let more blocks run at once (gain not known)
one block, few-blocks: fewer blocks (1) than compute units (304): 303 of them are idle; split the work further
    (decode: over keys) (at most 100 % of all kernels' time)
4.2 % of the time, few-blocks: fewer blocks (1) than compute units (304): 303 of them are idle; split the work further
    (decode: over keys) (at most 4.2 % of all kernels' time)\
""")


@pytest.mark.parametrize(
    ("numbers", "low", "key"),
    [
        (BUSY | CONFLICTS, "lds_conflict_pct", "bank-conflicts-of-time"),
        (BUSY | {"memory_pct": 45.0, "read_bytes": 150.0, "written_bytes": 50.0, "work_bytes": 100.0}, "memory_pct",
         "excess-traffic"),
    ],
    ids=["in the sentence", "in the condition"],
)  # fmt: skip
def test_numbers_too_low_are_remarked_on_wherever_used(numbers, low, key):
    """Neither may be taken for a fact: the condition may hold for a wrong reason, the sentence be wrong."""
    (told,) = find(numbers, "", {low})
    assert (told.key, told.sentence.endswith(TOO_LOW)) == (key, True)


def test_findings_are_ordered_by_their_gain_in_all_kernels_time():
    """A third of the GPU idle gains more than bank conflicts; a kernel of a tenth of the time a tenth of both."""
    numbers = BUSY | {"blocks": 200.0, "lds_conflict_time_pct": 5.0, "lds_conflict_pct": 20.0}
    assert keys(numbers) == ["few-blocks", "bank-conflicts-of-time"]
    tenth = find(numbers | {"time_share": 0.1})
    assert tenth[0].gain == pytest.approx((1 - 200 / 304) / 10)


def test_without_times_nothing_is_said_of_all_kernels_time():
    """Counters of rocprof without time stamps: the finding stands, and is no gain of 0 %."""
    numbers = {"lds_conflict_time_pct": 9.0, "lds_conflict_pct": 20.0}
    (found,) = find(numbers)
    assert (found.gain, found.rank, found.gain_text) == (None, pytest.approx(0.09), "gain not known")


def test_the_limiter_of_occupancy_ends_the_sentence():
    """The calculator's own words."""
    numbers = BUSY | FAR | {"memory_pct": 20.0, "matrix_busy_pct": 30.0, "achieved_occupancy_pct": 22.0}
    (found,) = find(numbers, "VGPRs bind: 4 over the step to 3 waves.")
    assert found.key == "latency-bound"
    assert found.sentence.endswith("VGPRs bind: 4 over the step to 3 waves.")
    assert found.gain == pytest.approx(0.7)


def test_nothing_is_said_to_wait_while_a_limit_is_not_known():
    """What was not counted is not 0: the LDS of such a kernel was busy 79 % of its time."""
    numbers = BUSY | FAR | {"memory_pct": 20.0, "achieved_occupancy_pct": 22.0}
    assert keys(numbers) == ["latency-bound"]
    for name in FAR:
        assert keys({key: value for key, value in numbers.items() if key != name}) == []
    assert keys(numbers | {"waiting_pct": 58.0}) == ["latency-bound-waiting"]


@pytest.mark.parametrize(
    ("key", "numbers", "bound"),
    [
        ("vector-bound", {"valu_busy_pct": 65.0, "matrix_busy_pct": 55.0}, 0.35),
        ("matrix-bound", {"valu_busy_pct": 65.0, "matrix_busy_pct": 75.0}, 0.25),
        ("few-blocks", {"blocks": 100.0, "valu_busy_pct": 40.0}, 0.6),
        (
            "bank-conflicts-of-time",
            {"lds_conflict_time_pct": 40.0, "lds_conflict_pct": 50.0, "lds_busy_pct": 80.0},
            0.4,
        ),
        (
            "bank-conflicts-of-time",
            {"lds_conflict_time_pct": 40.0, "lds_conflict_pct": 50.0, "lds_busy_pct": 80.0, "memory_pct": 70.0},
            0.3,
        ),
        ("excess-traffic", {"memory_pct": 50.0, "read_bytes": 150.0, "written_bytes": 50.0, "work_bytes": 100.0}, 0.5),
        ("latency-bound-waiting", FAR | {"memory_pct": 40.0, "achieved_occupancy_pct": 9.0, "waiting_pct": 90.0}, 0.6),
    ],
)
def test_a_gain_is_no_less_than_what_could_go(key, numbers, bound):
    """Time cannot fall below what a limit asks of the same work, or by more than the finding is of."""
    gains = {finding.key: finding.gain for finding in find(BUSY | numbers)}
    assert gains[key] == pytest.approx(bound)


@pytest.mark.parametrize("key", ["few-rounds", "occupancy-below-theory", "dynamic-lds"])
def test_an_occupancy_that_is_too_low_explains_nothing(key):
    """The profiler's own cycles make every short kernel look half empty."""
    numbers = BUSY | EXAMPLES["few-rounds"] | {"dynamic_lds": float(key == "dynamic-lds")}
    numbers |= {} if key == "few-rounds" else {"achieved_occupancy_pct": 20.0}
    assert keys(numbers) == [key]
    assert find(numbers, "", {"achieved_occupancy_pct"}) == []


def test_numbers_that_are_too_low_are_not_told_as_facts():
    """Of a kernel so short that the profiler's cycles are among its own; what is over its time has no such remark."""
    numbers = BUSY | {"lds_conflict_time_pct": 5.0, "lds_conflict_pct": 20.0, "memory_pct": 70.0}
    numbers |= {"time_share": 1.0}
    memory, conflicts = find(numbers, "", {"lds_conflict_time_pct"})
    assert (memory.key, conflicts.key) == ("memory-bound", "bank-conflicts-of-time")
    assert conflicts.gain is None  # what is too low bounds nothing
    assert find(numbers)[1].gain == pytest.approx(0.05)
    assert "too low" in conflicts.sentence
    assert "too low" not in memory.sentence


def test_a_gain_is_a_share_of_all_time_and_a_rank_is_none():
    """A kernel of half the time; what has no bound is ordered by its rank in that half, and says that it has none."""
    numbers = BUSY | {"time_share": 0.5, "memory_pct": 78.0, "scratch_bytes": 4.0}
    scratch, memory = find(numbers)
    assert (memory.gain, memory.rank) == (pytest.approx(0.11), pytest.approx(0.11))
    assert memory.gain_text == "at most 11 % of all kernels' time, more with fewer bytes"
    assert (scratch.gain, scratch.rank, scratch.gain_text) == (None, pytest.approx(0.15), "gain not known")


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: rule.key)
def test_every_rule_can_hold_and_can_fail(rule):
    """Numbers exist that satisfy it, and its sentence has a number in it."""
    names = {name for each in (*rule.when, *rule.unless) for name in each.names}
    tried = _satisfy(rule)
    assert tried is not None, f"no numbers tried satisfy {rule.key}"
    assert any(char.isdigit() for char in tried.sentence)
    extremes = [rule.apply(dict.fromkeys(names, value), bounds({}, ""), WORDS, set()) for value in (-1e30, 1e30)]
    assert None in extremes


def _satisfy(rule):
    """Search numbers by which a rule holds: each name just beyond the bounds that conditions set it."""
    numbers = dict.fromkeys(
        [
            "read_bytes", "written_bytes", "work_bytes", "median_ns", "launches", "blocks", "memory_pct",
            "lds_conflict_pct", "matrix_busy_pct", "valu_busy_pct", "achieved_occupancy_pct",
            "theoretical_occupancy_pct", "waiting_pct", "read_gbps", "write_gbps", "blocks_that_fit", "launched_waves",
            "atomics_per_wave",
        ], 50.0,
    ) | MI300X  # fmt: skip
    if rule.key in EXAMPLES:
        return rule.apply(numbers | EXAMPLES[rule.key], bounds({}, ""), WORDS, set())
    for condition in rule.unless:
        for name in condition.names - {name for each in rule.when for name in each.names}:
            numbers.pop(name, None)
    for condition in rule.when:
        if condition.right.names:
            (name, *_), larger = condition.left.names, condition.compare(2, 1)
            numbers[name] = 1e9 if larger else 1.0
            continue
        (name,), bound = condition.left.names, float(condition.right.evaluate({}))
        numbers[name] = bound + (1 if condition.compare(2, 1) else -1)
    return rule.apply(numbers, bounds({}, ""), WORDS, set())


WASTES = [
    ("lanes-apart", {"l1_accesses_per_instruction": 64.0}, 0.75),
    ("unused-bytes", {"read_amplification": 8.0, "l2_hit_pct": 22.0}, 0.875),
    ("contended-atomics", {"atomic_latency_cycles": 1937.0, "atomic_wait_pct": 20.0}, 0.4),
    ("many-atomics", {"atomic_pct": 90.0, "atomics_per_wave": 4.0, "waiting_pct": 60.0}, 0.6),
    ("address-translation", {"utcl1_miss_pct": 7.0, "utcl1_misses": 1e6}, 0.7),
    ("stalled-writes", {"write_stall_pct": 45.0}, 0.45),
    (
        "bank-conflicts-at-least",
        {
            "lds_conflict_least_pct": 25.0,
            "lds_conflict_pct": 94.0,
            "lds_conflict_busy_pct": 40.0,
            "lds_conflict_time_pct": 17.0,
        },
        0.4,
    ),
    ("unaligned-lds", {"lds_unaligned_pct": 80.0, "lds_busy_pct": 40.0}, 0.32),
    ("bank-conflicts", {"lds_conflict_pct": 50.0, "lds_busy_pct": 40.0}, 0.2),
    ("excess-traffic", {"memory_pct": 20.0, "read_bytes": 150.0, "written_bytes": 50.0, "work_bytes": 100.0}, 0.5),
]


@pytest.mark.parametrize(("key", "numbers", "gain"), WASTES, ids=[key for key, *_ in WASTES])
@pytest.mark.parametrize("limit", [{}, {"valu_busy_pct": 95.0}, {"memory_pct": 30.0}], ids=["far", "bound", "near"])
def test_a_waste_is_told_whatever_limit_is_nearest(key, numbers, gain, limit):
    """With what it can gain at most: no more than the other limits leave, nor than its waves wait."""
    found = {each.key: each for each in find(BUSY | limit | numbers)}
    assert found[key].gain == pytest.approx(min(gain, 0.05 if "valu_busy_pct" in limit else 1.0))
    assert found[key].waste == found[key].gain
    waiting = {each.key: each for each in find(BUSY | numbers | {"waiting_pct": 45.0})}
    assert waiting[key].gain <= max(0.45, gain if key.startswith(("bank", "unaligned")) else 0)
