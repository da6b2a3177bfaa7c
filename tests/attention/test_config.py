"""AttentionConfig: exact work, refused contradictions, round trips."""

import itertools

import pytest

from rocattn import AttentionConfig, ConfigError


def make(**changes):
    """A small problem with some fields changed."""
    return AttentionConfig(**({"batch": 2, "num_heads": 6, "num_kv_heads": 3, "seq_q": 5, "seq_k": 7} | changes))


def visible(seq_q, seq_k, causal, window):
    """What each query of a head sees, from the words of the contract."""
    left, right = window or (-1, -1)
    seen = [[True] * seq_k for _ in range(seq_q)]
    for i, j in itertools.product(range(seq_q), range(seq_k)):
        diagonal = i + seq_k - seq_q
        hidden = (
            (causal and j > diagonal) or (left >= 0 and j < diagonal - left) or (right >= 0 and j > diagonal + right)
        )
        seen[i][j] = not hidden
    return seen


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, (-1, -1), (0, 0), (3, 0), (0, 2), (2, 5), (-1, 1), (4, -1), (30, 30)])
def test_flops_count_exactly_the_visible_pairs(causal, window):
    """2 (D + Dv) a visible pair forward, 2 (3 D + 2 Dv) backward, for every relation of Sq and Sk."""
    for seq_q, seq_k in itertools.product([0, 1, 4, 9], [0, 1, 6, 13]):
        config = make(seq_q=seq_q, seq_k=seq_k, head_dim=8, head_dim_v=5, causal=causal, window=window)
        pairs = 12 * sum(map(sum, visible(seq_q, seq_k, causal, window)))
        assert config.visible_pairs == pairs
        assert config.flops == pairs * 2 * (8 + 5)
        assert config.replace(direction="backward").flops == pairs * 2 * (3 * 8 + 2 * 5)


def test_the_conventional_flops_are_those_of_papers():
    """4 B H Sq Sk D, half if square and causal, 2.5 times backward; a window's are exact."""
    config = make(seq_q=64, seq_k=64, head_dim=16)
    assert config.flops_conventional == config.flops == 4 * 2 * 6 * 64 * 64 * 16
    assert config.replace(causal=True).flops_conventional == config.flops // 2
    assert config.replace(direction="backward").flops_conventional == config.flops * 5 // 2
    longer = make(seq_q=128, seq_k=16384, head_dim=16)
    assert longer.replace(causal=True).flops_conventional == longer.flops * (16384 + 16256) // (2 * 16384)
    sliding = make(seq_q=1, seq_k=16384, head_dim=16, window=(127, -1))
    assert sliding.flops_conventional == sliding.flops
    wide = make(seq_q=9, seq_k=5, head_dim=8)
    assert wide.replace(causal=True).flops_conventional == wide.flops // 2


def test_bytes_are_what_must_move():
    """Q, K, V and O, the LSE and the mask where present; KV heads are counted once a group."""
    config = make(head_dim=8, head_dim_v=4, dtype="float16")
    q, kv, out, lse = 2 * 6 * 5 * 8 * 2, 2 * 3 * 7 * (8 + 4) * 2, 2 * 6 * 5 * 4 * 2, 2 * 6 * 5 * 4
    assert config.bytes_moved == q + kv + out
    assert config.replace(return_lse=True).bytes_moved == q + kv + out + lse
    masked = config.replace(mask="bool", mask_shape=(1, 6, 1, 7))
    assert masked.bytes_moved == q + kv + out + 6 * 7
    assert masked.replace(mask="additive").bytes_moved == q + kv + out + 6 * 7 * 2
    assert config.replace(direction="backward").bytes_moved == (q + kv + out) + lse + out + q + kv


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, (0, 0), (3, 0), (0, 2), (-1, 1), (2, -1), (30, 30)])
def test_rows_that_nobody_sees_are_not_read(causal, window):
    """A window leaves keys out, and more causal queries than keys leave queries out; gradients are written whole."""
    for seq_q, seq_k in itertools.product([1, 4, 9], [1, 6, 13]):
        config = make(seq_q=seq_q, seq_k=seq_k, head_dim=8, head_dim_v=5, causal=causal, window=window)
        rows = visible(seq_q, seq_k, causal, window)
        queries, keys = sum(map(any, rows)), sum(map(any, zip(*rows, strict=True)))
        assert config.visible_rows == (queries, keys)
        q, kv, out = 2 * 6 * queries * 8 * 4, 2 * 3 * keys * 13 * 4, 2 * 6 * 5 * 4
        assert config.bytes_moved == q + kv + out * seq_q
        whole = config.q_bytes + config.kv_bytes
        assert config.replace(direction="backward").bytes_moved == q + kv + (2 * out + 48) * queries + whole
        masked = config.replace(mask="bool", mask_shape=(1, 1, seq_q, seq_k)) if seq_q > 1 and seq_k > 1 else None
        assert masked is None or masked.bytes_moved == config.bytes_moved + sum(map(sum, rows))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seq_q": -1}, "seq_q is -1"),
        ({"head_dim": 2.0}, "head_dim is 2.0"),
        ({"num_kv_heads": 4}, "must be a multiple"),
        ({"dtype": "int8"}, "dtype 'int8' is not supported"),
        ({"layout": "SBHD"}, "layout 'SBHD' is not supported"),
        ({"num_heads": 0, "num_kv_heads": 0}, "0 query heads cannot share 0 KV heads"),
        ({"window": (1, -2)}, "must be (left, right)"),
        ({"window": (1, 2, 3)}, "must be (left, right)"),
        ({"window": (1.5, 2)}, "window (1.5, 2) must be (left, right), each 0 or more, or -1 for open; whole"),
        ({"window": (True, 2)}, "window (True, 2) must be (left, right), each 0 or more, or -1 for open; whole"),
        ({"window": ("1", 2)}, "window ('1', 2) must be (left, right), each 0 or more, or -1 for open; whole"),
        ({"window": 5}, "window 5 must be (left, right), each 0 or more, or -1 for open; whole"),
        ({"mask": "bool", "mask_shape": (1, 6.0, 5, 7)}, "does not broadcast"),
        ({"mask": "bool", "mask_shape": 1}, "does not broadcast"),
        ({"softcap": 9e-31}, "from 1e-30 to 1e+30"),
        ({"softcap": 2e30}, "from 1e-30 to 1e+30"),
        ({"scale": -2e30}, "from -1e+30 to 1e+30"),
        ({"softcap": 0.0}, "softcap is 0.0"),
        ({"mask": "bool"}, "contradict each other"),
        ({"mask": "bool", "mask_shape": (2, 6, 5, 8)}, "does not broadcast"),
        ({"direction": "sideways"}, "direction 'sideways'"),
    ],
)
def test_contradictions_are_refused_in_words(changes, said):
    """A config that describes no problem is never made."""
    with pytest.raises(ConfigError) as caught:
        make(**({"head_dim": 8} | changes))
    assert said in str(caught.value)


def test_bounds_are_inside_and_omitted_sizes_have_defaults():
    """The bounds themselves are inside; KV heads are the query heads, V's head dimension is D."""
    config = AttentionConfig(batch=1, num_heads=6, seq_q=5, seq_k=7, head_dim=8, softcap=1e30, scale=-1e30)
    assert (config.num_kv_heads, config.head_dim_v) == (6, 8)
    assert config.replace(softcap=1e-30, scale=1e30).label == "b1-h6-q5-k7-d8-softcap1e-30-scale1e+30-float32"


def test_a_side_too_wide_to_hide_anything_is_open():
    """A window of Sk to the left or Sq to the right sees all of that side; one less may hide a key."""
    config = make(head_dim=8)  # 5 queries, 7 keys
    sides = [(7, 5), (6, 5), (7, 4), (6, 4), (-1, 1 << 60)]
    assert [config.replace(window=each).band for each in sides] == [None, (6, -1), (-1, 4), (6, 4), None]
    assert config.replace(window=(9, 9), causal=True).band == (-1, 0)
    assert config.replace(window=(2, 9), causal=True).band == (2, 0)


def test_a_config_survives_json_and_keeps_its_key():
    """`to_dict` and `from_dict` are each other's inverse; an unknown field is named."""
    config = make(head_dim=8, window=(3, -1), mask="bool", mask_shape=(1, 1, 5, 7), softcap=15.0, causal=True)
    again = AttentionConfig.from_dict(config.to_dict())
    assert again == config
    assert (again.key, again.label) == (config.key, config.label)
    assert config.replace(head_dim=9).key != config.key
    with pytest.raises(ConfigError, match="unknown fields in a config: colour"):
        AttentionConfig.from_dict(config.to_dict() | {"colour": "red"})
