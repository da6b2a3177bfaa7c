"""Measured thresholds change a selection exactly where they were measured, on their own machine, and nowhere else."""

import json
from types import SimpleNamespace

import pytest

from rocattn import AttentionConfig, BackendRegistry
from rocattn.registry import YES, Backend, Support
from rocattn.threads import thread_count
from rocattn.thresholds import Cell, Range, Thresholds, ThresholdsError, load_thresholds, machine_identity, mask_kind

CONFIG = AttentionConfig(batch=1, num_heads=8, seq_q=20, seq_k=20, head_dim=64)
RANGES = (Range(1, 24, "slow"), Range(48, None, "fast"))
CELL = Cell(
    backends=("slow", "fast"), head_dim=64, dtype="float32", mask="none", batch=1, num_heads=8, num_kv_heads=8,
    ranges=RANGES,
)  # fmt: skip


class Named(Backend):
    """A backend that says yes, or why not."""

    def __init__(self, name, priority, refusal=""):
        self.name, self.priority, self.refusal = name, priority, refusal

    def supports(self, _config):
        """As told."""
        return Support(ok=False, reason=self.refusal) if self.refusal else YES

    def workspace_bytes(self, _config):
        """None."""
        return 0

    def forward(self, *_):
        """Nothing."""

    def backward(self, *_):
        """Nothing."""


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file of this machine's thresholds and returns its path."""

    def make(*cells, **changes):
        values = {"machine": machine_identity(()), "threads": thread_count(), **changes}
        path = tmp_path / "thresholds.json"
        path.write_text(json.dumps(Thresholds(cells=cells, **values).to_dict()))
        return path

    return make


@pytest.fixture
def registry():
    """Two backends, of which "fast" has the higher priority."""
    made = BackendRegistry()
    made.register(Named("slow", 0))
    made.register(Named("fast", 10))
    return made


def chosen(registry, length=20, **changes):
    """What is selected for a problem of a length."""
    return registry.select(CONFIG.replace(seq_q=length, seq_k=length, **changes)).name


def test_the_measured_winner_is_chosen_and_the_rest_is_left_alone(registry, write):
    """Up to the threshold the slow one, from the other threshold the fast one, between them the priority decides."""
    registry.use_thresholds(write(CELL))
    lengths = [1, 20, 24, 25, 47, 48, 10_000]
    assert [chosen(registry, n) for n in lengths] == ["slow"] * 3 + ["fast"] * 4
    registry.use_thresholds(None)
    assert chosen(registry) == "fast"


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 2}, {"num_heads": 16, "num_kv_heads": 16}, {"num_kv_heads": 2}, {"dtype": "bfloat16"},
        {"layout": "BHSD"}, {"direction": "backward"}, {"causal": True}, {"head_dim": 32}, {"head_dim_v": 32},
        {"head_dim": 128}, {"softcap": 2.0}, {"alibi": True}, {"sinks": True}, {"window": (4, 4)}, {"seq_q": 1},
        {"mask": "bool", "mask_shape": (1, 1, 20, 20)},
    ],
    ids=str,
)  # fmt: skip
def test_what_was_not_measured_is_selected_as_before(registry, write, changes):
    """One field is another: the file says nothing about it."""
    registry.use_thresholds(write(CELL))
    assert registry.select(CONFIG).name == "slow"
    assert registry.select(CONFIG.replace(**changes)).name == "fast"


def test_between_two_head_dimensions_both_must_agree(registry, write):
    """D = 80 lies between 64 (slow up to 24) and 128 (slow up to 16)."""
    wide = Cell(**{**fields(CELL), "head_dim": 128, "ranges": (Range(1, 16, "slow"),)})
    registry.use_thresholds(write(CELL, wide))
    assert [chosen(registry, n, head_dim=80, head_dim_v=80) for n in (16, 17)] == ["slow", "fast"]
    assert chosen(registry, 16, head_dim=256, head_dim_v=256) == "fast"


def fields(cell):
    """A cell's fields."""
    return {name: getattr(cell, name) for name in Cell.__dataclass_fields__}


def test_decode_has_thresholds_of_its_own(registry, write):
    """Where query tokens were fixed, keys are the length: from 2 of them on, so one would be below that."""
    registry.use_thresholds(write(Cell(**{**fields(CELL), "seq_q": 1, "ranges": (Range(2, 24, "slow"),)})))
    assert registry.select(CONFIG.replace(seq_q=1, seq_k=24)).name == "slow"
    registry.use_thresholds(write(Cell(**{**fields(CELL), "seq_q": 1})))
    assert registry.select(CONFIG.replace(seq_q=1, seq_k=24)).name == "slow"
    assert registry.select(CONFIG.replace(seq_q=2, seq_k=24)).name == "fast"
    assert chosen(registry, 24) == "fast"
    assert chosen(registry, 1) == "slow", "one query and one key are a decode, too"


def test_decode_between_two_head_dimensions_is_looked_up_by_keys(registry, write):
    """D = 80 with one query token: 20 keys, not one."""
    narrow = {**fields(CELL), "seq_q": 1, "ranges": (Range(2, 24, "slow"),)}
    registry.use_thresholds(write(Cell(**narrow), Cell(**{**narrow, "head_dim": 128})))
    decode = CONFIG.replace(seq_q=1, head_dim=80, head_dim_v=80)
    assert registry.select(decode).name == "slow"
    assert registry.select(decode.replace(seq_k=1)).name == "fast"


def test_a_layout_has_thresholds_of_its_own(registry, write):
    """What was measured in BHSD holds there, and nowhere else."""
    registry.use_thresholds(write(Cell(**{**fields(CELL), "layout": "BHSD"})))
    assert [chosen(registry, layout=layout) for layout in ("BHSD", "BSHD")] == ["slow", "fast"]


def test_a_gpu_is_known_by_its_name_and_target(monkeypatch):
    """MI300X in one partition mode or another has one target; two products of a target have two names."""
    device = SimpleNamespace(name="AMD Instinct MI300X", arch="gfx942:sramecc+:xnack-")
    monkeypatch.setattr("rocattn.gpu.runtime.open_runtime", lambda: SimpleNamespace(device=device))
    assert machine_identity(("cpu", "gpu"))["gpu"] == "AMD Instinct MI300X gfx942:sramecc+:xnack-"


def test_a_file_keeps_what_it_says_of_its_making(write):
    """Versions and settings, for people."""
    about = {"rocattn": "1.2", "settings": {"launches": 3}}
    assert load_thresholds(write(CELL, about=about)).about == about


def test_a_winner_that_cannot_run_is_not_chosen(registry, write):
    """The threshold names a backend that refuses, or is gone: the priority decides."""
    registry.use_thresholds(write(CELL))
    registry.get("slow").refusal = "not today"
    assert chosen(registry) == "fast"
    registry.unregister("slow")
    assert chosen(registry) == "fast"


def test_a_threshold_speaks_of_its_two_backends_only(registry, write):
    """A third one of higher priority was never compared: that "slow" beats "fast" says nothing about it."""
    registry.register(Named("third", 20))
    registry.use_thresholds(write(CELL))
    assert chosen(registry) == "third"
    other = Cell(**{**fields(CELL), "backends": ("fast", "third"), "ranges": (Range(1, None, "fast"),)})
    registry.use_thresholds(write(CELL, other))
    assert chosen(registry) == "slow"


def test_a_backend_that_beats_one_may_be_beaten_by_another(registry, write):
    """That "third" is faster than "slow" is not the last word: "fast" is faster than "third" there."""
    registry.register(Named("third", 20))
    pairs = [("slow", "third", "third"), ("third", "fast", "fast")]
    cells = [
        Cell(**{**fields(CELL), "backends": (a, b), "ranges": (Range(1, None, winner),)}) for a, b, winner in pairs
    ]
    for order in (cells, cells[::-1]):
        registry.use_thresholds(write(*order))
        assert chosen(registry) == "fast"


def test_contradicting_thresholds_end(registry, write):
    """a beats b, b beats c and c beats a: something is chosen."""
    registry.register(Named("third", 20))
    pairs = [("slow", "fast", "slow"), ("fast", "third", "fast"), ("slow", "third", "third")]
    cells = [
        Cell(**{**fields(CELL), "backends": (a, b), "ranges": (Range(1, None, winner),)}) for a, b, winner in pairs
    ]
    registry.use_thresholds(write(*cells))
    assert chosen(registry) in {"slow", "fast", "third"}


def test_names_and_the_default_outweigh_thresholds(registry, write):
    """What the program asks for is what it gets."""
    registry.use_thresholds(write(CELL))
    assert registry.select(CONFIG, "fast").name == "fast"
    registry.set_default("fast")
    assert chosen(registry) == "fast"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": {"cpu": "Another CPU", "isa": "avx2"}}, r"on another machine \(Another CPU, avx2; this is "),
        ({"threads": 77}, r"with 77 threads, and this process uses "),
    ],
)
def test_a_file_of_elsewhere_is_refused_in_one_line_unless_forced(registry, write, changes, words):
    """Another machine or thread count: the line says which, and what to do; nothing changes."""
    path = write(CELL, **changes)
    with pytest.raises(ThresholdsError, match=words) as caught:
        registry.use_thresholds(path)
    assert "rocattn bench --crossover" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert chosen(registry) == "fast"
    registry.use_thresholds(path, force=True)
    assert chosen(registry) == "slow"


def test_thresholds_of_the_gpu_are_of_one_gpu(registry, write):
    """Without one the file is foreign, whatever the CPU; a file about CPU backends does not ask for a GPU."""
    cell = Cell(**{**fields(CELL), "backends": ("slow", "gpu"), "ranges": (Range(1, None, "slow"),)})
    with pytest.raises(ThresholdsError, match="Some GPU gfx942"):
        registry.use_thresholds(write(cell, machine=machine_identity(()) | {"gpu": "Some GPU gfx942"}))
    assert "gpu" not in machine_identity(("cpu", "cpu-flash"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read thresholds from .*: No such file"),
        ("not json", "holds no thresholds"),
        ("[]", "holds no thresholds"),
        ('{"schema": 9}', "its schema is 9, this rocattn reads 1"),
        ('{"schema": 1, "cells": [{}]}', "it has no 'backends'"),
    ],
)
def test_a_file_that_holds_no_thresholds_is_refused(registry, tmp_path, text, words):
    """One line that names the file."""
    path = tmp_path / "thresholds.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ThresholdsError, match=words):
        registry.use_thresholds(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": None}, {"machine": [1]}, {"threads": 1e400}, {"threads": "2"}, {"threads": None}, {"cells": 3},
        {"batch": "1"}, {"head_dim": [64]}, {"dtype": ["float32"]}, {"seq_q": "20"}, {"layout": {}},
        {"ranges": [{"from_length": "1", "to_length": None, "winner": "slow"}]},
        {"ranges": [{"from_length": 1, "to_length": [24], "winner": "slow"}]},
        {"ranges": [{"from_length": 1, "to_length": None, "winner": ["slow"]}]},
        {"ranges": [{}]}, {"backends": ["slow"]},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("force", [False, True])
def test_a_value_of_another_kind_is_refused_when_the_file_is_read(registry, write, changes, force):
    """Not by a TypeError in whichever call first compares it; forced or not."""
    path = write(CELL)
    values = json.loads(path.read_text())
    (values if changes.keys() & values.keys() else values["cells"][0]).update(changes)
    path.write_text(json.dumps(values))
    with pytest.raises(ThresholdsError, match="holds no thresholds") as caught:
        registry.use_thresholds(path, force=force)
    assert "\n" not in str(caught.value)


def test_a_machine_of_numbers_is_another_machine(registry, write):
    """Whatever the file says of it is shown."""
    with pytest.raises(ThresholdsError, match=r"on another machine \(5; this is "):
        registry.use_thresholds(write(CELL, machine={"cpu": 5}))


def test_the_environment_names_a_file_for_a_registry_that_reads_it(write, monkeypatch):
    """Read at the first selection that has a choice; a wrong file is an error there, a call of ours outweighs it."""
    monkeypatch.setenv("SOME_THRESHOLDS", str(write(CELL)))
    for use, wanted in ((False, "slow"), (True, "fast")):
        made = BackendRegistry("SOME_THRESHOLDS")
        made.register(Named("slow", 0))
        made.register(Named("fast", 10))
        if use:
            made.use_thresholds(None)
        assert chosen(made) == wanted
    monkeypatch.setenv("SOME_THRESHOLDS", "no-such-file.json")
    made = BackendRegistry("SOME_THRESHOLDS")
    made.register(Named("fast", 10))
    assert made.select(CONFIG, "fast").name == "fast"
    with pytest.raises(ThresholdsError, match=r"no-such-file\.json"):
        chosen(made)


def test_kinds_of_masks():
    """What thresholds know: no mask, causal, and one mask for all heads."""
    masked = CONFIG.replace(mask="additive", mask_shape=(1, 1, 20, 20))
    assert [mask_kind(c) for c in (CONFIG, CONFIG.replace(causal=True), masked)] == ["none", "causal", "additive"]
    assert mask_kind(masked.replace(causal=True)) is None
    assert mask_kind(CONFIG.replace(mask="bool", mask_shape=(1, 8, 20, 20))) is None
