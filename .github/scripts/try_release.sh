#!/usr/bin/env bash
# What is about to be published: `try_release.sh named DIST` compares the files' names with the tag in TAG, and
# `try_release.sh installed DIST` installs the wheel into an empty environment and uses it outside of the checkout, first
# without a compiler.
set -euo pipefail

case "${1:-} ${2:-}" in
"named "?*)
    version=${TAG#v}
    for file in "$2/rocattn-$version-py3-none-any.whl" "$2/rocattn-$version.tar.gz"; do
        if [ ! -s "$file" ]; then
            echo "try_release.sh: the tag is $TAG, but there is no $file: the version in pyproject.toml is another" >&2
            exit 1
        fi
    done
    ;;
"installed "?*)
    wheel=$(realpath "$2"/*.whl)
    cd "$(mktemp -d)"
    python3 -m venv env
    env/bin/pip install --quiet "$wheel"
    env/bin/rocattn --version
    if ! env/bin/python -c 'from importlib.metadata import metadata; exit(not metadata("rocattn").get_all("Project-URL"))'; then
        echo "try_release.sh: CITATION.cff has no repository-code: the package page would have no links" >&2
        exit 1
    fi
    # With no compiler and nothing in a cache: the wheel carries the CPU kernels.
    env -i HOME="$PWD" PATH=/nonexistent env/bin/python -W error -c '
from numpy import ones
import rocattn
q = ones((1, 8, 1, 64), "float32")
rocattn.attention(q, q, q, backend="cpu-flash")'
    env/bin/pip install --quiet "${wheel}[toolchain]"
    env/bin/rocattn verify --quick
    env/bin/rocattn plan --arch gfx942 --dtype float16 --head-dim 64 --json > plan.json
    env/bin/rocattn kernels build --plan plan.json --out kernels
    env/bin/rocattn kernels audit kernels/*.hsaco
    ;;
*)
    echo "usage: try_release.sh named|installed DIST" >&2
    exit 4
    ;;
esac
