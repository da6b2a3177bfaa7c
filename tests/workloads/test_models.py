"""A model's attention layers from GGUF metadata, and what the bench and the report make of them."""

import contextlib
import json
import struct
import time
from collections import Counter

import pytest
from gguf import GGUFEndian, GGUFWriter
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.bench import report as bench_report
from rocattn_profiling.bench import session as harness
from rocattn_profiling.bench.model import DISCLAIMER, passes
from rocattn_profiling.cli import main
from rocattn_profiling.measure.records import read_records
from rocattn_profiling.report import command as report_command
from rocattn_profiling.workloads.models import LLAMA_CPP, Layer, model_of, read_model

from ..bench.made_records import CEILINGS, CONFIG, make_record, make_sides
from ..screens import line
from .model_families import FAMILIES, family

PATTERN = "attention__sliding_window_pattern"
SLIDES = {"attention__sliding_window": 8}
SIZES = {"block_count": 4, "context_length": 4096, "embedding_length": 96, "attention.head_count": 6}


def metadata(architecture, **changes):
    """Return keys as a file holds them; ``attention__x`` is ``attention.x``, None leaves a key out."""
    values = SIZES | {key.replace("__", "."): value for key, value in changes.items()}
    found = {f"{architecture}.{key}": value for key, value in values.items() if value is not None}
    return {"general.architecture": architecture} | found


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a GGUF file of metadata only and gives its path."""

    def writer(architecture, name="Tiny 1B", **changes):
        path = tmp_path / f"{architecture}.gguf"
        file = GGUFWriter(path, architecture)
        if name:
            file.add_name(name)
        file.add_array("tokenizer.ggml.tokens", ["a", "b"])
        for key, value in list(metadata(architecture, **changes).items())[1:]:
            add = {bool: file.add_bool, int: file.add_uint32, float: file.add_float32, list: file.add_array}
            add[type(value)](key, value)
        file.write_header_to_file()
        file.write_kv_data_to_file()
        file.close()
        return path

    return writer


def test_a_llama_file_gives_its_layers(write):
    """Head dimension from the embedding, KV heads as many as query heads unless said."""
    model = read_model(write("llama"))
    assert (model.name, model.architecture, model.context_length) == ("Tiny 1B", "llama", 4096)
    assert model.layers == (Layer(6, 6, 16, 16),) * 4
    assert model.softcap is None
    assert model.notes == ()
    assert read_model(write("qwen3", name="", attention__head_count_kv=2, attention__key_length=40)).layers[0] == Layer(
        6, 2, 40, 16
    )
    (config,) = model.configs(9, 9)
    assert (config.causal, config.seq_q, config.seq_k, config.window) == (True, 9, 9, None)
    (step,) = model.configs(1, 9)
    assert (step.causal, step.seq_q, step.seq_k) == (False, 1, 9)


def test_a_gemma2_file_gives_windows_and_softcaps(write):
    """Every other layer slides, from the first; a window longer than the tokens is none."""
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    model = read_model(write("gemma2", attention__sliding_window=8, **caps))
    assert [layer.window for layer in model.layers] == [8, 0, 8, 0]
    assert (model.softcap, model.final_softcap) == (50.0, 30.0)
    assert {(config.window, count) for config, count in model.configs(9, 9).items()} == {((7, -1), 2), (None, 2)}
    assert list(model.configs(8, 8).values()) == [4]
    assert next(iter(model.configs(8, 8))).softcap == 50.0


@pytest.mark.parametrize(
    ("architecture", "keys", "windows"),
    [
        ("gemma3", {}, [8, 8, 8, 8]),
        ("gemma3", {"block_count": 7}, [8, 8, 8, 8, 8, 0, 8]),
        ("cohere2", {}, [8, 8, 8, 0]),
        ("smallthinker", {}, [0, 4096, 4096, 4096]),
        ("modern-bert", {}, [0, 8, 8, 0]),
        ("modern-bert", {"attention__sliding_window_pattern": 2}, [0, 8, 0, 8]),
        ("gpt-oss", {}, [8, 0, 8, 0]),
        ("gpt-oss", {"attention__sliding_window_pattern": 4}, [8, 8, 8, 0]),
        ("olmo2", {"attention__sliding_window_pattern": [True, False, False, True]}, [8, 0, 0, 8]),
        ("olmo2", {"attention__sliding_window_pattern": [True, False]}, [8, 0, 0, 0]),
        ("exaone4", {}, [0, 0, 0, 0]),
        ("lfm2", {"attention__head_count_kv": [0, 2, 0, 2]}, [8, 8]),
        ("cohere2moe", {"nextn_predict_layers": 1}, [0, 8, 8]),
        ("phi3", {}, [0, 0, 0, 0]),
        ("llama", {}, [0, 0, 0, 0]),
        ("llama", {"attention__sliding_window": 0}, [0, 0, 0, 0]),
        ("mistral", {"attention__sliding_window": 0}, [0, 0, 0, 0]),
    ],
)
def test_which_layers_slide(architecture, keys, windows):
    """The file's pattern, else the architecture's; a key that llama.cpp does not read is noted."""
    keys = {"attention__sliding_window": 8} | keys
    model = model_of(metadata(architecture, **keys), "m")
    assert [layer.window for layer in model.layers] == windows
    noted = any("is not used: llama.cpp runs" in note for note in model.notes)
    assert noted == (architecture in {"phi3", "llama"} and keys["attention__sliding_window"] > 0)
    assert any("does not know" in note for note in model.notes) == (architecture == "mistral")


@pytest.mark.parametrize("name", FAMILIES)
def test_public_models_have_the_layers_that_llama_cpp_runs(name):
    """Sizes of real files; what each should give was read in llama.cpp's loaders, not in the table."""
    keys, expected = family(name)
    layers = Counter(model_of(keys, name).layers)
    assert layers == expected


@pytest.mark.parametrize(
    ("architecture", "changes", "told"),
    [
        # A guess would be off by as much as the window saves: by name, with the date of the table.
        ("mistral", SLIDES, r"'mistral' is not in this version's table \(llama.cpp of 20..-..-..\): it has a window"),
        ("step35", SLIDES, "the key step35.attention.sliding_window_pattern is missing"),
        ("step35", SLIDES | {PATTERN: 4}, "sliding_window_pattern is 4, not a list of its blocks"),
        ("gemma3", SLIDES | {PATTERN: []}, "pattern is empty"),
        ("qwen35", {"attention__recurrent_layers": [1]}, "recurrent_layers has 1 values, but there are 4 blocks"),
        ("glm4moe", {"nextn_predict_layers": 5}, "nextn_predict_layers is 5, not a whole number from 0 to 4"),
        # Cross attention and learned biases would be measured as a causal decoder without them.
        ("eagle3", SLIDES, "'eagle3' is not measured: it is a layer that drafts tokens for another model"),
        ("t5", {}, "m: 't5' is not measured: it is an encoder and a decoder that attends to it, both with learned bi"),
        ("t5encoder", {}, "'t5encoder' is not measured: it is an encoder with learned biases on its scores"),
        ("clip", {}, r"'clip' is not measured: .* \(mmproj\); name the file of its language model"),
        ("whisper", {"block_count": None, "encoder__block_count": 4}, "the key whisper.block_count is missing, and"),
        ("llama", {"block_count": None}, "the key llama.block_count is missing"),
        ("llama", {"context_length": None}, "the key llama.context_length is missing"),
        ("llama", {"attention__head_count": None}, "the key llama.attention.head_count is missing"),
        ("llama", {"embedding_length": None}, "the key llama.attention.key_length or llama.embedding_length is miss"),
        ("llama", {"attention__head_count_kv": [1, 2]}, "llama.attention.head_count_kv has 2 values, but there are 4"),
        ("llama", {"attention__head_count_kv": 4}, "6 heads, which 4 KV heads cannot share"),
        ("llama", {"attention__sliding_window": [8, 0, 8, 0]}, r"sliding_window is \[8, 0, 8, 0\], not a whole number"),
        ("llama", {"attention__key_length": [16] * 90}, r"key_length is \[16, 16, .*…, not a whole number"),
        ("llama", {"attention__key_length": 0}, "block 0 has heads of 0 elements by its key_length"),
        ("llama", {"embedding_length": 3}, "block 0 has heads of 0 elements by its key_length"),
        ("llama", {"attention__head_count": -2}, "attention.head_count is -2, not a whole number from 0"),
        ("llama", {"attention__head_count": [6, 6, "six", 6]}, "attention.head_count is 'six', not a whole number"),
        ("llama", {"block_count": "four"}, "block_count is 'four', not a whole number"),
        ("llama", {"block_count": 1 << 32}, "block_count is 4294967296, not a whole number from 0 to 65536"),
        ("granite", {"attention__scale": float("inf")}, "attention.scale is inf, not a finite number"),
        ("gemma2", {"attn_logit_softcapping": -5.0}, "attn_logit_softcapping is -5.0, not a finite number, 0 or more"),
        ("mamba", {"attention__head_count": 0}, "'mamba' has no layer of softmax attention"),
    ],
)
def test_a_model_that_cannot_be_measured_is_one_line(architecture, changes, told):
    """It names the key, or the kind."""
    with pytest.raises(RocattnError, match=told):
        model_of(metadata(architecture, **changes), "m")


def test_the_table_speaks_of_architectures_that_are_known():
    """A name that is spelt otherwise than llama.cpp spells it would never be found."""
    lists = (LLAMA_CPP.not_causal, LLAMA_CPP.alibi, LLAMA_CPP.alibi_by_key, LLAMA_CPP.indexed, LLAMA_CPP.recurrent,
             LLAMA_CPP.scaled, LLAMA_CPP.looped)  # fmt: skip
    tables = (LLAMA_CPP.windows, LLAMA_CPP.full_attention_interval, LLAMA_CPP.softcaps, LLAMA_CPP.scales,
              LLAMA_CPP.sinks, LLAMA_CPP.not_measured)  # fmt: skip
    assert not {name for names in (*lists, *tables) for name in names} - LLAMA_CPP.names


def test_options_of_other_architectures():
    """Sinks, ALiBi, scale, encoders with symmetric windows, other dimensions in sliding layers."""
    assert all(layer.sinks for layer in model_of(metadata("gpt-oss"), "m").layers)
    assert model_of(metadata("mpt", attention__max_alibi_bias=8.0), "m").alibi
    assert model_of(metadata("bloom"), "m").alibi
    assert not model_of(metadata("falcon"), "m").alibi
    assert model_of(metadata("granite", attention__scale=0.125), "m").scale == 0.125
    assert model_of(metadata("grok"), "m").softcap == 30.0
    encoder = model_of(metadata("modern-bert", attention__causal=False, attention__sliding_window=6), "m")
    assert {config.window: count for config, count in encoder.configs(9, 9).items()} == {None: 2, (3, 3): 2}
    assert model_of(metadata("jina-bert-v2"), "m").alibi
    assert [model_of(metadata("baichuan", block_count=n), "m").alibi for n in (32, 40)] == [False, True]
    assert model_of(metadata("llama4"), "m").notes == (
        "layers that see chunks of 8192 tokens in llama.cpp see everything before them here",
    )
    assert model_of(metadata("llama4", attention__sliding_window=0), "m").notes == ()
    keys = {"attention__key_length": 32, "attention__value_length": 24, "attention__key_length_swa": 8}
    pattern = {"attention__sliding_window": 4, "attention__sliding_window_pattern": [True, False, True, False]}
    assert model_of(metadata("gemma4", **keys, **pattern), "m").layers[:2] == (
        Layer(6, 6, 8, 24, 4), Layer(6, 6, 32, 24),
    )  # fmt: skip


@pytest.mark.parametrize("architecture", ["bert", "nomic-bert", "gemma-embedding", "llada", "rnd1"])
def test_an_encoder_is_not_causal_even_if_unstated(architecture):
    """llama.cpp runs these without a KV cache; EmbeddingGemma's files have no key for it."""
    model = model_of(metadata(architecture, block_count=6, attention__sliding_window=4), "m")
    assert not model.causal
    assert not any(config.causal for config in model.configs(9, 9))
    if architecture == "gemma-embedding":
        assert {config.window: count for config, count in model.configs(9, 9).items()} == {(2, 2): 5, None: 1}


def test_an_encoder_is_measured_in_whole_passes_alone(write, monkeypatch, tmp_path, capsys):
    """A model without a cache has no decode steps."""
    monkeypatch.setattr(harness, "measure_side_by_side", make_sides)
    monkeypatch.setattr(harness.limits, "measure_ceilings", lambda *_, **__: CEILINGS)
    path = write("bert", attention__causal=False)
    assert main(["bench", "--model", str(path), "--prompts", "7", "--no-store", "--out", str(tmp_path / "out")]) == 0
    assert "not causal" in capsys.readouterr().err
    records = read_records(tmp_path / "out" / "records.jsonl")
    assert {(one.config["seq_q"], one.config["seq_k"], one.config["causal"]) for one in records} == {(7, 7, False)}


def test_blocks_without_attention_are_left_out():
    """Hybrids: no KV heads in a block, or full attention in every n-th only."""
    mixed = model_of(metadata("jamba", attention__head_count_kv=[0, 2, 0, 3]), "m")
    assert [layer.num_kv_heads for layer in mixed.layers] == [2, 3]
    assert mixed.notes == ("2 of 4 blocks have no softmax attention: they are left out",)
    assert len(model_of(metadata("qwen3next", full_attention_interval=4), "m").layers) == 1


def test_a_file_that_is_no_gguf_is_one_clear_line(write, tmp_path, capsys):
    """Missing, empty, cut off, of another kind, or a later part of a split model: status 4."""
    whole = write("llama").read_bytes()
    for name, content, told in (
        ("missing", None, "cannot read"), ("empty", b"", "not a whole GGUF file"),
        ("cut", whole[:90], "not a whole GGUF file"), ("text", b"hello, world\n" * 9, "not a whole GGUF file"),
    ):  # fmt: skip
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        assert main(["bench", "--model", str(path), "--out", str(tmp_path / "out")]) == 4, name
        error = capsys.readouterr().err
        assert told in error, name
        assert len(error.splitlines()) == 2, error  # what is read, and what is wrong
    with pytest.raises(RocattnError, match=r"general.architecture is missing \(of a model in several files"):
        model_of({"split.no": 1}, "m")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--prompts", "9"], "--prompts needs a model: name its file with --model"),
        (["--model", "x.gguf", "--grid", "square"], "--grid: not allowed with argument --model"),
        (["--model", "x.gguf", "--head-dim", "9"], "--head-dim cannot be used with --model"),
        (["--model", "x.gguf", "--direction", "backward"], "forward only"),
    ],
)
def test_options_that_do_not_fit_a_model_are_refused(words, told, tmp_path, capsys):
    """Nothing is ignored: one line, status 4."""
    with contextlib.suppress(SystemExit):  # of the parser, whose statuses are in test_exit_status
        assert main(["bench", *words, "--out", str(tmp_path)]) == 4
    assert told in capsys.readouterr().err


def test_counts_larger_than_the_file_are_refused_at_once(write, tmp_path):
    """Forty-nine bytes that speak of 2^40 elements, keys or letters make nobody wait, nor take memory."""
    head = b"GGUF" + struct.pack("<IQ", 3, 0)
    key = struct.pack("<Q", 1) + b"k"
    for name, rest in {
        "array": struct.pack("<Q", 1) + key + struct.pack("<IIQ", 9, 4, 1 << 40),
        "texts": struct.pack("<Q", 1) + key + struct.pack("<IIQ", 9, 8, 1 << 40),
        "keys": struct.pack("<Q", 1 << 40),
        "text": struct.pack("<QQ", 1, 1 << 63),
    }.items():
        path = tmp_path / name
        path.write_bytes(head + rest + b"\0" * 8)
        with pytest.raises(RocattnError, match="entries follow at byte"):
            read_model(path)
    for rest, told in (
        (key + struct.pack("<II", 77, 0), "a value has the unknown type 77"),
        (key + struct.pack("<IIQ", 9, 9, 1), "k is an array of the unknown type 9"),
        (key + struct.pack("<IB", 5, 0), "it ends within its metadata"),
    ):
        path.write_bytes(head + struct.pack("<Q", 1) + rest)
        with pytest.raises(RocattnError, match=told):
            read_model(path)
    whole = bytearray(write("llama").read_bytes())
    whole[4] = 9
    path.write_bytes(whole)
    with pytest.raises(RocattnError, match="its version is 9, but only 2 and 3 can be read"):
        read_model(path)


def _gguf(path, *entries):
    """Write a file of these keys, each with the bytes of its type and value."""
    texts = [struct.pack("<Q", len(key)) + key + value for key, value in entries]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(texts)) + b"".join(texts))
    return path


def test_tables_and_long_texts_cost_little(tmp_path):
    """Four million tokens, megabytes of text and of numbers: what no model needs is passed over, cut or refused."""
    begun = time.process_time()
    tokens = (b"tokenizer.ggml.tokens", struct.pack("<IIQ", 9, 8, 1 << 22) + bytes(8 << 22))
    texts = [(b"%d" % at, struct.pack("<IQ", 8, 1 << 16) + b"\x1b" * (1 << 16)) for at in range(100)]
    with pytest.raises(RocattnError, match=r"the key general\.architecture is missing"):
        read_model(_gguf(tmp_path / "texts", tokens, *texts))
    numbers = [(b"%d" % at, struct.pack("<IIQ", 9, 0, 1 << 16) + bytes(1 << 16)) for at in range(100)]
    with pytest.raises(RocattnError, match="says that 65536 entries follow"):
        read_model(_gguf(tmp_path / "numbers", *numbers))
    beyond = (b"tokenizer.x", struct.pack("<IIQQ", 9, 8, 1, 1 << 63))
    with pytest.raises(RocattnError, match="a text ends at byte 9223372036854775875, beyond its own end"):
        read_model(_gguf(tmp_path / "beyond", beyond))
    assert time.process_time() - begun < 3


def test_an_architecture_cannot_write_to_the_terminal(write, tmp_path):
    """Text of a stranger's file has no control characters, wherever it is printed."""
    path = tmp_path / "evil"
    path.write_bytes(write("llama").read_bytes().replace(b"llama", b"ll\x1b[2"))
    assert read_model(path).architecture == "ll\ufffd[2"


def test_both_byte_orders_and_tokenizers_are_read(tmp_path):
    """Big-endian files; tables of tokens are passed over whatever they hold."""
    path = tmp_path / "big"
    writer = GGUFWriter(path, "llama", endianess=GGUFEndian.BIG)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc"] * 50)
    writer.add_array("tokenizer.ggml.scores", [1.0] * 100)
    writer.add_block_count(4)
    writer.add_context_length(64)
    writer.add_embedding_length(256)
    writer.add_head_count(8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert [layer.head_dim for layer in read_model(path).layers] == [32] * 4


def test_the_bench_adds_up_the_layers(write, monkeypatch, tmp_path, capsys):
    """One command: passes for prompts and steps, records that the report reads, charts, the command to repeat it."""
    monkeypatch.setattr(harness, "measure_side_by_side", make_sides)
    monkeypatch.setattr(harness.limits, "measure_ceilings", lambda *_, **__: CEILINGS)
    path = write("gemma2", attention__sliding_window=8)
    words = ["--model", str(path), "--prompts", "7", "30", "5000", "--no-store", "--threads", "2"]
    assert main(["bench", *words, "--json", "--out", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert line(captured.err, "longer than") == snapshot(
        "prompts of 5000 tokens are longer than the model's context of 4096: left out"
    )
    assert DISCLAIMER in captured.err
    found = json.loads(captured.out)["model"]["passes"]
    assert {(one["step"], one["length"], one["backend"]) for one in found} == {
        (step, length, name) for step in (False, True) for length in (7, 30) for name in ("cpu", "cpu-flash")
    }
    for one in found:  # every layer takes 1.05 ms here: two samples of 1 and 1.1
        assert one["layers"] == 4
        assert one["p50_ns"] == pytest.approx(4 * 1.05e6)
        assert one["tokens_per_s"] == pytest.approx((1 if one["step"] else one["length"]) / 4.2e-3)
    report = bench_report.build(read_records(tmp_path / "out" / "records.jsonl"))
    (group,) = report.groups
    assert [chart.title for chart in group.model.charts] == ["Time to first token", "Decoding, tokens/s"]
    assert report.command.startswith(f"rocattn bench --model {path} --prompts 7 30 --backend cpu cpu-flash")
    page = report_command.report_html(report, 0)
    assert DISCLAIMER.capitalize() in page
    assert all(chart.title in page for chart in group.model.charts)
    assert "| 7 | 4.20 ms |" in report_command.report_markdown(report)


def test_a_pass_with_a_layer_that_was_not_measured_is_left_out():
    """A sum without it would be too small; the other backend's is still there."""
    sliding, full = (CONFIG.replace(seq_q=9, seq_k=9, window=window) for window in ((3, -1), None))
    records = [
        make_record([[t]], suite="model-x", backend=name, config=config, layers=count)
        for name, config, count, t in (("cpu", sliding, 3, 1e6), ("cpu", full, 1, 2e6), ("b", sliding, 3, 1e6))
    ]
    records.append(
        make_record(
            [], suite="model-x", backend="b", config=full, layers=1, status="skipped", skipped="needs 9 GB", check=None
        )
    )
    (one,) = passes(records)
    assert (one.backend, one.length, one.step, one.p50_ns) == ("cpu", 9, False, 5e6)
    assert one.tokens_per_s == pytest.approx(9 / 5e-3)
    assert passes([make_record([[1e6]])]) == []
