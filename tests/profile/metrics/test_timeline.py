"""How the time went: busy, exposed and idle time against a count of every nanosecond, and who comes last."""

import numpy as np
import pandas as pd
import pytest

from rocattn_profiling.profile.ingest.table import (
    ACTIVITY_DTYPES,
    AGENT_DTYPES,
    COUNTER_DTYPES,
    DISPATCH_DTYPES,
    SAMPLE_DTYPES,
    Profile,
)
from rocattn_profiling.profile.metrics.timeline import Intervals, kind_of, timeline

from ..kit import frame

RCCL = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
FILL = "__amd_rocclr_fillBufferAligned"


def traced(launches, copies=(), agents=8, **columns):
    """Return a profile of (kernel, start, end[, agent[, process]]), and of copies of (start, end)."""
    rows = []
    for number, (kernel, start, end, *owner) in enumerate(launches):
        agent, process = (*owner, *(0, 7)[len(owner) :])
        rows.append({
            "process": process, "dispatch": number, "pass": "run", "kernel": kernel, "grid": 256, "block": 256,
            "start_ns": start, "end_ns": end, "agent": agent,
        } | columns)  # fmt: skip
    moved = [
        {"pass": "run", "process": 7, "agent": 0, "kind": "copy", "name": "HOST_TO_DEVICE", "start_ns": a, "end_ns": b}
        for a, b in copies
    ]
    named = frame(
        [{"number": 2 + n, "arch": "gfx942", "product": "MI300X", "cus": 304, "simds": 1216} for n in range(agents)],
        AGENT_DTYPES,
    )
    return Profile(
        dispatches=frame(rows, DISPATCH_DTYPES), activities=frame(moved, ACTIVITY_DTYPES), agents=named
    )  # fmt: skip


def job(late=0, ranks=4, count=40, clock=0, own_process=True):
    """Return launches of ranks that compute and reduce; rank 2 comes late by so much, but to every tenth."""
    rows = []
    for rank in range(ranks):
        for i in range(count):
            begin = clock * rank + 2_000_000 * i + (late if rank == 2 and i % 10 else 0)
            end = clock * rank + 2_000_000 * i + 1_500_000
            owner = (rank, 100 + rank if own_process else 7)
            rows += [(f"gemm_{i % 4}", begin, begin + 500_000, *owner), (RCCL, begin + 600_000, end, *owner)]
    return rows


def test_parts_are_those_of_a_count_of_every_nanosecond():
    """Kernels, collectives, fills and copies on several queues, of any overlap."""
    random = np.random.default_rng(46)
    starts = random.integers(0, 3000, 120)
    names = random.choice(["a", "b", RCCL, FILL], 120)
    launches = [
        (str(n), int(s), int(s + d)) for n, s, d in zip(names, starts, random.integers(1, 30, 120), strict=True)
    ]
    copies = [(int(s), int(s + 25)) for s in random.integers(0, 3000, 20)]
    (gpu,) = timeline(traced(launches, copies)).gpus
    held = np.zeros((3, 4000), bool)  # compute, communication, copies
    for name, start, end in launches:
        held[["", "collective", "runtime"].index(kind_of(name)), start:end] = True
    for start, end in copies:
        held[2, start:end] = True
    compute, communication, moved = held
    assert gpu.compute_ns == compute.sum()
    assert gpu.communication_ns == communication.sum()
    assert gpu.exposed_ns == (communication & ~compute).sum()
    assert gpu.copies_ns == (moved & ~communication & ~compute).sum()
    assert gpu.busy_ns == held.any(axis=0).sum()
    ran = np.flatnonzero(held.any(axis=0))
    assert (gpu.span_ns, gpu.idle_ns) == (ran[-1] + 1 - ran[0], gpu.span_ns - gpu.busy_ns)
    longest = max(np.diff(ran)) - 1
    assert gpu.gaps[0].ns == longest
    shares = np.array(gpu.bins).sum(axis=0) * gpu.span_ns / len(gpu.bins)
    assert shares == pytest.approx([gpu.compute_ns, gpu.exposed_ns, gpu.copies_ns], rel=0.05)


def test_a_union_of_intervals_joins_what_touches():
    """And holds what lies within another."""
    union = Intervals(np.array([0, 2, 10, 12]), np.array([4, 3, 12, 20]))
    assert (union.starts.tolist(), union.ends.tolist(), union.length) == ([0, 10], [4, 20], 14)
    assert union.until(np.array([-1, 3, 7, 11, 99])).tolist() == [0, 3, 4, 5, 14]


def test_a_wait_has_the_kernels_before_and_after_it():
    """Not those that lie within them."""
    gaps = timeline(traced([("a", 0, 100), ("b", 10, 20), ("c", 500, 600), ("d", 620, 700)])).gpus[0].gaps
    assert [(gap.ns, gap.since_ns, gap.before, gap.after) for gap in gaps] == [
        (400, 100, "a", "c"),
        (20, 600, "c", "d"),
    ]


def test_only_a_pass_without_counters_and_samples_tells():
    """A profiler that counts runs kernels one at a time."""
    made = traced([("a", 0, 10), ("b", 90, 100)])
    made.counters = frame([{"row": 0, "counter": "SQ_WAVES", "value": 1.0}], COUNTER_DTYPES)
    assert timeline(made).unknown == "counted"
    sampled = traced([("a", 0, 10), ("b", 90, 100)])
    sample = {"pass": "run", "process": 7, "dispatch": 0, "kernel": "a", "count": 1, "hits": 0, "lanes": 0}
    sampled.samples = frame([sample], SAMPLE_DTYPES)
    assert timeline(sampled).unknown == "counted"
    both = traced([("a", 0, 10), ("b", 90, 100), ("a", 1000, 1010), ("b", 1050, 1060)])
    both.dispatches["pass"] = pd.Categorical(["counted", "counted", "trace", "trace"])
    both.counters = made.counters
    assert timeline(both).gpus[0].span_ns == 60
    assert timeline(traced([("a", 0, 10), ("b", 0, 30)])).unknown == "durations"
    assert timeline(traced([("a", None, None), ("b", None, None)])).unknown == "durations"
    assert timeline(traced([("a", 0, 10)])).unknown == "one_launch"


def test_the_gpu_that_others_wait_for():
    """36 of 40 times by 400 us; the three others wait for it."""
    skew = timeline(traced(job(late=400_000))).skew
    assert (skew.matched, skew.gpus, skew.last, skew.times_last) == (40, 4, "GPU 4", 36)
    assert (skew.median_ns, skew.longest_ns, skew.waited_ns) == (400_000, 400_000, 3 * 36 * 400_000)
    assert not skew.by_duration


def test_where_clocks_differ_the_shortest_launch_is_last():
    """All leave a collective together."""
    skew = timeline(traced(job(late=400_000, clock=10**15))).skew
    assert (skew.last, skew.times_last, skew.median_ns, skew.by_duration) == ("GPU 4", 36, 400_000, True)


def test_what_cannot_be_paired_has_no_skew():
    """One GPU; other numbers of launches; one process whose launches do not overlap."""
    assert timeline(traced(job(ranks=1))).skew is None
    assert timeline(traced([*job(ranks=2), (RCCL, 10**9, 10**9 + 5, 0, 100)])).skew is None
    assert timeline(traced(job(ranks=2, clock=10**12, own_process=False))).skew is None
    assert timeline(traced(job(ranks=2))).skew.waited_ns == 0


def test_ranks_on_gpus_of_one_number_are_told_apart():
    """Two hosts, or a mask of visible devices."""
    rows = [(name, start, end, 0, process) for name, start, end, _, process in job(ranks=2)]
    assert [gpu.name for gpu in timeline(traced(rows)).gpus] == ["GPU 2, process 100", "GPU 2, process 101"]


def test_few_launches_may_hold_half_of_the_time():
    """As on a public trace of training: 5 of 1,310."""
    launches = [(RCCL, 10_000 * n, 10_000 * n + 1000) for n in range(99)]
    held = timeline(traced([*launches, (RCCL, 2_000_000, 2_200_000)])).collectives
    assert (held.launches, held.half, held.longest_ns, held.median_ns) == (100, 1, 200_000, 1000)


@pytest.mark.parametrize(
    ("kernels", "is_application"),
    [
        (["a", "b", "c", "d"] * 30, True),
        (["a"] * 1000, False),
        (["a"] * 50 + ["b"] * 50 + ["c"] * 50, False),
        (["a", FILL] * 100, False),
        (["a", "b", "c"] * 3, False),
    ],
    ids=["layers", "one kernel", "one after another", "cleared each time", "few"],
)
def test_an_application_launches_different_kernels_in_turn(kernels, is_application):
    """A micro-benchmark repeats one, and waits on purpose."""
    made = timeline(traced([(name, 1000 * n, 1000 * n + 100) for n, name in enumerate(kernels)]))
    assert made.is_application == is_application


def test_launches_that_were_filtered_out_leave_holes():
    """Their numbers tell: what they did is not idle time."""
    kept = [(name, 1000 * n, 1000 * n + 100) for n, name in enumerate("abcd" * 30)]
    made = traced(kept)
    made.dispatches["dispatch"] *= 3
    assert (timeline(made).missing, timeline(made).is_application) == (238, False)
    assert timeline(traced(kept)).missing == 0


@pytest.mark.parametrize(
    "name",
    [
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        RCCL,
        "_Z23ncclDevKernel_Generic_424ncclDevKernelArgsStorageILm4096EE",
        "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
        "void mscclpp::collective::allreduceAllPairs<(mscclpp::ReduceOp)0, __half>(__half*, __half*)",
        "rocshmem::rocshmem_barrier_all_kernel()",
        "void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*)",
        "void sglang::cross_device_reduce_1stage<__half, 8>(sglang::RankData*)",
        "_ZN5aiter33reduce_scatter_cross_device_storeIDF16bLi8EEEvPNS_8RankDataENS_11RankSignalsE",
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 4>, true>, __half>()",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1, 8>()",
        "void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8, true>(tensorrt_llm::kernels::AllReduceParams)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
        "persistent_all_gather",
        "EpDispatchIntraNodeKernel_bf16",
        "void deep_ep::internode_ll::dispatch<false, 7168>(void*)",
        "__amd_rocclr_streamOpsWait",
    ],
)
def test_names_of_collectives(name):
    """Old and new, demangled or not."""
    assert kind_of(name) == "collective"


@pytest.mark.parametrize(
    "name",
    [
        "void fmha_fwd<(int)128, __half, true>(Params const*, float)",
        "triton_poi_fused_add_all_reduce_wait_tensor_4",
        "gemm_all_reduce_kernel",
        "void softmaxBlockAllReduce<float>(float*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >()",
        "void scatter_reduce_kernel<float>(float*)",
        "void f<ncclDevKernelArgsStorage<4096ul> >(int)",
        "void deep_ep::layout::get_dispatch_layout<256>(long*)",
        "barrier_free_sort",
        "",
    ],
)
def test_names_of_kernels_with_work_of_their_own(name):
    """Also those that a reduction within a block, or the collective beside them, gave its name."""
    assert kind_of(name) == ""
