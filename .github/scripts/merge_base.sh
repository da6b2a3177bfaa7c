#!/usr/bin/env bash
# Write the newest common commit of $BASE (a branch or a commit) and HEAD to the step's output `base`. A change is gated
# against it, so that commits on the base branch alone do not count for or against the change.
set -euo pipefail
wanted=${BASE:?name a branch or a commit in BASE}
known() { git rev-parse --verify --quiet --end-of-options "$1^{commit}" >/dev/null; }
known "$wanted" || wanted=origin/$wanted
known "$wanted" || {
    echo "merge_base.sh: there is no branch or commit $BASE here (rewritten since?): run it by hand with a branch as base" >&2
    exit 4
}
found=$(git merge-base "$wanted" HEAD) || {
    echo "merge_base.sh: HEAD and $BASE have no common commit here" >&2
    exit 4
}
if [ "$found" = "$(git rev-parse HEAD)" ]; then
    # A commit that is already on the base branch is measured against its parent.
    found=$(git rev-parse --verify --quiet 'HEAD^1') || {
        echo "merge_base.sh: HEAD is the first commit: there is nothing to compare it with" >&2
        exit 4
    }
fi
echo "base=$found" >>"$GITHUB_OUTPUT"
echo "merge_base.sh: gating against $found"
