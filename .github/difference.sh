#!/usr/bin/env bash
# Says in an issue that an image was not reproduced: `.github/difference.sh REFERENCE TAG REPORT`.
#
# An open issue about the same tag gets a comment. Wants `gh` with GH_TOKEN, which may write issues, GH_REPO, and the address
# of the run in RUN.
set -euo pipefail
reference=$1 tag=$2 report=$3
touch -- "$report" # the proof may have ended before it could say anything
{
    # shellcheck disable=SC2016 # Markdown's quotes
    printf '`%s` was not reproduced, see %s\n\n```\n' "$reference" "$RUN"
    head -c 50000 -- "$report" # an issue takes 65,536 characters
    printf '\n```\n'
} >body.md
title="$tag is not reproduced"
open=$(gh issue list --state open --search "in:title \"$title\"" --json number --jq '.[0].number // empty')
if [ -n "$open" ]; then
    gh issue comment "$open" --body-file body.md
else
    gh issue create --title "$title" --body-file body.md
fi
