"""Taking secrets out of what profilers write, before it can become an artifact.

rocprofv3 stores the profiled process's whole environment and command line in rocpd databases and JSON files; logs and
rocprof-compute's settings repeat the command line. Environment values are kept only for variables that steer ROCm,
secret-looking arguments and credentials in addresses lose their values, and the values of the caller's own secret
variables are removed wherever they appear.
"""

from __future__ import annotations

import mmap
import os
import re
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn_profiling.base.files import write_bytes, write_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

SCRUBBED = "<scrubbed>"
_TELLING = re.compile(r"(?:ROC|HSA|HIP|AMD_|GPU_|LD_|OMP_|MIOPEN_|TRITON_|PYTORCH_|NCCL_|RCCL_|ROCATTN_)\w*")
_NAME = r"(?:TOKEN|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?|COOKIE|API_?KEY|_PASS|(?<![^\W_])(?:KEY|AUTH|PAT|PWD))"
_SECRET = re.compile(rf"{_NAME}$", re.IGNORECASE)
_NOT_SECRET = re.compile(r"^(?:OLD)?PWD$")  # the working directory
_ADDRESS = re.compile(r"(?<=\w)://[^/\s'\"]+@")  # to the last @: a password may have one, too
_OPTION = re.compile(r"(-{0,2}[\w-]+)=(.*)", re.DOTALL)
# In an address's query, in `--env=NAME=VALUE,NAME=VALUE`: a secret's name with its value.
_INSIDE = re.compile(rf"(?<![\w-])([\w-]*{_NAME})=([^&,;\s'\"]+)", re.IGNORECASE)
# `NAME: value` of YAML, headers and printed dictionaries. `key: float16` and `eos_token: </s>` are ordinary lines, so
# a name that may mean anything hides only what looks made up by a machine, unless it is written as a variable's is.
_STATED = re.compile(
    rf"""(?<![\w:-])(?P<quote>['"]?)(?P<name>[\w-]*(?:{_NAME}|AUTHORIZATION))(?P=quote):[ \t]*(?!:)"""
    r"""(?P<scheme>(?:Bearer|Basic|Token)[ \t]+)?"""
    r"""(?:"(?P<double>(?:[^"\\]|\\.)*+)"|'(?P<single>[^']*+)'|(?P<bare>[^\s'",;}]++))""",
    re.IGNORECASE,
)
_MEANS_SECRET = re.compile(
    r"(?:SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|SECRET|PRIVATE)[_-]?KEY|AUTHORIZATION)$",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*[_-][A-Z0-9_-]*")
_ORDINARY = re.compile(r"0x[\da-f]+|none|null|nil|true|false|yes|no|~|\*+|[<\[({|].*", re.IGNORECASE | re.DOTALL)
_ENDS = re.compile(r"""[ \t\r,;}\])'"]*(?:\n|\Z)""")
_MADE_UP = re.compile(r"(?=.*\d)(?=.*[a-z])[\w./+=~-]{16,}", re.IGNORECASE)
_TEXT_SUFFIXES = {".txt", ".log", ".yaml", ".yml", ".stderr", ".stdout"}
_ENVIRONMENTS = {"environment", "env", "environ"}
_COMMANDS = {"command", "cmdline", "command_line", "argv", "remaining"}
_QUOTED = tuple(f'"{name}"'.encode() for name in sorted(_ENVIRONMENTS | _COMMANDS))
_PIECE_BYTES = 1 << 18  # of JSON
_LEAST_SECRET = 6  # shorter values would be found in places where they mean nothing
_LARGEST_TEXT_BYTES = 1 << 28
_ITEM = re.compile(r"(\s*- )['\"]?(.*?)['\"]?")
# `--token 128` counts something, and a benchmark prints `bwd_pass=0.71ms` and `key=torch.float16`.
_COUNT = re.compile(
    r"(?:\d{1,6}|[-+]?\d{1,6}\.\d+(?:e[-+]?\d+)?)(?:[nuµm]?s|%|x|[KMGT]?i?B(?:/s)?|[KMGTP]?FLOPS?)?,?"
    r"|(?:torch|np|jnp|tl)\.\S*",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Say whether a variable's or option's name is one that holds a secret."""
    return _SECRET.search(name) is not None and _NOT_SECRET.match(name) is None


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of an environment's secret variables, the longest first."""
    values = {value for name, value in environment.items() if is_secret(name) and len(value) >= _LEAST_SECRET}
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def scrub_command(command: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """Return a command line without the values of secret options, and without secrets."""
    result: list[str] = []
    hide_next = False
    for word in command:
        option = _OPTION.fullmatch(word)
        if hide_next and not _COUNT.fullmatch(word):
            result.append(SCRUBBED)
        elif option and is_secret(option[1].lstrip("-")) and not _COUNT.fullmatch(option[2]):
            result.append(f"{option[1]}={SCRUBBED}")
        else:
            inner = _spaced(word, secrets) if re.search(r"\s", word) else scrub_text(word, secrets)
            result.append(_INSIDE.sub(_named, inner))
        hide_next = not hide_next and word.startswith("-") and option is None and is_secret(word.lstrip("-"))
    return result


def scrub_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Return text without these secrets and without credentials in addresses."""
    for secret in secrets:
        text = text.replace(secret, SCRUBBED)
    return _ADDRESS.sub(f"://{SCRUBBED}@", text)


def _named(found: re.Match[str]) -> str:
    """Return NAME=VALUE without the value of a secret."""
    kept = not is_secret(found[1].lstrip("-")) or _COUNT.fullmatch(found[2])
    return found[0] if kept else f"{found[1]}={SCRUBBED}"


def _stated(found: re.Match[str]) -> str:
    """Return `NAME: value` without the value if it is a secret's."""
    name, bare = found["name"], found["bare"]
    value = next(text for text in (found["double"], found["single"], bare) if text is not None)
    if _ORDINARY.fullmatch(value) or _COUNT.fullmatch(value) or not value or _NOT_SECRET.match(name):
        return found[0]
    if _MEANS_SECRET.search(name) or _VARIABLE.fullmatch(name):
        # "credentials: not found" goes on; a value stands alone, or has something that no plain word has.
        alone = _ENDS.match(found.string, found.end())
        hidden = bool(bare is None or found["scheme"] or alone or not bare.isalpha())
    else:
        hidden = not re.search("KEY$", name, re.IGNORECASE) and _MADE_UP.fullmatch(value) is not None
    if not hidden:
        return found[0]
    start, end = found.span("bare" if bare is not None else "double" if found["double"] is not None else "single")
    return found[0][: start - found.start()] + SCRUBBED + found[0][end - found.start() :]


def _spaced(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a line of words, of a log or for a shell, scrubbed as a command line; its white space stays."""
    for secret in secrets:
        text = text.replace(secret, SCRUBBED)  # here, since it may have white space
    if ":" in text:
        text = _STATED.sub(_stated, text)
    parts = re.split(r"(\s+)", text)
    parts[::2] = scrub_command(parts[::2], secrets)
    return "".join(parts)


def scrub_folder(folder: Path, secrets: Sequence[str] = ()) -> list[str]:
    """Scrub every file of a pass in place and return a line for each that had to be removed or still holds a secret.

    A database or JSON file that cannot be read cannot be scrubbed either: it is deleted, because it may hold the
    environment.

    Raises:
        RocattnError: When a scrubbed file cannot be written.
    """
    removed = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        how: Callable[[Path, Sequence[str]], None] | None = None
        if path.suffix == ".db" or _is_sqlite(path):
            how = _database
        elif path.suffix == ".json":
            how = _json
        elif path.suffix in _TEXT_SUFFIXES or path.name == "sysinfo.csv":
            how = _text
        try:
            if how is not None and path.stat().st_size:
                how(path, secrets)
            if _holds(path, secrets):
                removed.append(f"{path.name} holds the value of a secret variable: do not publish it")
        except (sqlite3.Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            path.unlink()
            for sidecar in ("-journal", "-wal", "-shm"):
                path.with_name(path.name + sidecar).unlink(missing_ok=True)
            removed.append(f"{path.name} cannot be read ({error}), so it was removed: it may hold the environment")
    return removed


def _holds(path: Path, secrets: Sequence[str]) -> bool:
    """Say whether a file has one of these values anywhere in it."""
    if not secrets or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(os.fsencode(secret)) >= 0 for secret in secrets)


def _is_sqlite(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"
    return False


def _database(path: Path, secrets: Sequence[str]) -> None:
    """Scrub the process tables of a rocpd database, and rewrite the file so that no old page is left in it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name.startswith(("rocpd_info_", "rocpd_metadata"))
        ]
        for table in tables:
            _table(connection, table, secrets)
        connection.commit()
        connection.execute("VACUUM")


def _table(connection: sqlite3.Connection, table: str, secrets: Sequence[str]) -> None:
    quoted = '"' + table.replace('"', '""') + '"'
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({quoted})")]
    for column in set(columns) & (_ENVIRONMENTS | _COMMANDS | {"extdata", "value"}):
        for row_id, value in connection.execute(f'SELECT rowid, "{column}" FROM {quoted}').fetchall():  # noqa: S608 - names from the schema, quoted
            if isinstance(value, bytes):
                value = value.decode(errors="replace")  # noqa: PLW2901 - the same value as text
            if isinstance(value, str) and (new := _cell(column, value, secrets)) != value:
                connection.execute(f'UPDATE {quoted} SET "{column}" = ? WHERE rowid = ?', (new, row_id))  # noqa: S608 - as above


def _cell(column: str, value: str, secrets: Sequence[str]) -> str:
    """Return the scrubbed value of a cell: JSON by its keys, a command line by its words."""
    try:
        decoded = msgspec.json.decode(value.encode())
    except msgspec.DecodeError:
        if column in _ENVIRONMENTS and value:
            return SCRUBBED
        if column in _COMMANDS:
            return _spaced(value, secrets)
        return scrub_text(value, secrets)
    return msgspec.json.encode(_value(column, decoded, secrets)).decode()


def _json(path: Path, secrets: Sequence[str]) -> None:
    """Scrub JSON; of NaN, which JSON does not have and profilers write, a file that is rewritten has null."""
    data = path.read_bytes()
    try:
        scrubbed = any(changed for changed, _ in _pieces("", data, secrets))
    except msgspec.DecodeError:
        from rocattn_profiling.profile.ingest.json_results import with_null  # the readers' package loads pandas

        data = with_null(data)
        scrubbed = any(changed for changed, _ in _pieces("", data, secrets))
    if scrubbed:
        write_pieces(path, (piece for _, piece in _pieces("", data, secrets)))


def _pieces(key: str, data: bytes | msgspec.Raw, secrets: Sequence[str]) -> Iterator[tuple[bool, bytes]]:
    """Yield a JSON value in pieces, scrubbed by the key it stands under, and of each whether it is another than before.

    A results file may have gigabytes, and decoded as a whole it takes eight times as much memory.
    """
    text = memoryview(data)
    start = bytes(text[:1])
    if len(text) > _PIECE_BYTES and start in {b"{", b"["} and key.lower() not in _ENVIRONMENTS | _COMMANDS:
        yield False, start
        between = b""
        if start == b"{":
            for name, inner in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items():
                yield False, between + msgspec.json.encode(name) + b":"
                yield from _pieces(name, inner, secrets)
                between = b","
        else:
            for inner in msgspec.json.decode(data, type=list[msgspec.Raw]):
                yield False, between
                yield from _pieces(key, inner, secrets)
                between = b","
        yield False, b"}" if start == b"{" else b"]"
        return
    decoded = msgspec.json.decode(data)
    scrubbed = decoded if _is_plain(key, bytes(text), secrets) else _value(key, decoded, secrets)
    yield scrubbed is not decoded and scrubbed != decoded, msgspec.json.encode(scrubbed)


def _is_plain(key: str, text: bytes, secrets: Sequence[str]) -> bool:
    """Whether JSON text surely has nothing to scrub: no name that tells, no address, nothing written as an escape."""
    if key.lower() in _ENVIRONMENTS | _COMMANDS or b"\\" in text or b"://" in text:
        return False
    lower = text.lower()
    return not any(name in lower for name in _QUOTED) and not any(os.fsencode(secret) in text for secret in secrets)


def _value(key: str, value: Any, secrets: Sequence[str]) -> Any:
    """Return a decoded JSON value, scrubbed by the key it stands under."""
    name = key.lower()
    if name in _ENVIRONMENTS:
        return _environment(value, secrets)
    if name in _COMMANDS:
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return scrub_command(value, secrets)
        if isinstance(value, str):
            return _spaced(value, secrets)
    if isinstance(value, dict):
        return {name: _value(name, inner, secrets) for name, inner in value.items()}
    if isinstance(value, list):
        return [_value(key, inner, secrets) for inner in value]
    return scrub_text(value, secrets) if isinstance(value, str) else value


def _environment(value: Any, secrets: Sequence[str]) -> Any:
    """Return an environment (object, list of NAME=VALUE, or list of pairs) with the values of ROCm's variables only."""
    if isinstance(value, dict):
        return {name: _kept(name, inner, secrets) for name, inner in value.items()}
    if isinstance(value, list):
        return [_environment(entry, secrets) if isinstance(entry, dict) else _entry(entry, secrets) for entry in value]
    return _entry(value, secrets) if isinstance(value, str) else value


def _entry(entry: Any, secrets: Sequence[str]) -> Any:
    if not isinstance(entry, str):
        return SCRUBBED
    name, equals, value = entry.partition("=")
    return f"{name}={_kept(name, value, secrets)}" if equals else SCRUBBED


def _kept(name: str, value: Any, secrets: Sequence[str]) -> Any:
    if _TELLING.fullmatch(name) and not is_secret(name) and isinstance(value, str):
        return scrub_text(value, secrets)
    return SCRUBBED


def _text(path: Path, secrets: Sequence[str]) -> None:
    """Scrub a text file; one that is too large to hold is cut, because it is a log whose start and end matter."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _LARGEST_TEXT_BYTES:
            data = file.read()
        else:
            half = _LARGEST_TEXT_BYTES // 2
            data = file.read(half) + f"\n... {size - 2 * half} bytes left out ...\n".encode()
            file.seek(size - half)
            data += file.read(half)
    text = data.decode(errors="surrogateescape")
    scrubbed = "\n".join(_lines(text.split("\n"), secrets))
    if size > _LARGEST_TEXT_BYTES or scrubbed != text:
        write_bytes(path, scrubbed.encode(errors="surrogateescape"))


def _lines(lines: Iterable[str], secrets: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a log; an option that stands alone on its line (a YAML list) has its value on the next."""
    hide = False
    for line in lines:
        item = _ITEM.fullmatch(line)
        if hide and item and not _COUNT.fullmatch(item[2]):
            yield f"{item[1]}{SCRUBBED}"
        else:
            yield _line(line, secrets)
        hide = item is not None and item[2].startswith("-") and is_secret(item[2].lstrip("-"))


def _line(line: str, secrets: Sequence[str]) -> str:
    """Return a line of a log without secrets; NAME=VALUE and --option VALUE are taken word by word."""
    if "=" not in line and "-" not in line and ":" not in line and not secrets:
        return line
    return _spaced(line, secrets)
