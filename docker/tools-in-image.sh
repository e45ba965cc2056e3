#!/usr/bin/env bash
# Puts uv, by hash, into /tools; the stage `tools` runs it. pip is the base's, Ubuntu's, or the lock's wheel in /run/pip.
#
# Environment: UV, a line `uv==… --hash=sha256:… …`. Secrets: pip_conf and ca, if given.
set -euo pipefail
umask 022
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore DEBIAN_FRONTEND=noninteractive
[[ ! -s /run/secrets/pip_conf ]] || PIP_CONFIG_FILE=/run/secrets/pip_conf
[[ ! -s /run/secrets/ca ]] || export PIP_CERT=/run/secrets/ca
shopt -s nullglob

wheels=(/run/pip/pip-*.whl)
if [[ ${#wheels[@]} -gt 0 ]]; then
	pip=(/opt/verl/bin/python "${wheels[0]}/pip") # a wheel is a zip archive, and pip can be run out of one
elif python3 -m pip --version >/dev/null 2>&1; then
	pip=(python3 -m pip)
elif command -v apt-get >/dev/null; then
	PACKAGES=python3-pip "$(dirname -- "$(readlink -f -- "$0")")/base.sh" # with an admin's mirror, CA and proxy
	pip=(python3 -m pip)
else
	printf 'tools: error: the base has neither pip nor apt-get\n  do:    build through verlstack, which lends pip\n' >&2
	exit 1
fi
printf '%s\n' "$UV" >/tmp/uv.txt
"${pip[@]}" install --quiet --no-deps --only-binary :all: --require-hashes --target /tmp/uv --requirement /tmp/uv.txt
mkdir -p /tools
mv /tmp/uv/bin/uv /tools/uv
[[ ${#wheels[@]} -eq 0 ]] || cp "${wheels[0]}" /tools/
