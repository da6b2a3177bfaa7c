"""What ends a command lets it clean up; what was ignored when it was started stays ignored."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rocattn_profiling.base.console import cleanly
from rocattn_profiling.base.journal import keeping

from ..programs import hearing


@pytest.fixture(autouse=True)
def _usual_signals():
    """Under nohup SIGHUP is ignored here."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGTERM, "terminated"), (signal.SIGHUP, "the terminal was closed")]
)
def test_a_command_that_is_ended_unwinds_and_says_what_is_kept(capsys, number, said):
    """With the status that shells expect; afterwards the signal does what it did before."""
    with pytest.raises(SystemExit, match=str(128 + number)), cleanly("plan"):
        signal.raise_signal(number)
    with pytest.raises(SystemExit), cleanly("bench"), keeping(Path("r"), 4, lambda: 2):
        signal.raise_signal(number)
    line = "kept 2 of 4 in r; the same command continues"
    assert capsys.readouterr().err == f"rocattn plan: {said}\nrocattn bench: {said}; {line}\n"
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(number):
    """Of a background job that is not to hear the terminal's Ctrl-C, or one that is to outlive its terminal."""
    former = signal.signal(number, signal.SIG_IGN)
    try:
        with cleanly("bench"):
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, former)


def test_a_failed_program_is_seen_where_sigchld_is_ignored():
    """Some supervisors pass that on; Python then takes every program for one that ended with status 0."""
    program = (
        "import signal, subprocess; from rocattn_profiling.base.console import cleanly\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "with cleanly('ci'): print(subprocess.run(['false']).returncode)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "1\n"


def test_a_program_that_a_thread_waits_for_is_ended():
    """A signal reaches the main thread alone, which would wait for the others: as long as a question may take.

    It comes when the main thread waits: Python does not hear one that comes just as it begins to.
    """
    program = (
        "import concurrent.futures, os, signal, sys\n"
        "from rocattn_profiling.base.process import ask\n"
        "from rocattn_profiling.base.console import cleanly\n"
        "with cleanly('doctor'), concurrent.futures.ThreadPoolExecutor() as pool:\n"
        "    pool.submit(ask, ['sh', '-c', f'sleep 2; kill -HUP {os.getpid()}; exec sleep 900'], timeout_s=900)\n"
    )
    done = subprocess.run([*hearing(signal.SIGHUP), sys.executable, "-c", program], check=False, timeout=300)
    assert done.returncode == 128 + signal.SIGHUP


def test_a_command_runs_in_another_thread(capsys):
    """Which may set no handlers: signals are the main thread's business."""
    ended = []

    def run():
        with cleanly("plan"):
            ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended == [True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_a_compiled_module_started(number):
    """Of msgspec, which drops what is raised while it imports datetime, and crashes where it next looks for a date."""
    program = (
        "import signal, sys, time\n"
        "from rocattn_profiling.base.console import cleanly\n"
        "class Ends:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == 'datetime': signal.raise_signal({int(number)})\n"
        "sys.modules.pop('datetime', None)\n"
        "sys.meta_path.insert(0, Ends())\n"
        "try:\n"
        "    with cleanly('verify'):\n"
        "        import msgspec\n"
        "        time.sleep(60)\n"
        "except (KeyboardInterrupt, SystemExit):\n"
        "    import msgspec\n"
        "    print(msgspec.to_builtins({1}))\n"
    )
    done = subprocess.run(
        [*hearing(number), sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False, timeout=50
    )
    assert (done.returncode, done.stdout) == (0, "[1]\n")


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_while_a_class_is_made_ends_as_any_other(number, ends):
    """Python 3.11 raises a RuntimeError with it as the cause, which would be a bug of ours."""

    class Named:
        def __set_name__(self, *_):
            signal.raise_signal(number)

    with pytest.raises(ends), cleanly("plan"):
        type("Made", (), {"field": Named()})
