"""The registry says who can run a config, who cannot and why, and picks one."""

import functools
import threading
import tracemalloc

import numpy as np
import pytest
from inline_snapshot import snapshot

import rocattn
from rocattn.backend import YES, Backend, Support
from rocattn.backends import BACKENDS, cpu_flash
from rocattn.config import AttentionConfig
from rocattn.errors import BackendWarning, ConfigError, NoBackendError, ToolchainError
from rocattn.registry import BackendRegistry

CONFIG = AttentionConfig(batch=1, num_heads=2, seq_q=5, seq_k=7, head_dim=8)
DOUBLE = CONFIG.replace(dtype="float64")


class Constant(Backend):
    """Writes one number everywhere; may refuse, or be absent."""

    def __init__(self, name, priority=0, value=1.0, refusal="", absence="", broken=False):
        self.name, self.priority, self.value = name, priority, value
        self.refusal, self.absence, self.broken = refusal, absence, broken

    def available(self):
        """Absent, or broken, if told so."""
        return Support(ok=False, reason=self.absence, broken=self.broken) if self.absence else YES

    def supports(self, _config):
        """Refuse if told so."""
        return Support(ok=False, reason=self.refusal) if self.refusal else YES

    def workspace_bytes(self, _config):
        """None."""
        return 0

    def forward(self, _config, _operands, out, lse):
        """Fill."""
        out[...] = self.value
        if lse is not None:
            lse[...] = self.value

    def backward(self, _config, _operands, _dout, _out, _lse, dq, dk, dv):
        """Fill."""
        for gradient in (dq, dk, dv):
            gradient[...] = self.value


@pytest.fixture
def registry():
    """A registry with a slow one that can do everything and a fast one that cannot."""
    made = BackendRegistry()
    made.register(Constant("slow"))
    made.register(Constant("fast", priority=5, refusal="it is only for squares"))
    return made


def test_the_builtin_backends_are_registered_in_order():
    """cpu-flash comes before cpu; cpu is available everywhere, cpu-flash is or says why not."""
    names = [backend.name for backend in BACKENDS]
    assert names.index("cpu-flash") < names.index("cpu")
    assert BACKENDS.get("cpu").available()
    answer = BACKENDS.get("cpu-flash").available()
    assert answer.ok == (answer.reason == "")


def test_selection_takes_the_fastest_able_backend():
    """cpu-flash for float32 where it can be compiled; float64 falls to cpu, and the refusal says why."""
    assert BACKENDS.select(CONFIG).name == ("cpu-flash" if BACKENDS.get("cpu-flash").available() else "cpu")
    assert BACKENDS.select(DOUBLE).name == "cpu"
    answer = BACKENDS.get("cpu-flash").supports(DOUBLE)
    assert not answer
    assert "float64" in answer.reason


def test_the_default_is_tried_first_and_passed_over_if_unable(registry):
    """A default wins over priority, but one that cannot run the config is passed over."""
    registry.register(Constant("medium", priority=3))
    assert registry.select(CONFIG).name == "medium"
    registry.set_default("slow")
    assert registry.select(CONFIG).name == "slow"
    registry.set_default("fast")
    assert registry.select(CONFIG).name == "medium"
    registry.set_default(None)
    assert registry.default is None
    assert registry.select(CONFIG).name == "medium"


def test_a_broken_backend_is_said_once_with_what_to_do(registry):
    """Who would have been selected, who computes instead and at what cost, why, and how to silence it; then no more."""
    registry.get("slow").cost = "ten times slower"
    registry.register(Constant("gpu-like", priority=9, absence="no driver: load it", broken=True))
    with pytest.warns(BackendWarning) as caught:
        assert registry.select(CONFIG).name == "slow"
    (warning,) = caught
    assert str(warning.message) == (
        "the backend gpu-like does not work here, so slow computes, ten times slower: no driver: load it "
        "(ROCATTN_QUIET=1 silences this)"
    )
    assert warning.filename == __file__
    assert registry.select(CONFIG).name == "slow"  # warnings are errors here


def test_a_warning_that_is_an_error_is_one_at_each_call(registry):
    """`-W error` stays strict: a retry does not pass."""
    registry.register(Constant("gpu-like", priority=9, absence="no driver: load it", broken=True))
    for _ in range(2):
        with pytest.raises(BackendWarning, match="no driver"):
            registry.select(CONFIG)


@pytest.mark.parametrize(
    ("backend", "quiet"),
    [
        ({"priority": 9, "absence": "there is no such device"}, ""),
        ({"priority": 9, "absence": "no driver", "broken": True, "refusal": "not this config"}, ""),
        ({"priority": -9, "absence": "no driver", "broken": True}, ""),
        ({"priority": 9, "absence": "no driver", "broken": True}, "1"),
    ],
    ids=["absent", "unsupported", "slower", "quiet"],
)
def test_what_was_not_to_be_selected_is_no_warning(registry, monkeypatch, backend, quiet):
    """No hardware, another's config, one behind the chosen, and who asked for silence."""
    monkeypatch.setenv("ROCATTN_QUIET", quiet)
    registry.register(Constant("gpu-like", **backend))
    assert registry.select(CONFIG).name == "slow"


def test_without_a_compiler_numpy_computes_and_says_so(monkeypatch):
    """The built-in ones: the loss, its size and the remedy are in one warning; float64 is numpy's anyway."""

    def none():
        raise ToolchainError("no C++ compiler: install one")

    monkeypatch.setattr(cpu_flash, "load_library", none)
    monkeypatch.setattr(cpu_flash, "_library", functools.cache(cpu_flash._library.__wrapped__))
    monkeypatch.setattr(BACKENDS, "_said", set())
    assert BACKENDS.select(DOUBLE).name == "cpu"
    with pytest.warns(BackendWarning, match="cpu-flash does not .* 50 to 200 times slower than .*: install one"):
        assert BACKENDS.select(CONFIG).name == "cpu"


def test_equals_are_ordered_by_name_and_no_name_is_one():
    """Whichever was registered first: a selection is the same in every process. "" is nobody's name, not None."""
    for names in (("b", "a"), ("a", "b")):
        made = BackendRegistry()
        for name in names:
            made.register(Constant(name, priority=3))
        assert made.select(CONFIG).name == "a"
    with pytest.raises(NoBackendError, match="no backend is named ''; registered: a, b") as caught:
        made.select(CONFIG, "")
    assert caught.value.reasons == {"": "unknown"}


def test_a_selection_is_not_kept_when_backends_come_and_go(registry):
    """The order of priorities that one selection found is not that of the next one's backends."""
    assert registry.select(CONFIG).name == "slow"
    registry.register(Constant("first", priority=9))
    assert registry.select(CONFIG).name == "first"
    registry.unregister("first")
    assert registry.select(CONFIG).name == "slow"
    assert [backend.name for backend in registry] == ["fast", "slow"]


def test_a_priority_is_asked_for_when_an_order_is_needed(registry):
    """Registering looks for no GPU; a priority that registers another backend finds no lock held."""

    class Looks(Constant):
        @property
        def priority(self):
            looked.append(self.name)
            if len(looked) == 1:
                registry.register(Constant("late", priority=20))
            return 10

        @priority.setter
        def priority(self, value): ...

    looked = []
    registry.register(Looks("looks"))
    assert looked == []
    assert registry.select(CONFIG, "slow").name == "slow"
    assert looked == []
    assert registry.select(CONFIG).name == "looks"
    assert registry.select(CONFIG).name == "late"


def test_a_name_is_tried_alone(registry):
    """A backend named outright is used or refused, never replaced."""
    assert registry.select(CONFIG, "slow").name == "slow"
    with pytest.raises(NoBackendError, match=r"'fast' cannot run .*it is only for squares") as caught:
        registry.select(CONFIG, "fast")
    assert caught.value.reasons == {"fast": "it is only for squares"}


def test_no_backend_error_lists_every_reason(registry):
    """When nobody can, the error has each one's own reason, absent ones included."""
    registry.unregister("slow")
    registry.register(Constant("gone", absence="there is no such device"))
    with pytest.raises(NoBackendError) as caught:
        registry.select(CONFIG)
    assert caught.value.reasons == {"fast": "it is only for squares", "gone": "there is no such device"}
    assert str(caught.value) == snapshot(
        "no backend can run b1-h2-q5-k7-d8-float32: fast: it is only for squares; gone: there is no such device"
    )


@pytest.mark.parametrize("answer", [False, None, "no"])
def test_answer_without_a_reason_is_refused(registry, answer, monkeypatch):
    """A bare False would end in an AttributeError where its reason is wanted."""
    monkeypatch.setattr(registry.get("slow"), "supports", lambda _config: answer)
    with pytest.raises(ConfigError, match=f"backend 'slow' answers {answer!r}: it must answer a rocattn.Support"):
        registry.select(CONFIG, "slow")


def test_an_empty_registry_says_so():
    """Selecting from nothing is an error that says nothing is registered."""
    with pytest.raises(NoBackendError, match="no backend is registered"):
        BackendRegistry().select(CONFIG)


def test_a_name_can_be_taken_once(registry):
    """A second backend of a name is refused, and the first stays."""
    with pytest.raises(ConfigError, match="'slow' is registered already"):
        registry.register(Constant("slow", value=2))
    assert registry.get("slow").value == 1


def test_unregistering_also_drops_the_default(registry):
    """A removed default does not linger; removing what is not there is fine."""
    registry.set_default("slow")
    registry.unregister("another")
    assert registry.default == "slow"
    registry.unregister("slow")
    registry.unregister("slow")
    assert registry.default is None
    with pytest.raises(NoBackendError, match="no backend is named 'slow'; registered: fast"):
        registry.set_default("slow")


def test_attention_runs_a_backend_of_ones_own():
    """A registered backend is reached by name, and by default once it is that."""
    q = np.zeros((1, 5, 2, 8), np.float32)
    BACKENDS.register(Constant("sevens", value=7, priority=-1))
    try:
        assert (rocattn.attention(q, q, q, backend="sevens") == 7).all()
        assert not rocattn.attention(q, q, q).any()
        BACKENDS.set_default("sevens")
        out, lse = rocattn.attention(q, q, q, return_lse=True)
        assert (out == 7).all()
        assert (rocattn.attention_backward(out, q, q, q, out, lse)[2] == 7).all()
    finally:
        BACKENDS.unregister("sevens")
    assert BACKENDS.default is None


def test_the_backend_of_a_call_is_told_before_the_checks(monkeypatch):
    """The named one, else that of the last call; a call that is refused has told it too, and an unknown name nobody."""
    told, q = [], np.zeros((1, 5, 2, 8), np.float32)
    monkeypatch.setattr(Constant, "expect", lambda self, size: told.append((self.name, size)), raising=False)
    BACKENDS.register(Constant("sevens", value=7, priority=99))
    try:
        rocattn.attention(q, q, q, backend="cpu")
        assert told == []
        rocattn.attention(q, q, q, backend="sevens")
        rocattn.attention(q, q, q)
        with pytest.raises(ConfigError):
            rocattn.attention(q, q[:, :3], q)
        with pytest.raises(NoBackendError):
            rocattn.attention(q, q, q, backend="eights")
        assert told == [("sevens", q.nbytes), ("sevens", q.nbytes), ("sevens", q[:, :3].nbytes)]
    finally:
        BACKENDS.unregister("sevens")
    rocattn.attention(q, q, q)  # the last one is gone


def test_registering_from_many_threads_loses_nothing():
    """Sixteen threads register at once; all are there."""
    made = BackendRegistry()
    gate = threading.Barrier(16)

    def add(number):
        gate.wait()
        made.register(Constant(f"b{number}"))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(made)) == 16


@pytest.mark.parametrize("name", ["cpu", "cpu-flash"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "softcap": 2.0},
        {"window": (40, 7), "sinks": True},
        {"alibi": True},
        {"alibi": True, "causal": True, "dtype": "float16"},
        {"mask": "bool", "mask_shape": (2, 4, 330, 450)},
        {"mask": "bool", "mask_shape": (1, 1, 330, 450), "causal": True},
        {"mask": "additive", "mask_shape": (1, 4, 330, 1), "causal": True},
        {"mask": "additive", "mask_shape": (1, 1, 330, 450), "dtype": "bfloat16"},
        {"dtype": "bfloat16", "layout": "BHSD"},
    ],
    ids=[
        "plain", "causal-softcap", "window-sinks", "alibi", "alibi-causal", "bool", "bool-causal", "additive-rows",
        "additive", "BHSD",
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunk_scores", [1 << 22, 1 << 18], ids=["one chunk", "chunks"])
def test_workspace_bytes_is_what_a_call_allocates(monkeypatch, name, direction, options, chunk_scores):
    """The stated workspace is what the allocators count at the peak, within 5 % and the 20 kB of small objects.

    numpy's buffers are counted by tracemalloc, those of the CPU kernels by the kernels.
    """
    from rocattn.backends import cpu
    from rocattn_profiling.memory.measure import allocator_peak
    from rocattn_profiling.workloads.inputs import make_inputs

    if not (backend := BACKENDS.get(name)).available():
        pytest.skip(backend.available().reason)
    monkeypatch.setattr(cpu, "CHUNK_SCORES", chunk_scores)
    config = AttentionConfig(
        batch=2, num_heads=4, num_kv_heads=2, seq_q=330, seq_k=450, head_dim=40, direction=direction, **options
    )
    operands = make_inputs(config).operands(config)
    out, lse = np.zeros_like(operands.q), np.zeros(operands.q.shape[:3], np.float32)
    gradients = [np.zeros_like(x) for x in (operands.q, operands.k, operands.v)]

    def call():
        if direction == "forward":
            backend.forward(config, operands, out, lse)
        else:
            backend.backward(config, operands, out, out, lse, *gradients)

    call()  # what the first call of a process imports is not its workspace
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        peak = allocator_peak(backend, call) - before
    finally:
        tracemalloc.stop()
    assert backend.workspace_bytes(config) == pytest.approx(peak, rel=0.05, abs=20_000)


def test_flash_never_holds_the_score_matrix():
    """cpu-flash's workspace grows with Sk (converted K and V), not with Sq * Sk; cpu's holds all scores of a head."""
    config = AttentionConfig(batch=1, num_heads=8, seq_q=16384, seq_k=16384, head_dim=64, dtype="bfloat16")
    scores = 4 * 16384 * 16384
    assert BACKENDS.get("cpu").workspace_bytes(config) > scores
    assert BACKENDS.get("cpu-flash").workspace_bytes(config) < scores / 50
