"""Code objects by the pinned compiler, made once a session."""

import pytest

from ..code_files import compile_text, pinned


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Return a function: target and version -> code object and assembly by the pinned compiler, made once."""
    compiler, folder, made = pinned(), tmp_path_factory.mktemp("built"), {}

    def build(target, version=5):
        if (target, version) not in made:
            option = f"-mcode-object-version={version}"
            made[target, version] = compile_text(compiler.argv, compiler.linker, folder, target, option)
        return made[target, version]

    return build
