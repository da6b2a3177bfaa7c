"""Environment variables of the library: each is obeyed, or refused in one line that says what is possible."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

import rocattn
from rocattn import settings
from rocattn.backends import BACKENDS, cpu_flash
from rocattn.errors import SettingError
from rocattn.toolchain import compilers, cpu_library, host
from rocattn.varlen import attention_varlen

ROWS = np.ones((1, 3, 1, 4), np.float32)
WRONG = {
    "ROCATTN_COMPILER": "no-such-compiler",
    "ROCATTN_CPU_ISA": "neon-9",
    "ROCATTN_CPU_LIBRARY": "/no/such/library.so",
    "ROCATTN_NUM_THREADS": "two",
    "ROCATTN_USE_FLASH_ATTENTION": "maybe",
    "ROCATTN_GPU_POISON": "maybe",
    "ROCATTN_LINE_TABLES": "maybe",
    "ROCATTN_OFFLINE": "maybe",
    "ROCATTN_CACHE_GIB": "big",
    "ROCATTN_HOSTGPU_OPTIMIZE": "fast",
    "ROCATTN_HOSTGPU_ORDER": "random",
    "ROCATTN_HOSTGPU_CHECKS": "some",
}


@pytest.fixture(params=WRONG)
def wrong(request, monkeypatch):
    """One variable that cannot be obeyed, in what is a new process as far as the library goes."""
    for module, name in ((cpu_flash, "_library"), (settings, "check")):
        monkeypatch.setattr(module, name, functools.cache(getattr(module, name).__wrapped__))
    for home, name in ((host, "host_isa"), (compilers, "choose_compiler"), (compilers, "choose_host_compiler")):
        fresh = functools.cache(getattr(home, name).__wrapped__)
        for module in (compilers, cpu_library, host):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, fresh)
    monkeypatch.setenv(request.param, WRONG[request.param])
    return request.param


@pytest.mark.parametrize(
    "call",
    [
        lambda: rocattn.attention(ROWS, ROWS, ROWS),
        lambda: rocattn.attention_backward(*(ROWS,) * 5, np.ones((1, 1, 3), np.float32)),
        lambda: attention_varlen(*(ROWS[0],) * 3, *(np.array([0, 3], np.int32),) * 2),
        lambda: rocattn.KVCache(1, 1, 4, capacity=8).attend(ROWS),
    ],
    ids=["attention", "backward", "varlen", "kv-cache"],
)
def test_a_call_refuses_a_variable_that_cannot_be_obeyed(wrong, call):
    """In one line, with the variable, its value and what is possible; never computed by something else in silence."""
    with pytest.raises(SettingError) as caught:
        call()
    assert str(caught.value).startswith(wrong)
    assert WRONG[wrong] in str(caught.value)
    assert "unset it" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_numpy_backend_by_name_does_not_ask(wrong):
    """None of them is about it."""
    assert np.array_equal(rocattn.attention(ROWS, ROWS, ROWS, backend="cpu"), ROWS)


def test_a_switch_is_on_or_off_in_the_usual_words(monkeypatch):
    """Empty is as if it were unset."""
    for text, value in {"1": True, "ON": True, "0": False, "no": False, "": True}.items():
        monkeypatch.setenv(settings.USE_FLASH_ATTENTION, text)
        assert settings.switch(settings.USE_FLASH_ATTENTION, default=True) is value
        assert BACKENDS.get("gpu").use_flash_attention is value


@pytest.mark.parametrize("name", ["ROCATTN_CPU_ISA", "ROCATTN_COMPILER", "ROCATTN_NUM_THREADS"])
def test_a_command_ends_with_status_4(name, tmp_path):
    """One line on stderr, and nothing measured."""
    code = "import sys; from rocattn_profiling.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "bench", "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=os.environ | {name: WRONG[name]}, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith(f"rocattn bench: {name} ")
    assert len(done.stderr.splitlines()) == 1
