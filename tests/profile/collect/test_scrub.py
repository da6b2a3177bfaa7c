"""No secret in what is stored: environments, command lines, logs, settings, and columns of machine names."""

import json
import sqlite3
import time
import tracemalloc
from contextlib import closing

import pytest

from rocattn_profiling.profile.collect import scrub
from rocattn_profiling.profile.collect.scrub import Secrets, scrub_folder, scrub_text, secrets_of

ENVIRONMENT = {
    "HF_TOKEN": "hf_abcdefgh", "AWS_SECRET_ACCESS_KEY": "aws-secret-1", "WANDB_API_KEY": "wandb-key-1",
    "DB_PASSWORD": "hunter22", "GITHUB_PAT": "ghp_12345678", "HOME": "/home/mina", "PWD": "/srv/place",
    "INDEX": "https://me:pw123456@host/simple", "ROCM_PATH": "/opt/rocm", "USER": "mina", "SHORT_TOKEN": "ab",
}  # fmt: skip
VALUES = {"hf_abcdefgh", "aws-secret-1", "wandb-key-1", "hunter22", "ghp_12345678", "me:pw123456"}


@pytest.fixture
def secrets():
    """The secrets of an environment and a command."""
    return secrets_of(ENVIRONMENT, ["app", "--token", "s3cr3t-1"])


def test_secrets_are_known_by_names(secrets):
    """Of variables and options; the working directory is none, and a value too short to look for is not looked for."""
    assert secrets.values == VALUES
    assert secrets.arguments == {"s3cr3t-1"}


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (["app", "--token", "s3cr3t-1", "x"], ["app", "--token", "<scrubbed>", "x"]),
        (["app", "--api-key=s3cr3t-1"], ["app", "--api-key=<scrubbed>"]),
        (["env", "DB_PASSWORD=pw-abcdef", "app"], ["env", "DB_PASSWORD=<scrubbed>", "app"]),
        (["app", "--max-tokens", "128000", "--seq-k", "4096"], ["app", "--max-tokens", "128000", "--seq-k", "4096"]),
        (["app", "--token", "128"], ["app", "--token", "128"]),
        (["app", "--password", "--api-key", "x-abcdef"], ["app", "--password", "--api-key", "<scrubbed>"]),
        (["psql", "postgres://me:p@w@host/d"], ["psql", "postgres://<scrubbed>@host/d"]),
        (["get", "https://host/x?token=s3cr3t-1&n=1"], ["get", "https://host/x?token=<scrubbed>"]),
        (["run", "--env=HF_TOKEN=s3cr3t-1", "app"], ["run", "--env=HF_TOKEN=<scrubbed>", "app"]),
        (["srun", "--export=ALL,A_KEY=s3cr3t-1,N=1"], ["srun", "--export=ALL,A_KEY=<scrubbed>"]),
        (["app", "--password=a,b&c;d e"], ["app", "--password=<scrubbed>"]),
        (["sh", "-c", "app --token  s3cr3t-1\n\tb"], ["sh", "-c", "app --token  <scrubbed>\n\tb"]),
        (["app", "--env=PWD=/srv/place", "a=b"], ["app", "--env=PWD=/srv/place", "a=b"]),
    ],
)
def test_command_lines_lose_secret_values(command, kept):
    """Options, variables and credentials in addresses, also inside of words; sizes of a model are no secrets."""
    secrets = secrets_of({}, command)
    assert [scrub_text(word, secrets) for word in command] == kept


def test_logs_and_settings_are_scrubbed(tmp_path, secrets):
    """Known values in whatever form they are printed; other lines stay as they are."""
    (tmp_path / "log.txt").write_text("Command: app --token s3cr3t-1 --n 3\nuser mina\n")
    (tmp_path / "listed.yaml").write_text("remaining:\n- app\n- --token\n- 's3cr3t-1'\n")
    (tmp_path / "sysinfo.csv").write_text("command,hostname\napp hf_abcdefgh,node17.cluster\n")
    (tmp_path / "stdout.txt").write_bytes(b"{'HF_TOKEN': 'hf_abcdefgh'}\n\xff\xfe not UTF-8, hunter22\nkey: float16\n")
    assert scrub_folder(tmp_path, secrets) == []
    assert (tmp_path / "log.txt").read_text() == "Command: app --token <scrubbed> --n 3\nuser mina\n"
    assert (tmp_path / "listed.yaml").read_text() == "remaining:\n- app\n- --token\n- '<scrubbed>'\n"
    assert (tmp_path / "sysinfo.csv").read_text() == "command,hostname\napp <scrubbed>,node17.cluster\n"
    data = (tmp_path / "stdout.txt").read_bytes()
    assert data == b"{'HF_TOKEN': '<scrubbed>'}\n\xff\xfe not UTF-8, <scrubbed>\nkey: float16\n"


def test_a_log_too_large_to_hold_is_cut(tmp_path, monkeypatch):
    """Its start and its end matter."""
    monkeypatch.setattr(scrub, "_LARGEST_TEXT_BYTES", 20)
    (tmp_path / "stdout.txt").write_text("first line" + "x" * 100 + "last lines")
    assert scrub_folder(tmp_path, Secrets()) == []
    assert (tmp_path / "stdout.txt").read_text() == "first line\n... 100 bytes left out ...\nlast lines"


def rocpd(path, environment, command):
    """Write a database with a process table as rocpd has it, and enough rows to fill pages."""
    with closing(sqlite3.connect(path)) as base:
        columns = "id INTEGER, pid INTEGER, command TEXT, environment JSONB, extdata JSONB"
        base.execute(f'CREATE TABLE "rocpd_info_process_ab" ({columns})')
        row = (1, 9, command, json.dumps(environment), json.dumps({"config": {"env": environment}, "output": "/x"}))
        base.execute('INSERT INTO "rocpd_info_process_ab" VALUES (?, ?, ?, ?, ?)', row)
        base.execute("CREATE TABLE rocpd_info_node_ab (id INTEGER, hostname TEXT, machine_id TEXT, system_name TEXT)")
        base.execute("INSERT INTO rocpd_info_node_ab VALUES (1, 'node17', '0123abcd', 'Linux')")
        base.execute("PRAGMA secure_delete = OFF")  # some builds of SQLite have it on
        base.execute("CREATE TABLE draft (text TEXT)")
        base.executemany("INSERT INTO draft VALUES (?)", [(f"value of a dropped page {'x' * 997}",)] * 129)
        base.commit()
        base.execute("DROP TABLE draft")  # its pages are free now, and some still have the text
        base.execute("CREATE VIEW rocpd_info_process AS SELECT * FROM rocpd_info_process_ab")
        base.execute("CREATE TABLE rocpd_kernel_dispatch_ab (id INTEGER)")
        base.executemany("INSERT INTO rocpd_kernel_dispatch_ab VALUES (?)", [(number,) for number in range(513)])
        base.commit()


def test_a_database_keeps_its_data_without_the_environment(tmp_path, secrets):
    """No old page keeps what was removed; dispatches are untouched."""
    path = tmp_path / "x_results.db"
    rocpd(path, ENVIRONMENT, "/home/mina/app --token s3cr3t-1 --heads 8")
    assert b"dropped page" in path.read_bytes()
    assert scrub_folder(tmp_path, secrets) == []
    data = path.read_bytes()
    gone = (*VALUES, "/srv/place", "/opt/rocm", "node17", "0123abcd", "dropped page")
    assert not any(value.encode() in data for value in gone)
    with closing(sqlite3.connect(path)) as base:
        row = base.execute("SELECT command, environment, extdata FROM rocpd_info_process").fetchone()
        assert base.execute("SELECT count(*) FROM rocpd_kernel_dispatch_ab").fetchone() == (513,)
        assert base.execute("SELECT system_name FROM rocpd_info_node_ab").fetchone() == ("Linux",)
    assert row == ("/home/mina/app --token <scrubbed> --heads 8", "{}", '{"config": {"env": {}}, "output": "/x"}')


@pytest.mark.parametrize(
    ("environment", "kept"),
    [
        (ENVIRONMENT, {}),
        ([f"{name}={value}" for name, value in ENVIRONMENT.items()], []),
        ([{"name": "HF_TOKEN", "value": "hf_abcdefgh"}], []),
        ({"HF_TOKEN": {"environment": "hf_abcdefgh"}}, {}),
        ("HF_TOKEN=hf_abcdefgh", ""),
        (7, None),
    ],
    ids=["object", "lines", "objects", "nested", "text", "number"],
)
def test_json_loses_environments_of_any_form(tmp_path, environment, kept):
    """By their keys, whether or not the caller has the variables; everything else stays byte for byte."""
    path = tmp_path / "out_results.json"
    metadata = {"command": ["app", "--token", "s3cr3t-1"], "Environment": environment, "config": {"pid": 7}}
    rest = '"strings": ["attn_fwd", "\\u00e9\\/", NaN, 2.50,1]}'
    path.write_text(f'{{ "metadata": {json.dumps(metadata)}, {rest}')
    rocpd(tmp_path / "a.db", environment, "./app")
    assert scrub_folder(tmp_path, secrets_of({}, metadata["command"])) == []
    assert path.read_text().endswith(rest)
    found = json.loads(path.read_text())["metadata"]
    assert found == {"command": ["app", "--token", "<scrubbed>"], "Environment": kept, "config": {"pid": 7}}
    assert b"hf_abcdefgh" not in (tmp_path / "a.db").read_bytes()


def test_json_without_secrets_is_not_rewritten(tmp_path, secrets):
    """A file of gigabytes is read once and stays, also how it was written."""
    path = tmp_path / "a.json"
    path.write_text('{ "a": [1, {"b": 2.50}], "kernel_name": "hostname", "n": [NaN, -Infinity] }')
    before = path.stat().st_ino, path.read_bytes()
    assert scrub_folder(tmp_path, secrets) == []
    assert (path.stat().st_ino, path.read_bytes()) == before


def test_a_large_json_is_not_held_decoded(tmp_path):
    """A trace of gigabytes would take eight times its size."""
    path = tmp_path / "a.json"
    records = [{"kernel_id": number, "grid": {"x": 64, "y": 1}, "name": f"k{number % 7}"} for number in range(6_000)]
    path.write_text(json.dumps({"environment": ENVIRONMENT, "records": records}))
    del records
    size = path.stat().st_size
    tracemalloc.start()
    try:
        assert scrub_folder(tmp_path, Secrets()) == []
        assert tracemalloc.get_traced_memory()[1] < 6 * size
    finally:
        tracemalloc.stop()


def test_a_line_of_a_megabyte_takes_no_minutes(secrets):
    """An application may print anything, and a dictionary of any size in one line."""
    began = time.process_time()
    for line in ("a" * 1_000_000, "PASSWORD: x1 " * 80_000, "://a" * 250_000, "a=" * 60_000):
        assert scrub_text(line, secrets) == line
        assert secrets_of({"A_TOKEN": line}, [line]).values == {line}
    assert time.process_time() - began < 20


def test_an_empty_file_holds_no_secret(tmp_path, secrets):
    """What a profiler opened and never wrote is no secret, and says so where it is read."""
    for name in ("out_results.json", "out_results.db", "log.txt"):
        (tmp_path / name).touch()
    assert scrub_folder(tmp_path, secrets) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_an_unreadable_file_is_removed_and_named(tmp_path, secrets):
    """A database cut off by a kill, with its log, and JSON that stops in the middle of an environment."""
    rocpd(tmp_path / "results.rocpd", ENVIRONMENT, "app")  # what it is decides, not its suffix
    (tmp_path / "cut.db").write_bytes((tmp_path / "results.rocpd").read_bytes()[:700])
    for name in ("cut.db-wal", "cut.db-shm", "cut.db-journal"):
        (tmp_path / name).write_bytes(b"HF_TOKEN=other-token")
    (tmp_path / "cut.json").write_text('{"environment": {"HF_TOKEN": "hf_abc')
    lines = scrub_folder(tmp_path, secrets)
    assert [line.split()[0] for line in lines] == ["cut.db", "cut.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["results.rocpd"]
    assert b"hf_abcdefgh" not in (tmp_path / "results.rocpd").read_bytes()


def test_a_secret_in_any_other_place_is_reported(tmp_path, secrets):
    """Tables and the rest of results are not rewritten; should a value be there, the folder is not for publishing."""
    (tmp_path / "other.json").write_text('{"strings": ["hunter22"]}')
    (tmp_path / "trace.csv").write_text("kernel\nhf_abcdefgh\n")
    (tmp_path / "empty.csv").touch()
    assert scrub_folder(tmp_path, secrets) == [
        "other.json contains the value of a secret variable: do not publish it",
        "trace.csv contains the value of a secret variable: do not publish it",
    ]


def test_a_secret_need_not_be_utf8(tmp_path):
    """Python has such bytes of the environment as lone surrogates."""
    secret = b"hf_\xff\xfe_token".decode(errors="surrogateescape")
    (tmp_path / "log.txt").write_bytes(b"is hf_\xff\xfe_token\n")
    (tmp_path / "trace.csv").write_bytes(b"kernel\nhf_\xff\xfe_token\n")
    (line,) = scrub_folder(tmp_path, secrets_of({"A_TOKEN": secret}))
    assert line == "trace.csv contains the value of a secret variable: do not publish it"
    assert (tmp_path / "log.txt").read_text() == "is <scrubbed>\n"


@pytest.mark.parametrize("name", ["link.txt", "linked.db"])
def test_links_are_not_followed(tmp_path, secrets, name):
    """A profiler's folder may link to files of the machine: those are not ours to change."""
    outside = tmp_path / name
    rocpd(outside, ENVIRONMENT, "hunter22")
    before = outside.read_bytes()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / name).symlink_to(outside)
    assert scrub_folder(inside, secrets) == []
    assert outside.read_bytes() == before
