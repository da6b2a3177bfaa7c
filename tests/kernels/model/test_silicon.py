"""The simulation of research/silicon on small code, with times that captures of real GPUs have for it."""

import importlib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocattn_profiling.kernels.read.assembly import Instruction

RESEARCH = Path(__file__).resolve().parents[3] / "research" / "silicon"
ARCHITECTURES = ["gfx1100", "gfx1200"]
WMMA = "v_wmma_f32_16x16x16_f16 v[{0}:{1}], v[200:203], v[204:207], v[{0}:{1}]"


@pytest.fixture
def engine(monkeypatch):
    """The simulation."""
    monkeypatch.syspath_prepend(RESEARCH)
    return importlib.import_module("engine")


@pytest.fixture
def cdna(monkeypatch):
    """The same of CDNA."""
    monkeypatch.syspath_prepend(RESEARCH)
    return importlib.import_module("cdna")


@pytest.fixture
def published(monkeypatch):
    """What others measured of it."""
    monkeypatch.syspath_prepend(RESEARCH)
    return importlib.import_module("published")


@pytest.fixture
def compare(monkeypatch):
    """What judges it."""
    monkeypatch.syspath_prepend(RESEARCH)
    return importlib.import_module("compare")


def steps_of(engine, *lines, taken=()):
    """Return lines as steps, four bytes apart."""
    instructions = [Instruction(*line.partition(" ")[::2]) for line in lines]
    return tuple(engine.Step(each, 4 * n, taken=n in taken) for n, each in enumerate(instructions))


def issue(engine, arch, *waves, starts=(), simds=(), block=None, taken=()):
    """Return when each of some waves issues each of its lines."""
    simulation = engine.Simulation(arch, engine.Memory(scalar=1000, vector=600, store=300))
    for n, lines in enumerate(waves):
        place = {"simd": simds[n] if simds else 0, "block": n if block is None else block}
        simulation.add(steps_of(engine, *lines, taken=taken), starts[n] if starts else 0, **place)
    return simulation.run()


@pytest.mark.parametrize("arch", ARCHITECTURES)
class TestOneWave:
    """A wave that has its SIMD to itself."""

    def test_delays_are_kept_in_the_wave(self, engine, arch):
        """gemm: v_add_f32 behind v_add_f32, 5 cycles apart where s_delay_alu says so."""
        add, delay = (
            "v_add_f32_e32 v0, v0, v1",
            "s_delay_alu instid0(VALU_DEP_1) | instskip(NEXT) | instid1(VALU_DEP_1)",
        )
        assert issue(engine, arch, [add, delay, add, add])[0][::3] == [0, 10]

    def test_dependences_without_hint_wait_in_the_unit(self, engine, arch):
        """sync: three vector instructions are issued one a cycle; what needs the last one's result, later."""
        code = ["v_mov_b32_e32 v4, -1", "v_cndmask_b32_e32 v5, v4, v3, vcc_lo", "v_lshlrev_b32_e32 v6, 2, v0"]
        times = issue(engine, arch, [*code, "global_store_b32 v6, v5, s[0:1]"])[0]
        assert times[:3] == [0, 1, 2]
        assert times[3] == pytest.approx(21, abs=3)  # traced: 21

    def test_memory_answers_in_its_time(self, engine, arch):
        """plus: a wait ends when memory answers, the next instruction follows in the next cycle."""
        wait = {"gfx1100": "s_waitcnt lgkmcnt(0)", "gfx1200": "s_wait_kmcnt 0x0"}[arch]
        times = issue(engine, arch, ["s_load_b64 s[0:1], s[0:1], 0x0", wait, "v_add_f32_e32 v0, s0, v0"])[0]
        assert times == [0, 1000, 1001]

    def test_a_wait_for_what_has_come_is_short(self, engine, arch):
        """gemm: behind an LDS load a wait ends after 3 cycles at least, and vector work begins after 7."""
        wait = {"gfx1100": "s_waitcnt lgkmcnt(1)", "gfx1200": "s_wait_dscnt 0x1"}[arch]
        times = issue(engine, arch, ["ds_load_b128 v[2:5], v1 offset:32", wait, "v_add_f32_e32 v0, v0, v6"])[0]
        assert times == [0, 3, 7]

    def test_lds_answers_wide_loads_later(self, engine, arch):
        """sync and gemm: a load of 4 bytes a lane, and one of 16."""
        wait = {"gfx1100": "s_waitcnt lgkmcnt(0)", "gfx1200": "s_wait_dscnt 0x0"}[arch]
        narrow = issue(engine, arch, ["ds_load_b32 v3, v2", wait])[0][1]
        wide = issue(engine, arch, ["ds_load_b128 v[4:7], v2", wait])[0][1]
        assert (narrow, wide) == (32, {"gfx1100": 37, "gfx1200": 39}[arch])

    def test_scalar_chains_need_no_time_between(self, engine, arch):
        """handwritten: s_add, s_cmp and the branch that it decides."""
        times = issue(engine, arch, ["s_add_co_i32 s1, s1, -1", "s_cmp_eq_i32 s1, 0", "s_cbranch_scc0 .L1"])[0]
        assert times == [0, 1, 11]

    def test_a_taken_branch_costs_more(self, engine, arch):
        """gemm: 3 cycles where it falls through; to another address 27 on gfx1100 and 9 on gfx1200."""
        code = ["s_cbranch_execz .L1", "s_mov_b32 s0, 0"]
        assert issue(engine, arch, code)[0][1] == 3
        assert issue(engine, arch, code, taken={0})[0][1] == {"gfx1100": 27, "gfx1200": 9}[arch]

    def test_registers_of_one_bank_are_read_in_turns(self, engine, arch):
        """Older gemm: v_fmac_f32 takes longer with two registers a multiple of 4 apart, unless it has one already."""

        def last(sources):
            return issue(engine, arch, [f"v_fmac_f32_e32 v{4 * n}, {sources(n)}, v130" for n in range(40)])[0][-1]

        assert last(lambda n: f"v{165 + 4 * (n % 8)}") == 39
        assert last(lambda n: f"v{164 + 4 * (n % 8)}") > 60
        assert last(lambda n: "v164") == 39  # noqa: ARG005 - as the one before it has


def test_matrix_instructions_fill_their_queue(engine):
    """handwritten: issued one a cycle until the queue is full, then one as one of 16 cycles leaves it."""
    code = [WMMA.format(8 * n, 8 * n + 7) for n in range(14)]
    times = issue(engine, "gfx1200", code)[0]
    assert times[:8] == list(range(8))
    assert [b - a for a, b in pairwise(times[9:])] == [16] * 4


def test_transcendental_work_leaves_room_for_other_work(engine):
    """Older handwritten: v_mov follows v_rcp in the next cycle, another v_rcp in four."""
    times = issue(engine, "gfx1200", ["v_rcp_f32_e32 v1, v0", "v_mov_b32_e32 v2, 0", "v_rcp_f32_e32 v3, v0"])[0]
    assert times == [0, 1, 4]


def test_the_oldest_wave_goes_first(engine):
    """gemm: waves of a SIMD issue one vector instruction a cycle among them."""
    work = [f"v_mov_b32_e32 v{n}, 0" for n in range(4)]
    assert issue(engine, "gfx1100", work, work) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    waiting = [work[0], "s_delay_alu instid0(VALU_DEP_1)", *work[1:]]
    older, younger = issue(engine, "gfx1100", waiting, work)
    assert (older[0], older[2]) == (0, 5)
    assert younger == [1, 2, 3, 4]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_lds_serves_both_simds_in_turns(engine, arch):
    """gemm: loads of 16 bytes a lane are answered 6 cycles apart, whichever SIMD they come from."""
    wait = {"gfx1100": "s_waitcnt lgkmcnt(0)", "gfx1200": "s_wait_dscnt 0x0"}[arch]
    waves = [["ds_load_b128 v[2:5], v1", wait]] * 4
    ended = sorted(times[1] for times in issue(engine, arch, *waves, simds=(0, 1, 0, 1)))
    assert [time - ended[0] for time in ended] == [0, 6, 12, 18]


@pytest.mark.parametrize(
    ("arch", "barrier"), [("gfx1100", ["s_barrier"]), ("gfx1200", ["s_barrier_signal -1", "s_barrier_wait 0xffff"])]
)
def test_a_barrier_waits_for_the_last_wave(engine, arch, barrier):
    """sync: 14 cycles after it, in each wave of the block and no other."""
    code = [*barrier, "s_mov_b32 s0, 0"]
    times = issue(engine, arch, code, code, starts=(0, 100), simds=(0, 1), block=0)
    assert [each[-1] for each in times] == [114, 114]
    assert issue(engine, arch, code, code, starts=(0, 100))[0][-1] == 14
    with pytest.raises(ValueError, match="barrier"):
        issue(engine, arch, code, ["s_mov_b32 s0, 0"], block=0)


def test_the_same_code_takes_the_same_time(engine):
    """Nothing depends on chance, nor on what was simulated before."""
    waves = [["ds_load_b128 v[2:5], v1", "s_wait_dscnt 0x0", "v_exp_f32_e32 v2, v2", WMMA.format(8, 15)]] * 6
    first, again = (issue(engine, "gfx1200", *waves, simds=(0, 1) * 3) for _ in range(2))
    assert first == again


def issue_on_cdna(cdna, arch, *waves, simds=()):
    """Return when each of some waves of a CU issues each of its lines."""
    simulation = cdna.Cdna(arch, cdna.Memory(scalar=1000, vector=600, store=300))
    for n, lines in enumerate(waves):
        simulation.add(steps_of(cdna, *lines), 0, simd=simds[n] if simds else 0, block=n)
    return simulation.run()


MFMA = {
    "gfx942": "v_mfma_f32_32x32x8_f16 v[{0}:{1}], v[200:201], v[204:205], v[{0}:{1}]",
    "gfx950": "v_mfma_f32_32x32x16_f16 v[{0}:{1}], v[200:203], v[204:207], v[{0}:{1}]",
}


class TestCdna:
    """Waves of 64 lanes; times are sums of published ones."""

    def test_a_simd_takes_a_vector_instruction_in_4_cycles(self, cdna):
        """Of all its waves; one that needs the last one's result waits for 8."""
        free, bound = ["v_mov_b32_e32 v1, 0", "v_mov_b32_e32 v2, 0"], ["v_mov_b32_e32 v1, 0", "v_mov_b32_e32 v2, v1"]
        assert issue_on_cdna(cdna, "gfx942", free) == [[0, 4]]
        assert issue_on_cdna(cdna, "gfx942", bound) == [[0, 8]]
        assert issue_on_cdna(cdna, "gfx942", free, free) == [[0, 4], [8, 12]]
        assert issue_on_cdna(cdna, "gfx942", free, free, simds=(0, 1)) == [[0, 4], [0, 4]]

    @pytest.mark.parametrize(("arch", "vector", "packed", "result"), [("gfx942", 4, 40, 48), ("gfx950", 8, 44, 52)])
    def test_what_runs_beside_a_matrix_instruction(self, cdna, arch, vector, packed, result):
        """Vector work at once, packed work behind it, what reads its result still later."""
        product = MFMA[arch].format(0, 15)
        for line, time in (
            ("v_mov_b32_e32 v100, 0", vector), ("v_pk_mul_f32 v[100:101], v[102:103], v[104:105]", packed),
            ("v_mov_b32_e32 v100, v15", result), (product, 32), (MFMA[arch].format(16, 31), 32),
            (MFMA[arch].format(16, 31).replace("v[200:20", "v[0:"), result),
        ):  # fmt: skip
            times = [issue_on_cdna(cdna, arch, [product, line])[0][1]]
            if time != result:
                times.append(issue_on_cdna(cdna, arch, [product], [line])[1][0])
            assert set(times) == {time}, line

    def test_priority_goes_before_age(self, cdna):
        """s_setprio lets a younger wave go first."""
        work = ["s_nop 0", *(f"v_mov_b32_e32 v{n}, 0" for n in range(3))]
        older, younger = issue_on_cdna(cdna, "gfx942", work, ["s_setprio 1", *work[1:]])
        assert younger == [0, 4, 8, 12]
        assert older[1:] == [16, 20, 24]

    def test_lds_answers_after_64_cycles(self, cdna):
        """TLX: 68 from one ds_read_b32 to the next that needs it."""
        read, wait = "ds_read_b32 v1, v0", "s_waitcnt lgkmcnt(0)"
        assert issue_on_cdna(cdna, "gfx950", [read, wait, read])[0] == [0, 64, 68]

    def test_two_simds_share_half_of_lds(self, cdna):
        """Reads of 16 bytes a lane keep it for 16 cycles on gfx942."""
        wave = ["ds_read_b128 v[2:5], v1", "s_waitcnt lgkmcnt(0)"]
        times = issue_on_cdna(cdna, "gfx942", *[wave] * 4, simds=(0, 1, 2, 3))
        assert [each[1] for each in times] == [76, 92, 76, 92]

    @pytest.mark.parametrize(("blocks", "busy"), [(1, 47), (2, 94), (4, 100)])
    def test_more_waves_fill_the_matrix_unit(self, cdna, blocks, busy):
        """A wave that waits for each product leaves the unit to another."""
        kernel = looping(cdna, blocks, [MFMA["gfx942"].format(0, 15), "v_mov_b32_e32 v100, v0"])
        assert cdna.steady(kernel).busy == pytest.approx(busy, abs=4)

    @pytest.mark.parametrize(
        ("lines", "cause"),
        [
            (["global_load_dword v1, v0, s[0:1]", "s_waitcnt vmcnt(0)"], "memory"),
            (["ds_read_b32 v1, v0", "s_waitcnt lgkmcnt(0)"], "LDS"),
            (["v_mov_b32_e32 v100, v0"], "matrix result"),
            ([MFMA["gfx942"].format(16, 31)], "matrix unit"),
            (["s_barrier"], "barrier"),
        ],
    )
    def test_a_pause_has_a_cause_and_a_place(self, cdna, lines, cause):
        """The largest one is named first; with what waits, where there is no source line."""
        found = cdna.steady(looping(cdna, 1, [MFMA["gfx942"].format(0, 15), *lines])).lost
        largest, place = max(found, key=found.__getitem__)
        assert largest == cause
        assert place in {line.partition(" ")[0] for line in lines} | {"s_cbranch_scc0", "v_mfma_f32_32x32x8_f16"}
        assert sum(found.values()) < 100

    def test_long_launches_come_near_the_steady_state(self, cdna):
        """Short ones have more beginnings and ends, and CUs that have nothing left to do."""
        kernel = looping(cdna, 1, [MFMA["gfx942"].format(0, 15), MFMA["gfx942"].format(16, 31)])
        state = cdna.steady(kernel)
        shares = [cdna.whole(kernel, state, cdna.Launch(n, 128, 256, 128), 304)[0] for n in (1024, 4096, 16384)]
        assert shares == sorted(shares)
        assert state.busy * 0.9 < shares[-1] < state.busy

    def test_pairs_of_tiles_are_equal_work(self, cdna):
        """The first tile of a causal sequence has the fewest keys, the last one most."""
        assert cdna.Launch(1024, 128, 1, 256, pairs=True).tiles() == [(0, 3), (1, 2)]
        assert cdna.Launch(1024, 128, 1, 256).tiles() == [(0,), (1,), (2,), (3,)]


def looping(cdna, blocks, lines):
    """Return a kernel of four waves with these lines in its loop."""
    text = [".type k,@function", "k:", "v_mov_b32_e32 v0, 0", ".L1:", *lines, "s_cbranch_scc0 .L1", "s_endpgm"]
    (function,) = cdna.parse_assembly("\n".join([*text, ".size k, .-k", ""]))
    return cdna.Kernel("gfx942", function, (cdna.hot_loop(function),), 4, blocks)


@pytest.mark.parametrize(("runs", "reach"), [((100, 119), 1), ((100, 123), 0.5), ((10, 18), 1), ((10, 19), 0.5)])
def test_no_forecast_is_right_on_runs_that_differ(compare, runs, reach):
    """One number can be right on two only where what either may be off overlaps."""
    assert compare._reach((0, runs[0]), (0, runs[1]), 0, 1) == reach


def test_ranks_are_correlated(published):
    """The same order, and the opposite one."""
    pairs = [(1, 10), (2, 30), (5, 90)]
    assert published._spearman(pairs) == 1
    assert published._spearman([(a, -b) for a, b in pairs]) == -1


class TestPackets:
    """gfx950's traces, of which the decoder tells kinds only."""

    CODE = ("s_load_dwordx2 s[0:1], s[0:1], 0x0", "s_waitcnt lgkmcnt(0)", "s_nop 0", "v_mov_b32_e32 v0, s0", "s_endpgm")

    @pytest.fixture
    def read(self, monkeypatch):
        """What reads a trace of such kinds."""
        monkeypatch.syspath_prepend(RESEARCH)
        captures = importlib.import_module("captures")
        text = {4 * n: Instruction(*line.partition(" ")[::2]) for n, line in enumerate(self.CODE)}
        monkeypatch.setattr(captures, "_instructions", lambda *_: text)
        return lambda *kinds: self.waves(captures, kinds)

    def waves(self, captures, kinds):
        """Return the waves of one SIMD."""

        def packet(name, time, op="", simd=2):
            kind = SimpleNamespace(name=op)
            return type(name, (), {"_time": time, "simd": simd, "cu": 0, "op": kind})()

        packets = [packet("CDNA_INST", 100 * n, op) for n, op in enumerate(kinds)] + [packet("CDNA_WAVEEND", 900)]
        return captures._waves_of_cu(SimpleNamespace(decode=lambda _: packets), b"", b"", "gfx950")

    def test_kinds_in_order_tell_the_instructions(self, read):
        """A wait ends a slot before what is behind it begins."""
        (wave,) = read("SMEM_RD", "VALU_32")
        assert wave.times == (0, 96, None, 100, 900)
        assert [step.address for step in wave.steps] == [0, 4, 8, 12, 16]

    def test_another_order_is_refused(self, read):
        """As code with loops has."""
        with pytest.raises(LookupError, match="traced as LDS"):
            read("SMEM_RD", "LDS")

    def test_a_trace_without_instructions_has_no_waves(self, read):
        """plus: its wave was on a shader engine that was not traced."""
        assert read() == ()


def test_answers_are_read_off_waits(compare, engine):
    """A load is answered when the wait ends that leaves fewer outstanding than there were."""
    code = [
        "global_load_b32 v1, v0, s[0:1]",
        "global_load_b32 v2, v0, s[2:3]",
        "s_waitcnt vmcnt(1)",
        "s_waitcnt vmcnt(0)",
    ]
    wave = compare.Wave(steps_of(engine, *code, "s_endpgm"), (10, 11, 500, 520, 530))
    assert [step.answer for step in compare.answered(wave, "gfx1100").steps] == [490, 509, None, None, None]
