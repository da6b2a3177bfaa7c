"""The quick level finds each first mistake of a kernel in whatever backend makes it, also in one that does little."""

import functools

import numpy as np
import pytest

from rocattn.backend import Support
from rocattn_profiling.verify import run
from rocattn_profiling.verify.cases import POINTS, cases, find_case
from rocattn_profiling.verify.run import verify

from .changed import Changed


def plain(config):
    """Whether a config has none of the options that a first kernel leaves out."""
    return config.mask == "none" and not (config.softcap or config.alibi or config.sinks or config.window)


NARROW = {
    "everything": lambda _: True,
    "float32 forward": lambda c: plain(c) and c.dtype == "float32" and c.direction == "forward",
    "float16 backward": lambda c: plain(c) and c.dtype == "float16" and c.direction == "backward",
    "large heads of bfloat16": lambda c: plain(c) and c.dtype == "bfloat16" and c.head_dim in {128, 192},
    "small heads without LSE": lambda c: plain(c) and not c.return_lse and c.head_dim <= 32,
    "one query": lambda c: plain(c) and c.seq_q == 1 and c.direction == "forward" and c.dtype == "float16",
    "causal alone": lambda c: plain(c) and c.causal and c.dtype == "bfloat16",
    "float64, one batch or grouped heads, not both": lambda c: (
        plain(c) and c.dtype == "float64" and (c.batch == 1 or c.num_heads == c.num_kv_heads)
    ),
}
IMPOSSIBLE = {("one query", "causal, Sq > Sk")}


class Narrow(Changed):
    """A backend that takes few configs, and reads its operands as a mistake has it."""

    name = "narrow"

    def __init__(self, takes, mistake=None):
        super().__init__(before=mistake)
        self._takes = takes

    def supports(self, config):
        """Only what the test says."""
        return Support(ok=bool(self._takes(config)), reason="too much for it")

    def backward(self, config, operands, *arrays):
        """Compute the gradients, with the same mistake."""
        if self._before:
            config, operands = self._before(config, operands)
        super().backward(config, operands, *arrays)


def hide(config, operands, seen):
    """Hide what ``seen`` [Sq, Sk] has as False; no other masks."""
    shape = (1, 1, config.seq_q, config.seq_k)
    return config.replace(mask="bool", mask_shape=shape), operands._replace(mask=seen.reshape(shape))


def other_head(config, operands):
    """Groups take the K of the next group."""
    return config, operands._replace(k=np.roll(operands.k, 1, axis=1))


def first_batch(config, operands):
    """Every batch takes the V of the first."""
    return config, operands._replace(v=np.broadcast_to(operands.v[:1], operands.v.shape))


def even_or_odd(config, operands):
    """Every batch takes the V of the first or the second."""
    return config, operands._replace(v=operands.v[np.arange(config.batch) % 2])


def top_left(config, operands):
    """Row i sees keys up to i."""
    seen = np.tril(np.ones((config.seq_q, config.seq_k), bool))
    return hide(config.replace(causal=False), operands, seen)


def other_layout(config, operands):
    """K's heads and keys are taken for each other."""
    k = operands.k
    return config, operands._replace(k=np.ascontiguousarray(k.transpose(0, 2, 1, 3)).reshape(k.shape))


def scale_of_v(config, operands):
    """Scores are scaled by 1 / sqrt(Dv)."""
    return config.replace(scale=config.head_dim_v**-0.5), operands


def whole_tiles(config, operands):
    """The last tile of keys is left out if it is not full."""
    seen = np.arange(config.seq_k) < config.seq_k // 16 * 16
    return hide(config, operands, np.broadcast_to(seen, (config.seq_q, config.seq_k)).copy())


MISTAKES = {
    "batches": first_batch,
    "more than two batches": even_or_odd,
    "grouped heads": other_head,
    "causal, Sq < Sk": top_left,
    "causal, Sq > Sk": top_left,
    "BSHD": other_layout,
    "BHSD": other_layout,
    "BSE": other_layout,
    "Dv != D": scale_of_v,
    "a last tile of keys that is not full": whole_tiles,
}


@functools.cache
def asked_of(narrow):
    """The quick cases of the family that a backend takes; what it computes wrong is not asked."""
    backend = Narrow(NARROW[narrow])
    return [case for case in cases("quick", [backend]) if case.family == "basics" and backend.supports(case.config)]


def basics(narrow, mistake=None):
    """The quick cases of the family that a backend takes, by label, and what became of them."""
    asked = asked_of(narrow)
    return {case.label: case for case in asked}, verify(asked, [Narrow(NARROW[narrow], mistake)]).outcomes


@pytest.fixture
def unnamed(monkeypatch):
    """Do not look for a mistake's name, which takes most of the time: `test_broken_backends` is about that."""
    monkeypatch.setattr(run, "fitting", lambda *_, **__: [])
    monkeypatch.setattr(run, "gradient_mistakes", lambda *_: [])


@pytest.mark.parametrize("narrow", NARROW)
def test_a_right_backend_passes_however_little_it_does(narrow):
    """There are cases for it, and none is wrong."""
    _, outcomes = basics(narrow)
    assert len(outcomes) >= 4
    assert [outcome.case for outcome in outcomes if not outcome.ok] == []


@pytest.mark.parametrize("narrow", [name for name in NARROW if name != "everything"])
@pytest.mark.parametrize("point", POINTS)
def test_each_mistake_is_found_in_each_backend(unnamed, point, narrow):
    """A mistake at one point alone fails a quick case, whatever else the backend refuses."""

    def mistake(config, operands):
        return MISTAKES[point](config, operands) if plain(config) and POINTS[point](config) else (config, operands)

    asked, outcomes = basics(narrow, mistake)
    wrong = [asked[outcome.case].config for outcome in outcomes if not outcome.ok]
    assert bool(wrong) == ((narrow, point) not in IMPOSSIBLE)
    assert all(POINTS[point](config) for config in wrong)


@pytest.mark.parametrize("family", ["positions", "visibility"])
def test_a_third_batch_is_looked_at_in_decode_and_under_masks(unnamed, family):
    """One query of each batch reads the V of its own, and each batch has the mask of its own."""
    index = {"positions": "v", "visibility": "mask"}[family]

    def mistake(config, operands):
        array = getattr(operands, index)
        if array is None or array.shape[0] < 3:
            return config, operands
        return config, operands._replace(**{index: array[np.arange(len(array)) % 2]})

    asked = [case for case in cases("core") if case.family == family]
    wrong = [outcome.case for outcome in verify(asked, [Changed(before=mistake)]).outcomes if not outcome.ok]
    assert {case.partition("/")[2][:2] for case in wrong} == {"b3"}
    assert {case.config.dtype for case in asked if case.label in wrong} == {"float32", "float16", "bfloat16"}


def test_a_case_for_a_narrow_backend_has_a_label():
    """Such cases follow the level's own, and their labels work like any other's."""
    backend = Narrow(NARROW["large heads of bfloat16"])
    usual, more = cases("quick"), cases("quick", [backend])
    assert more[: len(usual)] == usual
    added = more[len(usual) :]
    assert {case.config.head_dim for case in added} == {128, 192}
    assert find_case(added[-1].label) == added[-1]
