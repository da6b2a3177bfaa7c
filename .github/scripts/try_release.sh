#!/usr/bin/env bash
# Check a release before it is published: `try_release.sh named DIST` compares the files' names with the tag in TAG, and
# `try_release.sh installed DIST` installs wheel and sdist into empty environments and uses them outside the checkout.
set -euo pipefail

case "${1:-} ${2:-}" in
"named "?*)
    version=${TAG#v}
    for file in "$2/rocattn-$version-py3-none-any.whl" "$2/rocattn-$version.tar.gz"; do
        if [ ! -s "$file" ]; then
            echo "try_release.sh: the tag is $TAG, but there is no $file: pyproject.toml has a different version" >&2
            exit 1
        fi
    done
    ;;
"installed "?*)
    dist=$(realpath "$2")
    for file in "$dist"/*.whl "$dist"/*.tar.gz; do
        cd "$(mktemp -d)"
        python3 -m venv env
        env/bin/pip install --quiet "${file}[toolchain]"
        env/bin/rocattn --version
        case $file in *.whl) env/bin/rocattn verify --quick ;; esac # with the CPU kernels in the wheel
        env/bin/rocattn plan --arch gfx942 --dtype float16 --head-dim 64 --json > plan.json
        env/bin/rocattn kernels build --plan plan.json --out kernels
        env/bin/rocattn kernels audit kernels/*.hsaco
    done
    ;;
*)
    echo "usage: try_release.sh named|installed DIST" >&2
    exit 4
    ;;
esac
