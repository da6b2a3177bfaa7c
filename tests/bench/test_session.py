"""What a session keeps, asks and writes of each config; nothing is measured."""

import pytest

from rocattn import BACKENDS
from rocattn.config import AttentionConfig, VarlenShape
from rocattn_profiling.bench import session as harness
from rocattn_profiling.bench.launch import BackendLaunches
from rocattn_profiling.bench.session import BenchSession, SuiteFacts
from rocattn_profiling.measure.settings import Settings

from .made_records import make_sides, run_bench

CONFIG = AttentionConfig(batch=1, num_heads=2, seq_q=9, seq_k=13, head_dim=12)
SETTINGS = Settings(launches=2, threads=3, seed=7, min_samples=4)
NEEDED_S = 2 * (2 + 4) * 2  # of two backends whose calls take a second each: two warm-up calls, then the samples


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """No processes, a quiet machine: what would be measured is noted. Returns the notes by function."""
    calls = {"sides": [], "copies": [], "ceilings": [], "estimates": [], "failing": {}}

    def sides(config, backends, settings, threads, on_launch, *, module="", copies=1):
        calls["sides"].append((config.label, list(backends), threads, module))
        calls["copies"].append(copies)
        made = make_sides(config, backends, settings, threads, on_launch)
        return made | {name: side for name, side in calls["failing"].items() if name in made}

    def ceilings(threads, *, quick):
        calls["ceilings"].append((threads, quick))
        return {"gemm_tflops": 1.0, "memory_gbps": 1.0}

    def estimate(config, found, extra_flops, *, on_gpu):
        calls["estimates"].append((config.label, sorted(found), extra_flops, on_gpu))
        return 1.0

    monkeypatch.setattr(harness, "measure_side_by_side", sides)
    monkeypatch.setattr(harness.limits, "measure_ceilings", ceilings)
    monkeypatch.setattr(harness, "estimate_call_s", estimate)
    monkeypatch.setattr(harness.machine, "load_average", lambda: 0.0)
    return calls


def test_a_record_says_what_was_asked_and_what_came_of_it(tmp_path, asked):
    """Each fact of the suite in its own place; threads, seed and ceilings, which are measured once a session."""
    facts = SuiteFacts(option="x", extra_flops=5, extra_bytes=6, layers=7, module=True)
    with BenchSession(tmp_path, SETTINGS) as session:
        cpu, flash = session.measure("m", CONFIG, ["cpu", "cpu-flash"], facts)
        session.measure("t", CONFIG, ["cpu"])
    assert (cpu.option, cpu.extra_flops, cpu.extra_bytes, cpu.layers, cpu.host) == ("x", 5, 6, 7, "")
    assert (cpu.threads, cpu.seed, cpu.peak_rss_bytes, len(cpu.launches)) == (3, 7, 1, 2)
    assert (cpu.backend, flash.backend, cpu.pair) == ("cpu", "cpu-flash", flash.pair)
    assert asked["ceilings"] == [(3, False)]
    assert asked["sides"] == [(CONFIG.label, ["cpu", "cpu-flash"], 3, "m"), (CONFIG.label, ["cpu"], 3, "")]
    names = ["gemm_tflops", "memory_gbps"]
    assert asked["estimates"] == [(CONFIG.label, names, flops, False) for flops in (5, 5, 0)]


def test_without_a_number_of_threads_all_cores_are_used(tmp_path, asked, monkeypatch):
    """And the quick settings have quick ceilings."""
    monkeypatch.setattr(harness.machine, "available_cores", lambda: 5)
    (record,) = run_bench([CONFIG], ["cpu"], tmp_path, Settings(launches=1, quick=True))
    assert record.threads == 5
    assert asked["ceilings"] == [(5, True)]


@pytest.mark.parametrize(("load", "said"), [(2.0, False), (2.1, True)])
def test_more_than_half_of_the_cores_at_work_is_busy(tmp_path, monkeypatch, load, said):
    """Half of four is not yet more than half."""
    monkeypatch.setattr(harness.machine, "load_average", lambda: load)
    real = harness.machine.this_machine()
    monkeypatch.setattr(harness.machine, "this_machine", lambda: harness.msgspec.structs.replace(real, cores=4))
    notes = []
    run_bench([CONFIG], ["cpu"], tmp_path, SETTINGS, on_note=notes.append)
    told = ["the machine is busy (load 2.1 on 4 cores): times are disturbed"]
    assert notes[:1] == told * said
    assert [("--threads 1 is steadier here" in note) for note in notes[1:]] == [True] * said


def lengths_of(*queries):
    """Sequences of so many queries, of 40 and 90 keys."""
    return VarlenShape(total_q=sum(queries), total_k=130, lengths=tuple(zip(queries, (40, 90), strict=True)))


@pytest.mark.parametrize(
    ("changes", "settings", "cold"),
    [
        ({}, {}, True), ({"seq_q": 16}, {}, True), ({"seq_q": 17}, {}, False), ({}, {"warm": True}, False),
        ({"direction": "backward"}, {}, False), ({"seq_k": 0}, {}, False),
        ({"batch": 2, "seq_k": 90, "varlen": lengths_of(1, 7)}, {}, True),
        ({"batch": 2, "seq_q": 77, "seq_k": 90, "varlen": lengths_of(1, 77)}, {}, False),
    ],
)  # fmt: skip
def test_decode_steps_find_nothing_in_the_caches(tmp_path, asked, monkeypatch, changes, settings, cold):
    """Copies of Q, K and V that fill the last-level cache twice, unless the caches are to stay warm."""
    monkeypatch.setattr(harness.limits, "last_level_cache_bytes", lambda: 1 << 20)
    config = CONFIG.replace(**changes)
    made = harness.msgspec.structs.replace(SETTINGS, **settings)
    (record,) = run_bench([config], ["cpu"], tmp_path, made)
    assert record.caches == ("cold" if cold else "warm")
    (copies,) = asked["copies"]
    assert (copies * (config.q_bytes + config.kv_bytes) > 2 << 20) == (copies > 1) == cold


def test_a_cache_that_no_copies_can_fill_stays_warm(tmp_path, asked, monkeypatch):
    """Where they would take more than a quarter of the memory, or be too many; an unknown size is said."""
    notes = []
    for cache, memory in ((1 << 20, 4 << 20), (1 << 40, 1 << 50), (0, 1 << 40)):
        monkeypatch.setattr(harness.limits, "last_level_cache_bytes", lambda cache=cache: cache)
        monkeypatch.setattr(harness.machine, "available_memory_bytes", lambda memory=memory: memory)
        monkeypatch.setattr(harness, "memory_problem", lambda *_: "")
        run_bench([CONFIG], ["cpu"], tmp_path, SETTINGS, fresh=True, on_note=notes.append)
    assert asked["copies"][:2] == [1, 1]
    assert asked["copies"][2] > 1
    assert sum(note.startswith("this system does not report the size of its last-level cache") for note in notes) == 1


@pytest.mark.parametrize(("limit", "fits"), [(NEEDED_S, True), (NEEDED_S - 0.1, False)])
def test_the_time_of_a_config_is_that_of_all_its_calls(tmp_path, limit, fits):
    """Of each backend in each launch."""
    settings = harness.msgspec.structs.replace(SETTINGS, time_limit_s=limit)
    found = run_bench([CONFIG], ["cpu", "cpu-flash"], tmp_path, settings)
    assert [not record.skipped for record in found] == [fits, fits]
    if not fits:
        assert found[0].skipped.startswith(f"would take about {NEEDED_S} s, the limit is {limit} s")


def test_what_is_kept_is_said_and_counted(tmp_path, asked):
    """Also a config of which one backend is left out; every config is a step of the progress, kept or not."""
    double, settings = CONFIG.replace(dtype="float64"), SETTINGS
    names = ["cpu", "cpu-flash"]
    for kept in (0, 2):
        asked["sides"].clear()
        steps = []
        with BenchSession(tmp_path, settings, on_step=lambda label, n, to=steps: to.append((label, n))) as session:
            first = session.measure("t", CONFIG, names)
            second = session.measure("t", double, names)
        assert session.kept_configs == kept
        assert len(asked["sides"]) == 2 - kept
        totals = {label: sum(n for one, n in steps if one == label) for label, _ in steps}
        assert totals == {CONFIG.label: 2, double.label: 2}
        assert all(record.launches for record in (*first, second[0]))
        assert second[1].skipped.startswith("not supported: float64")
        assert len(session.path.read_bytes().splitlines()) == 4


def test_backends_measured_apart_are_measured_again(tmp_path, asked):
    """Also within one session; every launch is a step, of a whole run as well."""
    steps = []
    with BenchSession(tmp_path, SETTINGS) as session:
        for names in (["cpu"], ["cpu-flash"], ["cpu", "cpu-flash"], ["cpu-flash", "cpu"]):
            session.measure("custom", CONFIG, names)
    assert [names for _, names, _, _ in asked["sides"]] == [["cpu"], ["cpu-flash"], ["cpu", "cpu-flash"]]
    run_bench([CONFIG], ["cpu"], tmp_path, SETTINGS, on_step=lambda label, n: steps.append((label, n)))
    assert steps == [(CONFIG.label, 2)]


def test_a_skipped_record_is_appended_once(tmp_path):
    """Measured apart, both need less time than together: that they do not have it is a line of each."""
    shorter = harness.msgspec.structs.replace(SETTINGS, time_limit_s=NEEDED_S / 2)
    for name in ("cpu", "cpu-flash"):
        assert run_bench([CONFIG], [name], tmp_path, shorter)[0].launches
    for _ in range(2):
        found = run_bench([CONFIG], ["cpu", "cpu-flash"], tmp_path, shorter)
        assert all(record.skipped.startswith("would take") for record in found)
        assert len((tmp_path / "records.jsonl").read_bytes().splitlines()) == 4


def test_other_layers_or_another_suite_are_not_what_is_there(tmp_path, asked):
    """A model of the same name with other layers, alone and beside a backend that is left out; and one's own suite."""
    double = CONFIG.replace(dtype="float64")
    with BenchSession(tmp_path, SETTINGS) as session:
        for config in (CONFIG, double):
            for suite, layers in (("m", 1), ("m", 2), ("n", 2)):
                session.measure(suite, config, ["cpu", "cpu-flash"], SuiteFacts(layers=layers))
    assert len(asked["sides"]) == 6
    assert session.kept_configs == 0


def test_a_failure_is_recorded_with_its_log(tmp_path, asked, monkeypatch):
    """A backend that crashed, one that cannot even be asked, and one whose times mean nothing."""
    asked["failing"] = {"cpu-flash": BackendLaunches(failed="it crashed", log="the last words")}
    (good, bad) = run_bench([CONFIG], ["cpu", "cpu-flash"], tmp_path, SETTINGS)
    assert (bad.status, bad.skipped, bool(good.launches), bad.launches) == ("failed", "it crashed", True, [])
    log = (tmp_path / "failures.log").read_text()
    assert log == f"== custom/cpu-flash/{CONFIG.label}: it crashed\nthe last words\n"

    def broken(_):
        raise ArithmeticError("how many?")

    flash = BACKENDS.get("cpu-flash")
    monkeypatch.setattr(flash, "workspace_bytes", broken, raising=False)
    (found,) = run_bench([CONFIG], ["cpu-flash"], tmp_path / "broken", SETTINGS)
    assert (found.status, found.skipped) == ("failed", "ArithmeticError: how many?")
    monkeypatch.setattr(flash, "is_stand_in", True, raising=False)
    (found,) = run_bench([CONFIG], ["cpu-flash"], tmp_path / "stand-in", SETTINGS)
    assert found.skipped.startswith("not timed: it runs on the stand-in GPU here")
