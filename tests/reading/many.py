"""Read mutants of many files in many processes: ``python -m tests.reading.many --jobs 16``.

With ``--files DIR`` the whole files are kept, so that another machine needs neither compilers nor the libraries that
made them. It prints a line for each reader; status 1 when one did wrong.
"""

import argparse
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from .mutants import failures
from .readers import READERS

CHUNK = 250  # seeds of one task: many, so that no process waits for the longest


def whole_files(name, folder):
    """Return the whole files of a reader: those kept in a folder, or, if it is not there yet, new ones put there."""
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as made:
            files = READERS[name].make(Path(made))
        folder.mkdir(parents=True)
        for number, data in enumerate(files):
            (folder / f"{number:03}").write_bytes(data)
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def read_some(name, seeds, files):
    """Return the seeds whose mutants a reader did not end with a value or a line, with what it did."""
    with tempfile.TemporaryDirectory() as folder:
        return failures(READERS[name].read(Path(folder)), seeds, files)


def main(words=None):
    """Read mutants as the command line says and return a status."""
    parser = argparse.ArgumentParser(prog="python -m tests.reading.many", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"readers, all by default: {', '.join(READERS)}")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--mutants", type=int, default=20_000, help="of each reader (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default: %(default)s)")
    parser.add_argument("--files", type=Path, metavar="DIR", help="the whole files: made there, or found there")
    options = parser.parse_args(words)
    if unknown := set(options.names) - set(READERS):
        parser.error(f"no reader is called {', '.join(sorted(unknown))}")
    last, wrong = options.first + options.mutants, 0
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as kept, ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        tasks = {}
        for name in options.names or READERS:
            files = whole_files(name, (options.files or Path(kept)) / name)
            starts = range(options.first, last, CHUNK)
            tasks[name] = [pool.submit(read_some, name, range(at, min(at + CHUNK, last)), files) for at in starts]
        for name, begun in tasks.items():
            found = {seed: told for task in begun for seed, told in task.result().items()}
            wrong += len(found)
            print(f"{name}: {options.mutants - len(found)} of {options.mutants} mutants are a value or one line")
            for seed, told in list(found.items())[:10]:
                print(f"  seed {seed}: {told}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
