#!/usr/bin/env bash
# Render each fetched verdict (DIR/NAME.json) as a comment (DIR/NAME.md). The verdicts are untrusted: `rocattn gate comment`
# decodes them strictly and escapes every name. A verdict that it rejects becomes "could not measure" (status 3).
set -euo pipefail
shopt -s nullglob # a run without verdicts
for verdict in "$1"/*.json; do
    status=0
    python3 dev.py rocattn gate comment "$verdict" --out "${verdict%.json}.md" || status=$?
    if [ "$status" != 0 ] && [ "$status" != 3 ]; then
        exit "$status"
    fi
done
