"""`rocattn verify` of sequences of different lengths: right backends pass, each mistake that only they show is not."""

import dataclasses

import numpy as np
import pytest

from rocattn.backends import BACKENDS
from rocattn.backends.cpu import CpuBackend
from rocattn_profiling.verify.cases import cases
from rocattn_profiling.verify.run import verify


def chosen(family):
    """The quick cases of a family."""
    return [case for case in cases("quick") if case.family == family]


class Mistaken(CpuBackend):
    """Right but for the sequences that it takes."""

    name = "mistaken"

    def __init__(self, change):
        self.change = change

    def forward_varlen(self, config, operands, sequences, out, lse):
        """Compute other sequences than those given."""
        super().forward_varlen(config, operands, self.change(sequences), out, lse)


def one_key_less(sequences):
    """The last key of each sequence is forgotten."""
    return dataclasses.replace(sequences, seqlens_k=np.maximum(sequences.seqlens_k - 1, 0))


def one_key_more(sequences):
    """A row behind the last key is read."""
    return dataclasses.replace(sequences, seqlens_k=sequences.seqlens_k + (sequences.seqlens_k > 0))


def pages_in_order(sequences):
    """A sequence's pages are taken to follow its first one."""
    table = sequences.block_table
    ordered = (table[:, :1] + np.arange(table.shape[1])) % (table.max() + 1)
    return dataclasses.replace(sequences, block_table=ordered.astype(np.int32))


def keys_of_the_next(sequences):
    """Each sequence but the last reads the keys behind its own."""
    starts = np.minimum(sequences.cu_seqlens_k + 1, sequences.cu_seqlens_k[-1])
    return dataclasses.replace(sequences, cu_seqlens_k=starts.astype(np.int32))


@pytest.mark.parametrize("family", ["varlen", "paged"])
@pytest.mark.parametrize("name", ["cpu", "cpu-flash"])
def test_right_backends_pass(family, name):
    """Every case is computed, none is skipped, none is wrong."""
    backend = BACKENDS.get(name)
    if not (answer := backend.available()):
        pytest.skip(answer.reason)
    outcomes = verify(chosen(family), [backend]).outcomes
    assert [outcome.fault for outcome in outcomes if not outcome.ok or not outcome.ran] == []
    assert len(outcomes) == len(chosen(family)) > 0


@pytest.mark.parametrize(
    ("family", "change"),
    [("paged", one_key_less), ("paged", one_key_more), ("paged", pages_in_order), ("varlen", keys_of_the_next)],
)
def test_a_mistake_is_found(family, change):
    """In one of the quick cases at least: not all have several pages a sequence, or judge the output."""
    outcomes = verify(chosen(family), [Mistaken(change)]).outcomes
    assert all(outcome.ran for outcome in outcomes)
    assert not all(outcome.ok for outcome in outcomes)
