#!/usr/bin/env bash
# Make .venv with exactly the tools of constraints/tools.txt, hash-checked; run through `make tools`.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'tools: error: %s\n  do:    %s\n' "$1" "$2" >&2
    exit 1
}

# verlstack needs Python 3.11 (tomllib). Debian's python3 comes without ensurepip unless python3-venv is there.
usable() {
    "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate found
    for candidate in python3 /usr/bin/python3 python3.{11..14} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[1-4].*/bin/python3; do
        found=$(command -v "$candidate") || continue
        case $found in "$PWD/.venv/"*) continue ;; esac # make puts it first on PATH, and it is about to go
        if usable "$found"; then
            echo "$found"
            return
        fi
    done
    return 1
}

python=$(find_python) || {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "no Python 3.11 or later with venv and ensurepip" "install one (Debian: apt-get install python3-venv)"
    fi
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y python3-venv >/dev/null
    python=$(find_python) || fail "python3-venv did not bring a Python 3.11 or later" "install one by hand"
}

echo "tools: $("$python" --version) at $python"
rm -rf .venv
"$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints/tools.txt
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
touch .venv/ready
