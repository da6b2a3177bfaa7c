"""Remove secrets from profilers' output before any of it can be published.

Nothing is guessed; only known items are removed:

- environments and the machine's names, by column or key: rocprofv3 stores both in rocpd databases and JSON files;
- in logs, settings and stored command lines: the values of the caller's secret variables and of the command's secret
  options.

A secret known only to the application is not recognized when it is printed. The rest of a results file, tables (CSV)
and binary traces are not rewritten; `scrub_folder` reports files that still contain a variable's secret value.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocattn_profiling.base.files import write_bytes

SCRUBBED = "<scrubbed>"
_SECRET = re.compile(
    r"(?:TOKEN|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?|COOKIE|API_?KEY|_PASS|_PWD|(?<![^\W_])(?:KEY|AUTH|PAT))$",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"\w://([^/\s]+)@")  # to the last @: a password may also contain one
_BETWEEN_WORDS = re.compile(r"[\s,;&?'\"]+")
_LEAST_SECRET = 6  # shorter values would match unrelated text
_LONGEST_NAME = 60  # of a variable or an option, to its last character
_ENVIRONMENTS = {"environment", "environ", "env"}
_MACHINE = {"hostname", "host_name", "machine_id", "domain_name"}
_COMMANDS = {"command", "cmdline", "command_line", "argv", "remaining"}
_KEY = re.compile(rf'"({"|".join([*_ENVIRONMENTS, *_MACHINE, *_COMMANDS])})"\s*:\s*', re.IGNORECASE)
_EMPTY: dict[type[Any], Any] = {dict: {}, list: [], str: ""}
_DECODER = json.JSONDecoder(strict=False)
_TEXT_SUFFIXES = {".txt", ".log", ".yaml", ".yml", ".stderr", ".stdout"}
_LARGEST_TEXT_BYTES = 1 << 28


@dataclass(frozen=True)
class Secrets:
    """The values to remove.

    Attributes:
        values: Values of the caller's secret variables.
        arguments: Values of the command's secret options.
    """

    values: frozenset[str] = frozenset()
    arguments: frozenset[str] = frozenset()


def secrets_of(environment: Mapping[str, str], command: Sequence[str] = ()) -> Secrets:
    """Return the secrets in an environment and a command line.

    Values of fewer than six characters are left out, since they would match unrelated text.
    """
    addresses = {text for value in (*environment.values(), *command) for text in _ADDRESS.findall(value)}
    variables = {value for name, value in environment.items() if _is_secret(name)}
    options = {*_options(command), *_options(_BETWEEN_WORDS.split(" ".join(command)))}
    return Secrets(
        frozenset(value for value in variables | addresses if len(value) >= _LEAST_SECRET),
        frozenset(value for value in options if len(value) >= _LEAST_SECRET),
    )


def _is_secret(name: str) -> bool:
    """Return whether a variable or an option of this name has a secret value."""
    return _SECRET.search(name.replace("-", "_")) is not None


def _options(words: Sequence[str]) -> Iterator[str]:
    """Yield the values of ``--token VALUE``, ``--token=VALUE`` and ``TOKEN=VALUE``."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        yield from (word[m.end() :] for m in re.finditer("=", word) if _is_secret(word[: m.start()][-_LONGEST_NAME:]))
        if word.startswith("-") and _is_secret(word) and not following.startswith("-"):
            yield following


def scrub_text(text: str, secrets: Secrets) -> str:
    """Return a log or a command line without the secrets."""
    for value in sorted(secrets.values | secrets.arguments, key=lambda value: (-len(value), value)):
        text = text.replace(value, SCRUBBED)
    return text


def scrub_folder(folder: Path, secrets: Secrets) -> list[str]:
    """Scrub a pass's files in place; return a line for each file that was removed or still contains a secret.

    A database or JSON file that cannot be read cannot be scrubbed: it is deleted, because it may contain the
    environment.

    Raises:
        RocattnError: When a scrubbed file cannot be written.
    """
    lines = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            continue
        try:
            if path.suffix == ".db" or _is_sqlite(path):
                _scrub_database(path, secrets)
            elif path.suffix == ".json":
                _rewrite(path, path.read_bytes(), lambda text: _scrub_json(text, secrets))
            elif path.suffix in _TEXT_SUFFIXES or path.name == "sysinfo.csv":
                _rewrite(path, _log(path), lambda text: scrub_text(text, secrets))
            if _holds(path, secrets.values):
                lines.append(f"{path.name} contains the value of a secret variable: do not publish it")
        except (sqlite3.Error, ValueError, RecursionError) as error:
            path.unlink()
            for sidecar in ("-journal", "-wal", "-shm"):
                path.with_name(path.name + sidecar).unlink(missing_ok=True)
            lines.append(f"{path.name} cannot be read ({error}), so it was removed: it may contain the environment")
    return lines


def _holds(path: Path, values: frozenset[str]) -> bool:
    """Return whether a file contains one of these values."""
    if not values or not path.exists():
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(os.fsencode(value)) >= 0 for value in values)


def _is_sqlite(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"
    return False


def _rewrite(path: Path, data: bytes, scrub: Callable[[str], str]) -> None:
    """Rewrite a file if scrubbing changes it; bytes that are not UTF-8 are kept."""
    scrubbed = scrub(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    if scrubbed != data or len(data) != path.stat().st_size:
        write_bytes(path, scrubbed)


def _log(path: Path) -> bytes:
    """Return a text file, or only the start and the end of a very large one."""
    size, half = path.stat().st_size, _LARGEST_TEXT_BYTES // 2
    with path.open("rb") as file:
        if size <= _LARGEST_TEXT_BYTES:
            return file.read()
        start = file.read(half)
        file.seek(size - half)
        return b"%b\n... %d bytes left out ...\n%b" % (start, size - 2 * half, file.read(half))


def _scrub_json(text: str, secrets: Secrets) -> str:
    """Remove environments, the machine's names and command lines' secrets from JSON, without parsing the rest.

    Raises:
        ValueError: When an environment or a command line is truncated.
    """
    pieces, at = [], 0
    for key in _KEY.finditer(text):
        if key.start() >= at:  # otherwise it is inside a value that was removed
            value, end = _DECODER.raw_decode(text, key.end())
            is_command = key[1].lower() in _COMMANDS
            kept = _scrub_strings(value, secrets) if is_command else _EMPTY.get(type(value))
            pieces += [text[at : key.end()], json.dumps(kept)]
            at = end
    return "".join([*pieces, text[at:]])


def _scrub_strings(value: Any, secrets: Secrets) -> Any:
    if isinstance(value, list):
        return [_scrub_strings(inner, secrets) for inner in value]
    if isinstance(value, dict):
        return {name: _scrub_strings(inner, secrets) for name, inner in value.items()}
    return scrub_text(value, secrets) if isinstance(value, str) else value


def _scrub_database(path: Path, secrets: Secrets) -> None:
    """Scrub the process tables of a rocpd database, and rewrite the file so that no old page remains."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in names:
            if table.startswith(("rocpd_info_", "rocpd_metadata")):
                _scrub_table(connection, '"' + table.replace('"', '""') + '"', secrets)
        connection.commit()
        connection.execute("VACUUM")


def _scrub_table(connection: sqlite3.Connection, table: str, secrets: Secrets) -> None:
    columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    for column in columns & (_ENVIRONMENTS | _MACHINE | _COMMANDS | {"extdata", "value"}):
        rows = connection.execute(f'SELECT rowid, "{column}" FROM {table}').fetchall()  # noqa: S608 - names from the schema, quoted
        for row, cell in rows:
            text = cell.decode(errors="replace") if isinstance(cell, bytes) else cell
            if isinstance(text, str) and (scrubbed := _scrub_cell(column, text, secrets)) != text:
                connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', (scrubbed, row))  # noqa: S608 - as above


def _scrub_cell(column: str, text: str, secrets: Secrets) -> str:
    if column in _ENVIRONMENTS:
        return "{}"
    if column in _MACHINE:
        return SCRUBBED
    return scrub_text(text if column in _COMMANDS else _scrub_json(text, secrets), secrets)
