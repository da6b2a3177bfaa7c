"""Each reader of foreign files, with whole files of its formats: what it makes of a file is a value or one line."""

import json
import zlib
from functools import partial

import msgspec
import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Outcome
from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.base.journal import append_entry
from rocattn_profiling.gate import noise_record, verdict
from rocattn_profiling.gate.foreign.readers import read_results
from rocattn_profiling.gate.formats import card, junit, markdown, page, sarif, untrusted
from rocattn_profiling.gate.model import BenchmarkHistory, BenchmarkKey, PastSession
from rocattn_profiling.gate.session.store import LaunchLine, LaunchStore
from rocattn_profiling.kernels.foreign import LaunchConfig, NoDeviceCodeError, facts_of_part, parts_of_file
from rocattn_profiling.measure.machine import this_machine
from rocattn_profiling.measure.records import Launch, append_record, read_records
from rocattn_profiling.profile import ingest
from rocattn_profiling.workloads.models import read_model

from ..asv import test_store as stores
from ..bench.made_records import make_record
from ..gate.conftest import make_entry, result_of
from ..gate.foreign.test_readers import CASES
from ..kernels import code_files
from ..profile.ingest import generators as new
from ..profile.ingest import older_generators as old
from ..profile.ingest import sample_generators as samples
from ..profile.ingest import test_kineto as kineto
from ..workloads.test_models import metadata


def one_line(text):
    """Hold a line to being one, for people."""
    assert text, "an empty line"
    assert len(text.splitlines()) == 1, repr(text[:400])
    assert "report this file" not in text, text
    assert len(text) < 2000, f"a line of {len(text)}"


def _refused(call, *errors):
    try:
        call()
    except (RocattnError, *errors) as error:
        one_line(str(error))


def _profile(path, data):
    path.write_bytes(data)
    problems = []

    def read():
        found = ingest.read([path])
        problems.extend(map(str, found.problems))
        ingest.describe([path])

    _refused(read)
    for problem in problems:
        one_line(problem)


def _profiles(*writers):
    """Return what makes a reader of a profiler's files: ``writers`` write one each."""

    def make(folder):
        files = []
        for number, (name, write) in enumerate(writers):
            path = folder / f"{number}" / name
            path.parent.mkdir()
            files.append((write(path) or path).read_bytes())
        target = folder / "damaged" / writers[0][0]
        target.parent.mkdir()
        return files, partial(_profile, target)

    return make


MADE = new.launches(3)
_CSV = _profiles(
    ("a_counter_collection.csv", lambda path: new.v3_counters(path, MADE)),
    ("a_kernel_trace.csv", lambda path: new.v3_trace(path, MADE)),
    ("a_agent_info.csv", new.v3_agents),
    ("a_kernel_stats.csv", lambda path: new.v3_stats(path, MADE)),
    ("results.csv", lambda path: old.v1(path, MADE)),
    ("results.csv", lambda path: old.v2(path, MADE)),
    ("pmc_perf.csv", lambda path: old.merged(path, MADE, [("SQ_WAVES",), ("GRBM_GUI_ACTIVE", "TCC_HIT_sum")])),
    ("a.csv", lambda path: old.compute_long(path, MADE)),
    ("a_pc_sampling_stochastic.csv", samples.csv),
    ("a_pc_sampling_host_trap.csv", lambda path: samples.csv(path, stochastic=False)),
    ("stats.csv", lambda path: samples.stats_csv(path.parent)),
)
_JSON = _profiles(
    ("a_results.json", lambda path: new.v3_json(path, MADE)),
    ("a_results.json", lambda path: samples.v3_json(path, made=MADE)),
    ("results.json", lambda path: old.chrome(path, MADE)),
    ("code.json", lambda path: samples.code_json(path.parent)),
    ("k.pt.trace.json", lambda path: kineto.trace(path, [kineto.CPU, *kineto.launch(0), *kineto.launch(1)])),
)
_ROCPD = _profiles(
    ("a.db", lambda path: new.rocpd(path, MADE)),
    ("a.db", lambda path: new.rocpd(path, MADE, schema=4)),
    ("a.db", lambda path: samples.rocpd(path, MADE)),
)


def _read_code(path, data):
    path.write_bytes(data)
    try:
        parts, problems = parts_of_file(path, LaunchConfig())
    except NoDeviceCodeError as error:
        one_line(str(error))
        return
    for part in parts:
        problems += facts_of_part(part)[1]
    for problem in problems:
        one_line(str(problem))


def _code(kinds):
    def make(folder):
        compiler = code_files.pinned()
        made = {}
        for target in ("gfx90a", "gfx1100"):
            made[target], made["text"] = code_files.compile_text(compiler.argv, compiler.linker, folder, target)
        made["text"] = made["text"].encode()
        fat = code_files.bundle({f"hip-amdgcn-amd-amdhsa--{t}": made[t] for t in ("gfx90a", "gfx1100")}, align=64)
        made |= {
            "bundle": fat, "compressed": code_files.compressed(fat, 2),
            "stored": code_files.compressed(fat, 3, content=zlib.compress(fat, level=0)),
            "host": code_files.host_object(folder, fat),
            "archive": code_files.archive({"a.o": code_files.host_object(folder, fat), "b.hsaco": made["gfx90a"]}),
        }  # fmt: skip
        path = folder / ("damaged.s" if kinds == ("text",) else "damaged.hsaco")
        return [made[kind] for kind in kinds], partial(_read_code, path)

    return make


def _gguf(folder):
    gguf = pytest.importorskip("gguf")
    files = []
    for architecture in ("llama", "gemma2", "gpt-oss"):
        path = folder / f"{architecture}.gguf"
        file = gguf.GGUFWriter(path, architecture)
        file.add_array("tokenizer.ggml.tokens", ["a", "b"])
        for key, value in list(metadata(architecture, attention__sliding_window=128).items())[1:]:
            file.add_uint32(key, value)
        file.add_array(f"{architecture}.attention.head_count_kv", [2, 2, 1, 2])
        file.write_header_to_file()
        file.write_kv_data_to_file()
        file.close()
        files.append(path.read_bytes())
    path = folder / "damaged.gguf"

    def read(data):
        path.write_bytes(data)
        _refused(lambda: [*read_model(path).configs(4, 4)])

    return files, read


def _records(folder):
    path, damaged = folder / "records.jsonl", folder / "damaged.jsonl"
    for backend in ("cpu", "cpu-flash"):
        append_record(path, make_record([[1e6, 2e6]], backend=backend))

    def read(data):
        damaged.write_bytes(data)
        _refused(lambda: list(read_records(damaged)))

    return [path.read_bytes()], read


def _launches(folder):
    outcome = Outcome(
        status="ok", canary_ns=2.0, canary_of="3", launch=Launch(start_ns=1, pos=0, number=3, samples_ns=[1.0, 2.0])
    )
    store, damaged = LaunchStore(folder / "launches.jsonl", "k"), folder / "damaged-k.jsonl"
    for round_ in range(3):
        append_entry(store.path, LaunchLine(kind="launch", label="a", round=round_, outcome=outcome))

    def read(data):
        damaged.write_bytes(data)
        _refused(lambda: LaunchStore(folder / "damaged.jsonl", "k"))

    return [store.path.read_bytes()], read


def _verdicts(folder):
    entries = [
        make_entry("b.C.time_slow", "regression", 1.31, reason="x\ny", traceback="t"),
        make_entry("b.C.time_open", "inconclusive", 1.04), make_entry("b.C.time_fine", "pass"),
        make_entry("b.C.time_lost", "failed", reason="r"),
    ]  # fmt: skip
    good, path = verdict.to_json(result_of.__wrapped__()(entries)).encode(), folder / "verdict.json"

    def read(data):
        path.write_bytes(data)
        _refused(lambda: markdown.comment(untrusted.read(path)))

        def forms():
            result = verdict.read(path)
            card.text(result)
            for form in (markdown.comment, markdown.summary, page.html, sarif.to_sarif, junit.to_xml):
                form(result)

        _refused(forms)

    return [good], read


def _results(folder):
    path = folder / "results"

    def read(data):
        path.write_bytes(data)
        _refused(lambda: read_results(path))

    texts = [content if isinstance(content, str) else json.dumps(content) for content, *_ in CASES.values()]
    return [text.encode() for text in texts], read


def _noise(folder):
    path, machine = folder / "noise.json", this_machine()
    past = PastSession(start_us=1.0, samples=3, wall=[1.0, 2.0, 3.0], cpu=[1.0, 2.0, 3.0])
    key = BenchmarkKey(label="a", version="1", python="3.11", sample_ns=1, budget_ns=2)
    history = [BenchmarkHistory(key=key, sessions=[past])]
    record = noise_record.NoiseRecord(machine=noise_record.recorded_machine(machine), benchmarks=history)

    def read(data):
        path.write_bytes(data)
        told = noise_record.known(path, machine, [key]).source.why_not
        if told:
            one_line(told)

    return [msgspec.json.encode(record)], read


def _asv(folder):
    store = AsvStore(folder / "whole")
    stores.add(store, {(0, 0): [1.0, 1.5], (1, 1): 2.0, (0, 1): None})
    (path,) = store.result_files()
    data, where = path.read_bytes(), path.relative_to(folder / "whole")
    damaged = AsvStore(folder / "damaged")
    stores.add(damaged, {(0, 0): [1.0, 1.5], (1, 1): 2.0, (0, 1): None})

    def read(data):
        (folder / "damaged" / where).write_bytes(data)
        _refused(lambda: list(damaged.read(on_problem=one_line)))

    return [data], read


READERS = {
    "code objects": _code(("gfx90a", "gfx1100")),
    "bundles": _code(("bundle", "compressed", "stored", "host", "archive")),
    "assembly": _code(("text",)),
    "csv": _CSV,
    "json": _JSON,
    "rocpd": _ROCPD,
    "gguf": _gguf,
    "records": _records,
    "launches": _launches,
    "verdicts": _verdicts,
    "results": _results,
    "noise": _noise,
    "asv": _asv,
}
