#!/usr/bin/env bash
# Proposes the entries of docs/images.md as a pull request: `.github/propose.sh TAG FILE…`, each FILE from publish.sh.
#
# Wants `gh` with GH_TOKEN, which may write contents and pull requests. Run again, it renews its own branch.
set -euo pipefail
tag=$1
shift
branch=published-$tag files=(constraints/releases.toml docs/images.md)

.venv/bin/python .github/record.py "$@"
if git diff --quiet -- "${files[@]}"; then
    echo "all of it is in docs/images.md already"
    exit 0
fi
git switch --quiet --create "$branch"
git -c user.name="github-actions[bot]" -c user.email="41898282+github-actions[bot]@users.noreply.github.com" \
    commit --quiet --message "docs/images.md: what was published as $tag" -- "${files[@]}"
gh auth setup-git
git push --quiet --force origin "HEAD:refs/heads/$branch"
if [ "$(gh pr list --head "$branch" --json number --jq length)" = 0 ]; then
    gh pr create --head "$branch" --title "Published images of $tag" --body \
        "Made by the workflow publish, after each image was pulled and verified on another machine. Digests and locks are in the table."
fi
