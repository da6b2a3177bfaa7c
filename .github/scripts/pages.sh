#!/usr/bin/env bash
# The public site on branch gh-pages: `pages.sh fetch` downloads its asv results, including the noise record;
# `pages.sh publish SITE [RESULTS]` stores the site and the results as one commit without history (results grow, and old
# nightly copies need not stay).
# GITHUB_TOKEN, if set, is passed to git in the environment, where no process list shows it.
set -euo pipefail
store=.asv/results
remote=${PAGES_REMOTE:-origin}

if [ -n "${GITHUB_TOKEN:-}" ]; then
    header=$(printf 'x-access-token:%s' "$GITHUB_TOKEN" | base64 -w0)
    export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="http.${GITHUB_SERVER_URL:-https://github.com}/.extraheader"
    export GIT_CONFIG_VALUE_0="AUTHORIZATION: basic $header"
fi

case "${1:-} ${2:-}" in
"fetch ")
    # Only trust the remote that there is no branch: after a failed fetch, `publish` would replace all earlier results
    # with those of one night.
    if ! found=$(git ls-remote --heads "$remote" refs/heads/gh-pages) ||
        ! { [ -z "$found" ] || git fetch --quiet --depth=1 "$remote" refs/heads/gh-pages; }; then
        echo "pages.sh: the results of earlier nights cannot be fetched from $remote: run this again" >&2
        exit 3
    fi
    if [ -z "$found" ]; then
        echo "pages.sh: there is no gh-pages branch yet"
    elif git rev-parse --verify --quiet FETCH_HEAD:results >/dev/null; then
        mkdir -p "$store"
        git archive FETCH_HEAD:results | tar -x -C "$store"
    else
        echo "pages.sh: gh-pages keeps no results yet"
    fi
    ;;
"publish "?*)
    site=$2 store=${3:-$store}
    if [ ! -s "$site/index.html" ]; then
        echo "pages.sh: $site has no index.html: nothing is published" >&2
        exit 3
    fi
    # A separate tree from a separate index: neither the checkout nor its index changes.
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cp -R "$site" "$work/tree"
    if [ -d "$store" ]; then cp -R "$store" "$work/tree/results"; fi
    touch "$work/tree/.nojekyll"
    export GIT_INDEX_FILE="$work/index"
    git --work-tree="$work/tree" add --all --force .
    tree=$(git write-tree)
    unset GIT_INDEX_FILE
    commit=$(git -c user.name=rocattn -c user.email=rocattn@users.noreply.github.com \
        commit-tree "$tree" -m "The site of $(git rev-parse HEAD)")
    git push --quiet --force "$remote" "$commit:refs/heads/gh-pages"
    echo "pages.sh: published $commit"
    ;;
*)
    echo "usage: pages.sh fetch | publish SITE [RESULTS]" >&2
    exit 4
    ;;
esac
