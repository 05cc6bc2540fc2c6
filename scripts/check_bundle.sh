#!/usr/bin/env bash
# Builds the widgets' bundles and fails if the files in their folder were not what the sources build.
# Usage, at the root: scripts/check_bundle.sh lmnb/widgets/static
set -euo pipefail

static=$1
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
cp -R "$static/." "$before"
npm run --silent build
if ! diff -rq "$before" "$static"; then
    echo "$static was not up to date. It is now: commit it." >&2
    exit 1
fi
echo "$static is what its sources build"
