#!/usr/bin/env bash
# The weekly proof of one published image: `.github/reproduce.sh REFERENCE LOCK REPORT`.
#
# Checks out, beside this one, the commit whose lock the image was made from (`sha256:…`), sets up that commit's own
# tools, and lets `verlstack reproduce` compose the image again. REPORT gets what it says. Exit status: its own, 0 only
# for identical; 3: no commit here has that lock.
set -euo pipefail
reference=$1 lock=${2#sha256:} report=$3
[[ $lock =~ ^[0-9a-f]{64}$ ]] || { echo "not the SHA-256 of a lock: $2" >&2; exit 2; }
report=$(realpath -- "$report")

commit=$(git log --reverse --format=%H -S "$lock" -- constraints | sed -n 1p)
if [ -z "$commit" ]; then
    echo "no commit here has the lock $lock: was its branch deleted, or is this a shallow clone?" | tee "$report" >&2
    exit 3
fi
then=$(mktemp -d)
trap 'git worktree remove --force "$then/checkout"; rm -rf "$then"' EXIT
git worktree add --quiet --detach "$then/checkout" "$commit"
cd "$then/checkout"
make --silent tools host-tools >&2
status=0
.venv/bin/verlstack reproduce "$reference" >"$report" 2>"$then/said" || status=$?
cat -- "$then/said" >&2
sed -n '/^verlstack: error:/,$p' "$then/said" >>"$report" # an error is told there, too, for the issue quotes the report
cat -- "$report"
exit "$status"
