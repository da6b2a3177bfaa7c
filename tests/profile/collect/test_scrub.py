"""No secret in what is stored: environments, command lines, addresses, logs, and values that turn up anywhere."""

import json
import sqlite3
import time
import tracemalloc
from contextlib import closing

import msgspec
import pytest

from rocattn_profiling.profile.collect import scrub

ENVIRONMENT = {
    "HF_TOKEN": "hf_abcdefgh", "AWS_SECRET_ACCESS_KEY": "aws-secret-1", "WANDB_API_KEY": "wandb-key-1",
    "DB_PASSWORD": "hunter22", "GITHUB_PAT": "ghp_12345678", "HOME": "/home/me", "PWD": "/srv/place",
    "ROCM_PATH": "/opt/rocm", "HIP_VISIBLE_DEVICES": "0", "LD_LIBRARY_PATH": "/opt/rocm/lib",
    "ROCPROF_TOKEN": "secret-too", "SHORT_TOKEN": "ab",
}  # fmt: skip
SECRETS = {"hf_abcdefgh", "aws-secret-1", "wandb-key-1", "hunter22", "ghp_12345678", "secret-too"}


def test_secret_variables_are_told_by_their_names():
    """The working directory is none, and a value too short to look for is not looked for."""
    assert set(scrub.secrets_of(ENVIRONMENT)) == SECRETS
    assert scrub.secrets_of({"A_TOKEN": "abcdef", "B_TOKEN": "abcdefgh"}) == ("abcdefgh", "abcdef")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["app", "--token", "s3cr3t", "x"], ["app", "--token", "<scrubbed>", "x"]),
        (["app", "--api-key=s3cr3t"], ["app", "--api-key=<scrubbed>"]),
        (["env", "DB_PASSWORD=pw", "app"], ["env", "DB_PASSWORD=<scrubbed>", "app"]),
        (["app", "--max-tokens", "128", "--seq-k", "4096"], ["app", "--max-tokens", "128", "--seq-k", "4096"]),
        (["app", "--token", "128"], ["app", "--token", "128"]),
        (["app", "--password", "--api-key", "x"], ["app", "--password", "<scrubbed>", "x"]),
        (["pip", "https://me:pw@host/simple"], ["pip", "https://<scrubbed>@host/simple"]),
        (["app", "user@host", "a=b"], ["app", "user@host", "a=b"]),
        (["psql", "postgres://me:p@w@host/d"], ["psql", "postgres://<scrubbed>@host/d"]),
        (["get", "https://host/x?token=s3cr3t&n=1"], ["get", "https://host/x?token=<scrubbed>&n=1"]),
        (["run", "--env=HF_TOKEN=s3cr3t", "app"], ["run", "--env=HF_TOKEN=<scrubbed>", "app"]),
        (["srun", "--export=ALL,A_KEY=s3cr3t,N=1"], ["srun", "--export=ALL,A_KEY=<scrubbed>,N=1"]),
        (
            ["sh", "-c", "app --token  s3cr3t\n\tapp --key=k3y a"],
            ["sh", "-c", "app --token  <scrubbed>\n\tapp --key=<scrubbed> a"],
        ),
        (["app", "--env=TOKENS=12,MAX_TOKEN=8"], ["app", "--env=TOKENS=12,MAX_TOKEN=8"]),
        (["app", "a=" * 2000, "--env=PWD=/srv"], ["app", "a=" * 2000, "--env=PWD=/srv"]),
    ],
)
def test_command_lines_lose_secret_values_only(given, kept):
    """Options, variables and addresses; sizes of a model are no secrets."""
    assert scrub.scrub_command(given) == kept


def rocpd(path, environment, command):
    """Write a database with a process table as rocpd has it, and enough rows to fill pages."""
    with closing(sqlite3.connect(path)) as base:
        columns = "id INTEGER, pid INTEGER, command TEXT, environment JSONB, extdata JSONB"
        base.execute(f'CREATE TABLE "rocpd_info_process_ab" ({columns})')
        row = (1, 9, command, json.dumps(environment), json.dumps({"config": {"env": environment}, "output": "/x"}))
        base.execute('INSERT INTO "rocpd_info_process_ab" VALUES (?, ?, ?, ?, ?)', row)
        base.execute("PRAGMA secure_delete = OFF")  # some builds of SQLite have it on
        base.execute("CREATE TABLE draft (text TEXT)")
        base.executemany("INSERT INTO draft VALUES (?)", [(f"value of a dropped page {'x' * 997}",)] * 129)
        base.commit()
        base.execute("DROP TABLE draft")  # its pages are free now, and some still have the text
        base.execute("CREATE VIEW rocpd_info_process AS SELECT * FROM rocpd_info_process_ab")
        base.execute("CREATE TABLE rocpd_kernel_dispatch_ab (id INTEGER)")
        base.executemany("INSERT INTO rocpd_kernel_dispatch_ab VALUES (?)", [(number,) for number in range(513)])
        base.commit()


def test_what_a_link_leads_to_is_not_rewritten(tmp_path):
    """A profiler's folder may link to files of the machine: those are not ours to change."""
    rocpd(tmp_path / "own.db", ENVIRONMENT, "./app")
    before = (tmp_path / "own.db").read_bytes()
    (tmp_path / "pass").mkdir()
    (tmp_path / "pass" / "linked.db").symlink_to(tmp_path / "own.db")
    assert scrub.scrub_folder(tmp_path / "pass", scrub.secrets_of(ENVIRONMENT)) == []
    assert (tmp_path / "own.db").read_bytes() == before


def test_a_database_keeps_its_data_and_loses_the_environment(tmp_path):
    """ROCm's variables stay, all other values go, and no old page keeps them; dispatches are untouched."""
    path = tmp_path / "x_results.db"
    rocpd(path, ENVIRONMENT, "./app --token hf_abcdefgh --heads 8")
    assert b"dropped page" in path.read_bytes()
    assert scrub.scrub_folder(tmp_path, scrub.secrets_of(ENVIRONMENT)) == []
    data = path.read_bytes()
    assert not any(value.encode() in data for value in (*SECRETS, "/home/me", "/srv/place", "dropped page"))
    with closing(sqlite3.connect(path)) as base:
        command, environment, extra = base.execute(
            "SELECT command, environment, extdata FROM rocpd_info_process"
        ).fetchone()
        assert base.execute("SELECT count(*) FROM rocpd_kernel_dispatch_ab").fetchone() == (513,)
    assert command == "./app --token <scrubbed> --heads 8"
    kept = json.loads(environment)
    assert kept.keys() == ENVIRONMENT.keys()
    assert {name for name, value in kept.items() if value != "<scrubbed>"} == {
        "ROCM_PATH",
        "HIP_VISIBLE_DEVICES",
        "LD_LIBRARY_PATH",
    }
    assert json.loads(extra)["output"] == "/x"


@pytest.mark.parametrize(
    "environment",
    [ENVIRONMENT, [f"{name}={value}" for name, value in ENVIRONMENT.items()], [{"HF_TOKEN": "hf_abcdefgh"}]],
    ids=["object", "lines", "objects"],
)
def test_json_of_any_shape_is_scrubbed_by_its_keys(tmp_path, environment):
    """The environment as an object or a list, the command as a list or a line; numbers and other texts stay."""
    path = tmp_path / "out_results.json"
    metadata = {"command": ["app", "--token", "hf_abcdefgh"], "environment": environment, "config": {"pid": 7}}
    tree = {"rocprofiler-sdk-tool": [{"metadata": metadata, "strings": ["attn_fwd"]}]}
    path.write_text(json.dumps(tree))
    assert scrub.scrub_folder(tmp_path) == []
    assert not any(value in path.read_text() for value in (*SECRETS, "/home/me"))
    found = json.loads(path.read_text())["rocprofiler-sdk-tool"][0]
    assert found["metadata"]["command"] == ["app", "--token", "<scrubbed>"]
    assert (found["metadata"]["config"], found["strings"]) == ({"pid": 7}, ["attn_fwd"])


VALUES = [
    {"metadata": {"Environment": ENVIRONMENT, "argv": ["app", "--token", "x"], "pid": 7}, "records": [[1, 2.5], []]},
    [{"command": "app --token x"}, ["https://me:pw@host/"], {"a": {"remaining": ["a", ["b"]]}}, None, "hunter22"],
    {"ENV": [{"HF_TOKEN": "x"}, "A=b", 3], "\u00e9": "\u00e9", "\\": 'a"b', "e": 1e300, "n": -0.0, "big": 10**40},
    {"a": {}, "b": [], "c": "", "d": [[["hf_abcdefgh"]]], "e": {"f": {"g": True}}},
    {"plain": [{"name": "attn<float, 3>", "id": number} for number in range(9)], "env": "A=b"},
    {"é": {"Env": {"A": "b"}}},
    "a text of https://me:pw@host/",
]


@pytest.mark.parametrize("most", [1, 9, 40, 1 << 18])
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_json_in_pieces_is_what_it_is_as_a_whole(tmp_path, monkeypatch, value, most):
    """Byte for byte, however it is written and wherever it is taken apart."""
    monkeypatch.setattr(scrub, "_PIECE_BYTES", most)
    secrets = scrub.secrets_of(ENVIRONMENT)
    whole = msgspec.json.encode(scrub._value("", value, secrets))
    path = tmp_path / "a.json"
    for text in (
        json.dumps(value), json.dumps(value, indent=3, ensure_ascii=False), json.dumps(value).replace("/", "\\/")
    ):  # fmt: skip
        path.write_text(text, encoding="utf-8")
        assert scrub.scrub_folder(tmp_path, secrets) == []
        assert path.read_bytes() == whole
    path.write_text('{"a": 1, "a": {"argv": "--token x"}, "b": 2}')
    scrub.scrub_folder(tmp_path)
    assert path.read_bytes() == b'{"a":{"argv":"--token <scrubbed>"},"b":2}'


def test_a_secret_that_is_no_utf8_is_looked_for_as_it_is(tmp_path):
    """Python has such bytes of the environment as lone surrogates."""
    secret = b"hf_\xff\xfe_token".decode(errors="surrogateescape")
    (tmp_path / "a.json").write_text('{"argv": "--token x"}')
    (tmp_path / "trace.csv").write_bytes(b"kernel\nhf_\xff\xfe_token\n")
    (line,) = scrub.scrub_folder(tmp_path, scrub.secrets_of({"A_TOKEN": secret}))
    assert line == "trace.csv holds the value of a secret variable: do not publish it"


def test_json_without_secrets_is_left_as_it_is(tmp_path, monkeypatch):
    """Also how it was written."""
    monkeypatch.setattr(scrub, "_PIECE_BYTES", 4)
    path = tmp_path / "a.json"
    path.write_text('{ "a": [1, {"b": 2.50}], "url": "https://host/" }')
    before = path.stat().st_ino, path.read_bytes()
    scrub.scrub_folder(tmp_path)
    assert (path.stat().st_ino, path.read_bytes()) == before


def test_json_that_breaks_off_in_a_late_piece_leaves_nothing(tmp_path, monkeypatch):
    """Text that is no UTF-8 is found when its piece is read: what was written by then goes, too."""
    monkeypatch.setattr(scrub, "_PIECE_BYTES", 4)
    (tmp_path / "a.json").write_bytes(b'{"argv": "--token x", "strings": ["good", "\xff"]}')
    (line,) = scrub.scrub_folder(tmp_path)
    assert line.startswith("a.json cannot be read (")
    assert list(tmp_path.iterdir()) == []


def test_a_large_json_is_not_held_decoded(tmp_path):
    """A trace of gigabytes would take eight times its size."""
    path = tmp_path / "a.json"
    records = [{"kernel_id": number, "grid": {"x": 64, "y": 1}, "name": f"k{number % 7}"} for number in range(6_000)]
    path.write_text(json.dumps({"environment": ENVIRONMENT, "records": records}))
    del records
    size = path.stat().st_size
    tracemalloc.start()
    try:
        assert scrub.scrub_folder(tmp_path) == []
        assert tracemalloc.get_traced_memory()[1] < 4 * size
    finally:
        tracemalloc.stop()


def test_logs_and_settings_are_scrubbed(tmp_path):
    """rocprof-compute's log and YAML repeat the command, an application may print its environment."""
    (tmp_path / "log.txt").write_text("Command: app --password pw123 --n 3\nplain line\nfetch https://u:p@host/\n")
    (tmp_path / "profiling_config.yaml").write_text("name: x\nremaining: app --api_key=abc\n")
    (tmp_path / "listed.yaml").write_text("remaining:\n- --\n- app\n- --token\n- 'qwerty-1'\n- --heads\n- '8'\n")
    (tmp_path / "sysinfo.csv").write_text("command,x\napp --token t0psecret,1\n")
    (tmp_path / "stdout.txt").write_bytes(b"HF_TOKEN=hf_abcdefgh\n\xff\xfe not UTF-8, hunter22\n")
    assert scrub.scrub_folder(tmp_path, scrub.secrets_of(ENVIRONMENT)) == []
    log = (tmp_path / "log.txt").read_text()
    assert log == "Command: app --password <scrubbed> --n 3\nplain line\nfetch https://<scrubbed>@host/\n"
    assert "abc" not in (tmp_path / "profiling_config.yaml").read_text()
    listed = (tmp_path / "listed.yaml").read_text()
    assert listed == "remaining:\n- --\n- app\n- --token\n- <scrubbed>\n- --heads\n- '8'\n"
    assert "t0psecret" not in (tmp_path / "sysinfo.csv").read_text()
    data = (tmp_path / "stdout.txt").read_bytes()
    assert data == b"HF_TOKEN=<scrubbed>\n\xff\xfe not UTF-8, <scrubbed>\n"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("AWS_SECRET_ACCESS_KEY: wJalrXUtnFEMI/K7MDENG", "AWS_SECRET_ACCESS_KEY: <scrubbed>"),
        ("- HF_TOKEN: abc", "- HF_TOKEN: <scrubbed>"),
        ("  password: swordfish", "  password: <scrubbed>"),
        ('passphrase: "correct horse battery"', 'passphrase: "<scrubbed>"'),
        ("10:01 INFO password: hunter22 for db", "10:01 INFO password: <scrubbed> for db"),
        ("> Authorization: Bearer abc.def", "> Authorization: Bearer <scrubbed>"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic <scrubbed>"),
        ("x-api-key: k3y", "x-api-key: <scrubbed>"),
        ("{'HF_TOKEN': 'a\"b', 'HOME': '/root', 'N': '1'}", "{'HF_TOKEN': '<scrubbed>', 'HOME': '/root', 'N': '1'}"),
        ('{"api_key":"abc","access_token": "ya29.a0AfH6SMBx123"}',
         '{"api_key":"<scrubbed>","access_token": "<scrubbed>"}'),
        ("PIN_PASSWORD: 12345678", "PIN_PASSWORD: <scrubbed>"),
    ],
)  # fmt: skip
def test_secrets_after_a_colon_go(tmp_path, line, kept):
    """YAML, headers of requests and a printed dictionary: an application's log is uploaded as it is."""
    (tmp_path / "stdout.txt").write_text(f"{line}\nnext: line\n")
    assert scrub.scrub_folder(tmp_path) == []
    assert (tmp_path / "stdout.txt").read_text() == f"{kept}\nnext: line\n"
    words = ["sh", "-c", line]
    assert scrub.scrub_command(words) == ["sh", "-c", kept]


ORDINARY = """\
key: torch.Size([1, 8, 128, 64])
key=torch.Size([1, 8]) value=torch.float16
fwd_pass=0.35ms bwd_pass=1.2e-3s peak_pass=12.5GB/s
forward_pass: 3.2 ms, bwd_pass: 0.71ms
eos_token: <|endoftext|>
{"key": "float16", "token": "the", "eos_token": "</s>", "password": null, "api_key": ""}
next token: 17
cache key: 3f2a9b8c7d6e5f4a3b2c1d0e9f8a7b6c
AWS credentials: not found
API_KEY: not set
secret: none
SECRET: ***
Password:
PWD: /home/me
cookie: 0x7f1234 foo::PASSWORD::x std::token:abc
  SQ_WAVES: 1234567
    .name:           attn_fwd_key
    .sgpr_count:     16
W20260815 tool.cpp:2423] HSA version 1.18.0 initialized (instance=0)
"""


def test_ordinary_lines_of_a_log_stay(tmp_path):
    """Shapes of keys, a tokenizer's settings, times of passes, kernels and counters."""
    (tmp_path / "stdout.txt").write_text(ORDINARY)
    assert scrub.scrub_folder(tmp_path) == []
    assert (tmp_path / "stdout.txt").read_text() == ORDINARY


def test_many_secrets_in_one_line_take_no_minutes():
    """A dictionary of any size is printed in one line."""
    line = "PASSWORD: x1 " * 80_000
    began = time.process_time()
    assert "x1" not in scrub._line(line, ())
    assert time.process_time() - began < 20


def test_json_with_numbers_that_json_does_not_have_is_kept(tmp_path):
    """rocprofv3 and Python's json write NaN: such a file was deleted as one that cannot be read."""
    (tmp_path / "plain.json").write_text('{"a": NaN, "b": [Infinity, -Infinity], "c": "NaN, 1"}')
    (tmp_path / "out.json").write_text(
        '{"environment": {"HF_TOKEN": "hf_abcdefgh"}, "a": [NaN, -Infinity, "NaN \\" NaN"]}'
    )
    assert scrub.scrub_folder(tmp_path) == []
    assert (tmp_path / "plain.json").read_text() == '{"a": NaN, "b": [Infinity, -Infinity], "c": "NaN, 1"}'
    kept = json.loads((tmp_path / "out.json").read_text())
    assert kept == {"environment": {"HF_TOKEN": "<scrubbed>"}, "a": [None, None, 'NaN " NaN']}


def test_an_empty_file_holds_no_secret(tmp_path):
    """What a profiler opened and never wrote is no secret, and says so where it is read."""
    for name in ("out_results.json", "out_results.db", "log.txt"):
        (tmp_path / name).touch()
    assert scrub.scrub_folder(tmp_path, ("hf_abcdefgh",)) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_a_secret_with_spaces_is_found_in_a_log(tmp_path):
    """A passphrase is no single word."""
    (tmp_path / "log.txt").write_text("fetch with correct horse battery, --heads\t8\n")
    assert scrub.scrub_folder(tmp_path, ("correct horse battery",)) == []
    assert (tmp_path / "log.txt").read_text() == "fetch with <scrubbed>, --heads\t8\n"


def test_a_line_of_a_megabyte_takes_no_minutes():
    """An application may print anything; an address was looked for from each of its letters to the end."""
    line = "a" * 1_000_000
    began = time.process_time()
    assert scrub.scrub_command([f"x={line}", line]) == [f"x={line}", line]
    assert time.process_time() - began < 20


def test_a_file_that_cannot_be_read_is_removed_and_named(tmp_path):
    """A database cut off by a kill, and JSON that stops in the middle."""
    whole = tmp_path / "whole.db"
    rocpd(whole, ENVIRONMENT, "app")
    (tmp_path / "cut.db").write_bytes(whole.read_bytes()[:700])
    (tmp_path / "cut.json").write_text('{"environment": {"HF_TOKEN": "hf_abc')
    lines = scrub.scrub_folder(tmp_path)
    assert [line.split()[0] for line in lines] == ["cut.db", "cut.json"]
    assert {path.name for path in tmp_path.iterdir()} == {"whole.db"}


def test_a_secret_in_any_other_file_is_reported(tmp_path):
    """Counter files are not rewritten; should a value be in one, the folder is not for publishing."""
    (tmp_path / "trace.csv").write_text("kernel\nhf_abcdefgh\n")
    (tmp_path / "empty.csv").touch()
    assert scrub.scrub_folder(tmp_path, ("hf_abcdefgh",)) == [
        "trace.csv holds the value of a secret variable: do not publish it"
    ]


def test_links_are_not_followed(tmp_path):
    """A link out of the folder must not rewrite somebody else's file."""
    outside = tmp_path / "outside.txt"
    outside.write_text("hunter22")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link.txt").symlink_to(outside)
    assert scrub.scrub_folder(inside, ("hunter22",)) == []
    assert outside.read_text() == "hunter22"


@pytest.mark.parametrize(
    "environment",
    [
        ["HF_TOKEN=hf_abcdefgh", "hf_abcdefgh"],
        [["HF_TOKEN", "hf_abcdefgh"], 7],
        [{"name": "HF_TOKEN", "value": "hf_abcdefgh"}],
        {"HF_TOKEN": {"value": "hf_abcdefgh"}},
        "HF_TOKEN=hf_abcdefgh",
        "HF_TOKEN: hf_abcdefgh",
    ],
    ids=["entries", "pairs", "objects", "nested", "one", "text"],
)
def test_an_environment_loses_its_values_in_whatever_form_it_is_written(tmp_path, environment):
    """Also where it is no JSON in a database, and where the caller does not have the variable."""
    (tmp_path / "a.json").write_text(json.dumps({"metadata": {"environment": environment}}))
    rocpd(tmp_path / "a.db", environment, "./app")
    text = environment if isinstance(environment, str) else "HF_TOKEN=hf_abcdefgh\nHOME=/home/me"
    rocpd(tmp_path / "b.db", {}, "./app")
    with closing(sqlite3.connect(tmp_path / "b.db")) as base:
        base.execute('UPDATE "rocpd_info_process_ab" SET environment = ?', (text,))
        base.execute("CREATE TABLE rocpd_metadata_ab (id INTEGER, tag TEXT, value TEXT)")
        base.execute("INSERT INTO rocpd_metadata_ab VALUES (1, 'from', 'https://me:hf_abcdefgh@host')")
        base.commit()
    assert scrub.scrub_folder(tmp_path) == []
    assert not [path.name for path in tmp_path.iterdir() if b"hf_abcdefgh" in path.read_bytes()]


def test_a_database_of_another_name_is_scrubbed_and_what_a_broken_one_left_goes_with_it(tmp_path):
    """What it is decides, not its suffix; its log may hold what it could not."""
    rocpd(tmp_path / "results.rocpd", ENVIRONMENT, "./app")
    (tmp_path / "cut.db").write_bytes(b"SQLite format 3\0 and no more")
    for name in ("cut.db-wal", "cut.db-shm", "cut.db-journal"):
        (tmp_path / name).write_bytes(b"HF_TOKEN=hf_abcdefgh")
    (line,) = scrub.scrub_folder(tmp_path)
    assert line.startswith("cut.db cannot be read")
    assert [path.name for path in tmp_path.iterdir()] == ["results.rocpd"]
    assert b"hf_abcdefgh" not in (tmp_path / "results.rocpd").read_bytes()
