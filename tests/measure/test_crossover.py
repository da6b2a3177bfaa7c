"""Crossovers: intervals on synthetic timings, cells, the file, resuming, and the command."""

import json
import math
import random

import msgspec
import pytest

from rocattn import BACKENDS, AttentionConfig, thresholds
from rocattn.registry import Support
from rocattn.thresholds import MASKS, Range, Thresholds, ThresholdsError, load_thresholds, machine_identity
from rocattn_profiling.bench import crossover
from rocattn_profiling.bench.side_by_side import Side
from rocattn_profiling.cli import main
from rocattn_profiling.measure import feasibility
from rocattn_profiling.measure.records import Launch
from rocattn_profiling.measure.settings import Settings
from rocattn_profiling.measure.stats import compare_launches

from .factory import CHECK

PLAN = crossover.Plan(
    backends=("cpu", "cpu-flash"), head_dims=(24,), dtypes=("float32",), masks=("none", "causal"), shortest=8,
    longest=512, num_heads=2, num_kv_heads=2,
)  # fmt: skip
ABOUT = {"code": "c", "settings": {}, "lengths": [8, 512]}
SETTINGS = Settings(launches=4, threads=1)


def launches(times, noise, seed, count=5):
    """Synthetic launches of two backends: a common disturbance a launch, and a little noise of each one's own."""
    rng = random.Random(seed)  # noqa: S311 - timings, not secrets
    made = {name: [] for name in times}
    for pos in range(count):
        shared = math.exp(abs(rng.gauss(0, 0.5)))
        for name, time in times.items():
            place = time * shared * math.exp(rng.gauss(0, noise))
            samples = [place * (1 + abs(rng.gauss(0, 0.1))) for _ in range(20)]
            made[name].append(Launch(start_ns=0, pos=pos, number=1, samples_ns=samples))
    return made


def test_equal_backends_are_called_different_as_often_as_the_confidence_says():
    """400 comparisons of two equal backends on a restless machine: about 5 % leave 1, and a true third is found."""
    wrong = hits = 0
    for seed in range(400):
        made = launches({"a": 1e5, "b": 1e5}, 0.05, seed)
        wrong += crossover.verdict(compare_launches(made["a"], made["b"], "a", "b")) != 0
        made = launches({"a": 1.33e5, "b": 1e5}, 0.05, seed)
        hits += crossover.verdict(compare_launches(made["a"], made["b"], "a", "b")) == 1
    assert 8 <= wrong <= 36
    assert hits >= 390


@pytest.fixture
def timed(monkeypatch):
    """No processes: cpu is faster below a length. Returns what to change: the length, and what goes wrong."""
    told = {"step": 100, "failed": "", "ok": True, "asked": []}

    def measure(config, backends, settings, threads):
        told["asked"].append(config.label)
        times = {"cpu": 1e5, "cpu-flash": 2e5 if config.seq_k < told["step"] else 0.5e5}
        made = launches(times, 0.01, config.seq_k, settings.launches)
        check = None if told["ok"] is None else msgspec.structs.replace(CHECK, ok=told["ok"])
        return {name: Side(launches=made[name], check=check, failed=told["failed"]) for name in backends}

    monkeypatch.setattr(crossover, "measure_side_by_side", measure)
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "1")
    return told


def test_a_file_is_whole_after_every_cell_and_resumed(timed, tmp_path):
    """What is there is kept; another source, other settings or --fresh measure anew; other cells stay in the file."""
    path = tmp_path / "thresholds.json"
    seen, steps = [], []

    def on_cell(_):
        seen.append(len(load_thresholds(path, force=True).cells))

    _, cells = crossover.measure_crossover(PLAN, SETTINGS, path, ABOUT, on_cell=on_cell, on_step=steps.append)
    assert seen == [1, 2]
    assert steps == timed["asked"] != []
    assert [cell.mask for cell in cells] == ["none", "causal"]
    for cell in cells:
        assert [r.winner for r in cell.ranges] == ["cpu", "cpu-flash"]
        assert cell.ranges[0].to_length < 100 <= cell.ranges[1].from_length
        assert all(e["low"] <= e["ratio"] <= e["high"] and e["launches"] == 4 for e in cell.evidence)
        lengths = [e["length"] for e in cell.evidence]
        assert (lengths, lengths[0], lengths[-1]) == (sorted(lengths), 8, 512)
    timed["asked"].clear()
    more = crossover.Plan(**{f: getattr(PLAN, f) for f in PLAN.__struct_fields__ if f != "masks"}, masks=("bool",))
    found, _ = crossover.measure_crossover(more, SETTINGS, path, ABOUT)
    assert [cell.mask for cell in found.cells] == ["none", "causal", "bool"]
    assert all("boolmask11xx" in label for label in timed["asked"])
    timed["asked"].clear()
    crossover.measure_crossover(PLAN, SETTINGS, path, ABOUT)
    assert timed["asked"] == []
    crossover.measure_crossover(PLAN, SETTINGS, path, ABOUT | {"code": "another"})
    assert timed["asked"] != []


def test_a_cell_of_an_older_source_is_not_kept_however_the_run_ended(timed, tmp_path):
    """A run on changed code that was interrupted, or that named one cell only, leaves the others as old as they are."""
    path = tmp_path / "thresholds.json"
    crossover.measure_crossover(PLAN, SETTINGS, path, ABOUT)
    newer, plain = ABOUT | {"code": "another"}, msgspec.structs.replace(PLAN, masks=("none",))

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crossover.measure_crossover(PLAN, SETTINGS, path, newer, on_cell=stop)
    assert [cell.mask for cell in load_thresholds(path, force=True).cells] == ["none", "causal"]
    for plan, about, masks in (
        (PLAN, newer, {"causal"}),
        (plain, newer | {"lengths": [8, 511]}, {"none"}),
        (PLAN, newer | {"lengths": [8, 511]}, {"causal"}),
        (PLAN, newer | {"lengths": [8, 511], "settings": {"seed": 1}}, {"none", "causal"}),
    ):
        timed["asked"].clear()
        crossover.measure_crossover(plan, SETTINGS, path, about)
        assert {"causal" if "causal" in label else "none" for label in timed["asked"]} == masks


def test_a_file_says_the_gpu_while_one_of_its_cells_is_of_one(timed, tmp_path, monkeypatch):
    """Also after a run that names CPU backends only: the next one would take it for another machine's."""
    monkeypatch.setattr(thresholds, "_gpu_name", lambda: "a GPU")
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "2")
    settings = msgspec.structs.replace(SETTINGS, threads=2)
    for plan in (msgspec.structs.replace(PLAN, backends=("cpu", "gpu")), PLAN):
        found, _ = crossover.measure_crossover(plan, settings, tmp_path / "t.json", ABOUT)
        assert found.machine["gpu"] == "a GPU"
        assert load_thresholds(tmp_path / "t.json") == found
        assert found.threads == 2


def test_a_file_of_another_machine_is_not_written_to(timed, tmp_path):
    """Its cells would be mixed with ours."""
    path = tmp_path / "thresholds.json"
    found, _ = crossover.measure_crossover(PLAN, SETTINGS, path, ABOUT)
    path.write_text(json.dumps(found.to_dict() | {"machine": {"cpu": "other", "isa": ""}}))
    with pytest.raises(ThresholdsError, match=r"on another machine .* choose another --out"):
        crossover.measure_crossover(PLAN, SETTINGS, path, ABOUT)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"failed": "it was killed"}, "cpu failed on b1-h2-q8-k8-d24-float32: it was killed"),
     ({"ok": False}, "cpu gave a wrong output on b1-h2-q8-k8-d24-float32"),
     ({"ok": None}, "cpu gave a wrong output on b1-h2-q8-k8-d24-float32")],
)  # fmt: skip
def test_a_backend_that_fails_or_is_wrong_has_no_thresholds(timed, tmp_path, change, reason):
    """Being fast and wrong is not being fast; the reason stands in the file, and the cell is tried again next time."""
    timed.update(change)
    path = tmp_path / "thresholds.json"
    found, cells = crossover.measure_crossover(PLAN, SETTINGS, path, ABOUT)
    assert (cells[0].skipped, cells[0].ranges) == (reason, ())
    assert found.rules().better(AttentionConfig(batch=1, num_heads=2, seq_q=8, seq_k=8, head_dim=24), "cpu") is None
    timed.update({"failed": "", "ok": True})
    _, cells = crossover.measure_crossover(PLAN, SETTINGS, path, ABOUT)
    assert all(cell.ranges for cell in cells)


def test_what_a_backend_does_not_support_is_skipped(timed, tmp_path):
    """With its reason, without a measurement."""
    plan = crossover.Plan(**{f: getattr(PLAN, f) for f in PLAN.__struct_fields__ if f != "dtypes"}, dtypes=("float64",))
    _, cells = crossover.measure_crossover(plan, SETTINGS, tmp_path / "t.json", ABOUT)
    assert all(cell.skipped.startswith("cpu-flash: float64") for cell in cells)
    assert timed["asked"] == []


@pytest.mark.parametrize("seq_q", [None, 1])
def test_a_cell_is_measured_on_what_its_thresholds_are_asked_for(seq_q):
    """Whatever its kind: a selection finds what was measured on a config, and not on one of another kind."""
    values = {"batch": 3, "num_heads": 4, "num_kv_heads": 2, "layout": "BHSD", "seq_q": seq_q}
    plan = msgspec.structs.replace(
        PLAN, head_dims=(24, 40), dtypes=("float32", "float16"), masks=MASKS, direction="backward", **values
    )
    cells = plan.cells()
    assert len(cells) == len({crossover._key(cell) for cell in cells}) == 2 * 2 * 4
    made = Thresholds(
        machine={}, threads=1, cells=tuple(crossover.replace(c, ranges=(Range(9, 9, c.mask),)) for c in cells)
    )
    for cell in cells:
        config = crossover.config_of_cell(cell, 9)
        assert (config.seq_q, config.seq_k, config.head_dim_v) == (seq_q or 9, 9, cell.head_dim)
        alone = Thresholds(machine={}, threads=1, cells=(crossover.replace(cell, ranges=(Range(9, 9, "cpu"),)),))
        assert alone.rules().better(config, "cpu-flash") == "cpu"
        assert made.rules().better(config, "cpu-flash") == cell.mask


def test_what_is_too_short_for_a_backend_is_skipped(timed, tmp_path, monkeypatch):
    """Its reason at the shortest length, before anything is measured."""
    refuse = Support(ok=False, reason="too short")
    supports = BACKENDS.supports
    monkeypatch.setattr(BACKENDS, "supports", lambda b, c: refuse if c.seq_k < 9 else supports(b, c))
    _, cells = crossover.measure_crossover(PLAN, SETTINGS, tmp_path / "t.json", ABOUT)
    assert {cell.skipped for cell in cells} == {"cpu: too short"}
    assert timed["asked"] == []


def test_the_outputs_of_both_backends_need_memory(timed, tmp_path, monkeypatch):
    """Room for the larger one alone is not enough; a byte more than both need is not asked for."""
    plan = msgspec.structs.replace(PLAN, masks=("none",))
    config = AttentionConfig(batch=1, num_heads=2, seq_q=512, seq_k=512, head_dim=24)
    needed = feasibility.PROCESS_BYTES + feasibility.tensor_bytes(config, 2)
    needed += max(BACKENDS.get(name).workspace_bytes(config) for name in plan.backends)
    for available, begun in ((needed - 1, False), (needed, True)):
        monkeypatch.setattr(crossover.machine, "available_memory_bytes", lambda n=available: n)
        crossover.measure_crossover(plan, SETTINGS, tmp_path / "t.json", ABOUT)
        assert bool(timed["asked"]) == begun


def test_what_does_not_fit_in_memory_is_not_begun(timed, tmp_path, monkeypatch):
    """The longest length is measured too: without room for it the machine could end this process."""
    monkeypatch.setattr(crossover.machine, "available_memory_bytes", lambda: 1_000_000)
    _, cells = crossover.measure_crossover(PLAN, SETTINGS, tmp_path / "t.json", ABOUT)
    assert all(cell.skipped.startswith("cpu: needs ") for cell in cells)
    assert all(cell.skipped.endswith("available at 512 tokens: lower --lengths") for cell in cells)
    assert timed["asked"] == []


def test_a_stand_in_is_not_timed(timed, tmp_path, monkeypatch):
    """Times on what executes in place of the hardware say nothing about which backend is the faster one."""
    monkeypatch.setattr(BACKENDS.get("cpu-flash"), "is_stand_in", True, raising=False)
    _, cells = crossover.measure_crossover(PLAN, SETTINGS, tmp_path / "t.json", ABOUT)
    assert {cell.skipped for cell in cells} == {"cpu-flash: it runs on the stand-in GPU"}
    assert timed["asked"] == []


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ((), "undecided"),
        ((Range(1, None, "b"),), "b everywhere"),
        ((Range(1, 24, "a"), Range(48, None, "b")), "a up to 24, b from 48"),
        ((Range(3, 9, "a"),), "a 3 to 9"),
    ],
)
def test_ranges_in_words(ranges, text):
    """As the table shows them."""
    assert crossover.describe(ranges) == text


@pytest.fixture
def run_bench(tmp_path, capsys, monkeypatch):
    """Return a function that runs the command and gives (status, stdout, stderr)."""

    def run(*words):
        try:
            status = main(["bench", *words, "--out", str(tmp_path / "out")])
        except SystemExit as error:
            status = error.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


WORDS = ["--crossover", "--head-dims", "24", "--dtypes", "float32", "--num-heads", "2", "--threads", "1"]


def test_the_command_writes_a_file_that_selection_takes(timed, run_bench, tmp_path):
    """JSON alone on stdout, machine, threads, versions and evidence in the file, and the registry follows it."""
    from rocattn.backends import BACKENDS

    status, out, err = run_bench(*WORDS, "--lengths", "8", "512", "--json")
    value = json.loads(out)
    path = tmp_path / "out" / "thresholds.json"
    assert status == 0
    assert value["path"] == str(path)
    assert (value["machine"], value["threads"]) == (machine_identity(()), 1)
    assert {"rocattn", "code", "commit", "machine", "settings", "lengths"} <= set(value["about"])
    assert len(value["cells"]) == 2
    assert "cpu up to " in err
    BACKENDS.use_thresholds(path)
    short, long = (AttentionConfig(batch=1, num_heads=2, seq_q=n, seq_k=n, head_dim=24) for n in (20, 200))
    assert BACKENDS.select(short).name == "cpu"
    assert BACKENDS.select(long).name == "cpu-flash"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backend", "cpu"], "between two backends"),
        (["--backend", "cpu", "nope"], "no backend is named 'nope'"),
        (["--lengths", "64", "64"], "the first must be the smaller one"),
        (["--causal", "--head-dim", "8"], "--causal, --head-dim: crossovers are sought over"),
        (["--grid", "square"], "--grid: crossovers are sought over"),
    ],
)
def test_a_usage_error_is_one_line(run_bench, words, message):
    """Exit status 4, and what to do."""
    status, out, err = run_bench(*WORDS, *words)
    assert (status, out) == (4, "")
    assert message in err.splitlines()[-1]


def test_bench_measures_what_selection_chooses(run_bench, tmp_path, monkeypatch):
    """--use-thresholds adds "select" beside the backends; the measuring processes read the file and take its choice."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "loud.py").write_text(
        "import sys\nfrom rocattn.backends import BACKENDS, CpuBackend\n"
        "class Loud(CpuBackend):\n    name = 'loud'\n    priority = -9\n"
        "    def forward(self, *words):\n        print('loud was chosen', file=sys.stderr)\n        raise MemoryError\n"
        "BACKENDS.register(Loud())\n"
    )
    cell = crossover.Plan(
        backends=("loud", "cpu-flash"), head_dims=(12,), dtypes=("float32",), masks=("none",), shortest=8, longest=9,
        num_heads=2, num_kv_heads=2,
    ).cells()[0]  # fmt: skip
    both = [
        crossover.replace(cell, backends=pair, ranges=(Range(1, None, "loud"),))
        for pair in (("loud", "cpu-flash"), ("loud", "cpu"))
    ]
    path = tmp_path / "thresholds.json"
    path.write_text(
        json.dumps(crossover.Thresholds(machine=machine_identity(()), threads=1, cells=tuple(both)).to_dict())
    )
    shape = ["--seq-q", "9", "--head-dim", "12", "--num-heads", "2", "--launches", "1", "--samples", "2", "--quick"]
    words = [*shape, "--threads", "1", "--no-store", "--backend", "cpu", "--backend-module", "loud"]
    status, out, err = run_bench(*words, "--use-thresholds", str(path), "--json")
    assert status == 3, err
    assert [record["backend"] for record in json.loads(out)["records"]] == ["cpu"]
    assert "on select: MemoryError" in err
    assert "loud was chosen" in (tmp_path / "out" / "failures.log").read_text()


def test_bench_refuses_thresholds_of_elsewhere(run_bench, timed, tmp_path):
    """One line before anything is measured."""
    path = tmp_path / "t.json"
    crossover.measure_crossover(PLAN, SETTINGS, path, ABOUT)
    status, out, err = run_bench("--use-thresholds", str(path), "--threads", "2", "--quick")
    assert (status, out) == (4, "")
    assert "was measured with 1 thread, and this process uses 2" in err.splitlines()[-1]
