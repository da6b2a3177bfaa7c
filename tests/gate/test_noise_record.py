"""The record of noise as a file: what is kept of launches, which of them are comparable, and what is refused."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.gate import noise_record
from rocattn_profiling.gate.model import BenchmarkKey
from rocattn_profiling.gate.noise_record import FILE, Measurement, NoiseError
from rocattn_profiling.gate.rule import noise
from rocattn_profiling.gate.rule.launches import locations
from rocattn_profiling.gate.rule.pairs import PairLaunch
from rocattn_profiling.gate.run import alone
from rocattn_profiling.measure.records import Machine

HERE = Machine(name="m", cpu="a CPU", cores=2, memory_bytes=1, os="o", python="3.13.1", numpy="2")
KEY = BenchmarkKey(label="bench.time_x(1)", version="v1", python="3.13", sample_ns=3_000_000, budget_ns=60_000_000)
DAY_US = 86_400e6


def launches(day=1.0, count=6, noise=0.02, seed=1, **facts):
    """Launches of one session on a day, in Unix time."""
    rng = np.random.default_rng(seed)
    rows = []
    for round_ in range(count):
        samples = (1e6 * np.exp(rng.normal(0, noise) + np.abs(rng.normal(0, 0.01, 10)))).tolist()
        cpu = {"cpu": [0.99 * value for value in samples], "nivcsw": [0] * 10, "canary": 5e5 + round_} | facts
        rows.append(PairLaunch(round=round_, start_us=day * DAY_US + round_, samples=samples, **cpu))
    return rows


def append(path, day=1.0, key=KEY, machine=HERE, **facts):
    """Add a session of one benchmark."""
    return noise_record.append(path, machine, [Measurement(key, launches(day, **facts))])


def days(path, key=KEY):
    """The days of a benchmark's sessions."""
    (past,) = [past for past in noise_record.read(path, HERE).benchmarks if past.key == key]
    return [round(session.start_us / DAY_US, 3) for session in past.sessions]


@pytest.fixture
def path(tmp_path):
    """A record that is not there yet, nor is its folder."""
    return tmp_path / "results" / "m" / FILE


def test_a_history_is_as_the_launches_were(path):
    """Locations by wall and by CPU time come back to six digits, the canary with them, so the same is learned."""
    append(path)
    (history,) = noise_record.known(path, HERE, [KEY]).history(KEY.label, 10)
    before = launches()
    for column in ("samples", "cpu"):
        np.testing.assert_allclose(locations(history, column), locations(before, column), atol=1e-5)
    assert [launch.canary for launch in history] == [launch.canary for launch in before]
    learned = [noise.prior_after(0.02, [locations(of, "cpu")]) for of in (history, before)]
    np.testing.assert_allclose(*learned, atol=0.2)


def test_as_many_sessions_are_kept_as_count(path):
    """In the order of time, however they came; the ninth pushes out the first."""
    for day in (2, 1, *range(3, 10)):
        append(path, day)
    assert days(path) == [float(day) for day in range(2, 10)]
    assert noise.SESSIONS == 8


def test_the_same_session_again_replaces_itself(path):
    """A run that was stopped after it had learned, and is gone on with, counts once."""
    for _ in range(2):
        append(path, 1)
        append(path, 2)
    assert days(path) == [1.0, 2.0]


def test_another_version_of_a_benchmark_begins_anew(path):
    """The old version's sessions are gone, and were not heard of by the new one; other benchmarks stay."""
    new, other = (msgspec.structs.replace(KEY, **change) for change in ({"version": "v2"}, {"label": "bench.time_y"}))
    append(path, 1)
    append(path, 1, key=other)
    assert noise_record.known(path, HERE, [new]).history(KEY.label, 10) == []
    append(path, 2, key=new)
    assert [past.key for past in noise_record.read(path, HERE).benchmarks] == [other, new]
    assert days(path, new) == [2.0]


@pytest.mark.parametrize("change", [{"python": "3.11"}, {"sample_ns": 5_000_000}, {"budget_ns": 1}])
def test_what_is_measured_otherwise_is_kept_beside(path, change):
    """Another Python, or quick beside full: neither hears of the other, and both are kept."""
    other = msgspec.structs.replace(KEY, **change)
    append(path, 1)
    append(path, 2, key=other)
    assert (days(path), days(path, other)) == ([1.0], [2.0])
    assert len(noise_record.known(path, HERE, [other]).history(KEY.label, 10)) == 1


@pytest.mark.parametrize(("samples", "heard"), [(10, 1), (30, 1), (4, 1), (3, 0), (31, 0), (1, 0)])
def test_launches_of_about_as_many_samples_are_comparable(path, samples, heard):
    """A worker takes 4 to 12 as time allows, which are alike; a single value is something else."""
    append(path)
    assert len(noise_record.known(path, HERE, [KEY]).history(KEY.label, samples)) == heard


def test_what_was_not_measured_for_half_a_year_is_forgotten(path):
    """A benchmark that is gone does not stay in the file for ever; one of last month does."""
    gone, rare = (msgspec.structs.replace(KEY, label=label) for label in ("gone", "rare"))
    append(path, 1, key=gone)
    append(path, 170, key=rare)
    append(path, 190)
    assert {past.key.label for past in noise_record.read(path, HERE).benchmarks} == {"rare", KEY.label}


def test_launches_without_noise_are_not_kept(path):
    """Two launches, launches that are all alike (a counter), values of zero: no file is made for them."""
    alike = [PairLaunch(round=i, samples=[96.0]) for i in range(5)]
    zeros = [PairLaunch(round=i, samples=[float(i)]) for i in range(5)]
    learned = noise_record.append(path, HERE, [Measurement(KEY, of) for of in (launches(count=2), alike, zeros, [])])
    assert (learned, path.exists()) == (0, False)


def test_cpu_times_that_some_launches_lack_are_left_out():
    """A GPU's timer has none; a canary of zero is none."""
    without = noise_record.session_of(launches(cpu=[], nivcsw=[], canary=0.0))
    assert (without.cpu, without.canary, len(without.wall)) == ([], [], 6)
    assert [launch.cpu for launch in without.launches()] == [[]] * 6


def test_a_session_is_small(path):
    """Of 200 launches forty are kept; a benchmark with eight such sessions takes less than 12 kB."""
    for day in range(1, 9):
        append(path, day, count=200, seed=day)
    assert len(noise_record.read(path, HERE).benchmarks[0].sessions[0].wall) == 40
    assert path.stat().st_size < 12_000


@pytest.mark.parametrize(
    ("field", "value"), [("cpu", "another CPU"), ("cores", 4), ("gpu", "a GPU"), ("name", "elsewhere")]
)
def test_another_machine_s_record_is_never_used_nor_touched(path, field, value):
    """One line names both machines; nothing is known, and nothing is added."""
    append(path)
    before, there = path.read_bytes(), msgspec.structs.replace(HERE, **{field: value})
    found = noise_record.known(path, there, [KEY])
    assert found.benchmarks == []
    here = noise_record.recorded_machine(there).title
    refusal = f"{path} is from another machine, m (a CPU, 2 cores); this is {here}"
    assert (found.source.why_not, str(value) in refusal) == (refusal, True)
    with pytest.raises(NoiseError, match=f"^{re.escape(refusal)}$"):
        append(path, machine=there)
    assert path.read_bytes() == before


def changed(record, **change):
    """A record with a session's field changed."""
    record["benchmarks"][0]["sessions"][0] |= change
    return record


BROKEN = {
    "empty": lambda _: b"",
    "cut off": lambda record: json.dumps(record).encode()[:-40],
    "another file": lambda _: b'{"verdict": "pass"}',
    "not text": lambda _: b"\xff\xfe\x00",
    "deep": lambda _: b"[" * 200_000,
    "another schema": lambda record: json.dumps(record | {"schema": 2}).encode(),
    "negative": lambda record: json.dumps(changed(record, wall=[-1.0, 1.0, 2.0], cpu=[], canary=[])).encode(),
    "uneven": lambda record: json.dumps(changed(record, cpu=[1.0])).encode(),
    "no launches": lambda record: json.dumps(changed(record, wall=[], cpu=[], canary=[])).encode(),
    "no sessions": lambda record: json.dumps(record | {"benchmarks": [{"key": {}, "sessions": []}]}).encode(),
    "huge": lambda record: json.dumps(changed(record, wall=[1e300, 1.0, 2.0], cpu=[], canary=[])).encode(),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_that_is_no_record_costs_one_line_and_stays(path, how):
    """Nothing is known, the line names the file; learning refuses it, too, and leaves it as it is."""
    append(path)
    path.write_bytes(BROKEN[how](json.loads(path.read_bytes())))
    before = path.read_bytes()
    found = noise_record.known(path, HERE, [KEY])
    assert (found.benchmarks, found.source.path) == ([], str(path))
    assert found.source.why_not.startswith(f"{path} ")
    assert "\n" not in found.source.why_not
    with pytest.raises(NoiseError):
        append(path, 2)
    assert path.read_bytes() == before


def test_no_record_and_no_file_are_told_apart(tmp_path):
    """There is none yet; it is left alone; it is a folder."""
    why = [noise_record.known(at, HERE, [KEY]).source.why_not for at in (tmp_path / "none", None, tmp_path)]
    assert why[0] == f"there is no record yet: {tmp_path / 'none'}"
    assert why[1] == "left alone (--no-noise)"
    assert why[2].startswith(f"{tmp_path} cannot be read")


def test_a_folder_that_takes_no_file_is_one_line(tmp_path):
    """A file in the way of the folder."""
    (tmp_path / "results").write_text("in the way")
    with pytest.raises(RocattnError, match="cannot write"):
        append(tmp_path / "results" / FILE)


def test_sessions_that_end_together_are_all_kept(path):
    """Sixteen writers at once: each reads, changes and replaces the file alone."""
    keys = [msgspec.structs.replace(KEY, label=str(number)) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda key: append(path, key=key), keys)) == [1] * 16
    assert {past.key for past in noise_record.read(path, HERE).benchmarks} == set(keys)
    assert [file.name for file in path.parent.iterdir()] == [FILE]


def test_a_record_is_written_in_a_running_run_s_folder(tmp_path):
    """``--noise out/gate/noise.json``: the run that has the folder for itself is the one that learns."""
    with alone(tmp_path / "out"):
        assert append(tmp_path / "out" / "noise.json") == 1
        assert {file.name for file in (tmp_path / "out").iterdir()} == {"noise.json"}


def test_known_noise_is_of_the_quantity_that_decides(make_pair):
    """Of a pair bound by the CPU the noise of CPU times, within a third of the truth; None without a history."""
    pair = make_pair(np.random.default_rng(1), 5, cpu=True)
    assert noise_record.known_noise(pair) is None
    rng, past = np.random.default_rng(2), []
    for _ in range(4):
        times = zip(rng.normal(0, 0.1, 30), rng.normal(0, 0.01, 30), strict=True)
        past.append([PairLaunch(round=0, samples=[np.exp(wall)], cpu=[np.exp(cpu)]) for wall, cpu in times])
    known = noise_record.known_noise(msgspec.structs.replace(pair, a=msgspec.structs.replace(pair.a, history=past)))
    assert (known.sessions, known.launches) == (4, 120)
    assert known.value == pytest.approx(0.01, rel=0.33)
    waits = make_pair(np.random.default_rng(1), 5)
    known = noise_record.known_noise(msgspec.structs.replace(waits, a=msgspec.structs.replace(waits.a, history=past)))
    assert known.value == pytest.approx(0.1, rel=0.33)


def test_a_changed_digit_is_named_and_no_noise(path):
    """A record with a digit changed is still JSON of launches: nothing is known by it, and nothing is added to it."""
    append(path)
    text = path.read_text()
    at = text.index('"wall":[') + len('"wall":[')
    path.write_text(f"{text[:at]}{9 - int(text[at])}{text[at + 1 :]}")
    told = noise_record.known(path, HERE, [KEY]).source.why_not
    assert told == (
        f"{path} is damaged: it was changed after it was written: its checksum differs; without it, the next run "
        "begins a new one"
    )
    with pytest.raises(RocattnError, match=f"^{re.escape(told)}$"):
        append(path, 2)
    path.unlink()
    assert append(path, 2) == 1
