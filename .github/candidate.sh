#!/usr/bin/env bash
# Builds and tests an image, without any right: `.github/candidate.sh STACK BASE OUT`.
#
# OUT gets `digest`, and `smoke.json`, the report of the smoke tests. Exit status: that of what failed first.
set -euo pipefail
stack=$1 base=$2 out=$3
mkdir -p -- "$out"

.venv/bin/verlstack build "$stack" --base "$base"
.venv/bin/verlstack prove "$stack"
.venv/bin/verlstack smoke "$stack" --quick --report "$out/report"
cp -- "$out/report/smoke.json" "$out/smoke.json"
jq --raw-output '.manifests[0].digest' "dist/$stack/index.json" >"$out/digest"
