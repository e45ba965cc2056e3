#!/usr/bin/env bash
# Builds wheels from source with --no-build-isolation, the same bytes on every build; stages `verl` and `sdists` run it.
#
#   sources.sh DIR SHA256      the source tree in DIR; the wheel must have this hash
#   sources.sh -               the archives that SDISTS names, lines `name==version --hash=sha256:…`, from the index
#
# Environment: SOURCE_DATE_EPOCH; STRIP, paths to leave out of DIR. The venv of this stage holds the pinned build tools.
set -euo pipefail
umask 022
[[ $# -ge 1 ]] || { echo "usage: $0 DIR SHA256 | -" >&2 && exit 2; }
readonly python=/opt/verl/bin/python from=$1 wanted=${2-}
export TZ=UTC LC_ALL=C.UTF-8 PYTHONHASHSEED=0 HOME=/build PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1
[[ ! -s /run/secrets/ca ]] || export PIP_CERT=/run/secrets/ca

fail() { # WHAT DO
	printf 'sources: error: %s\n  do:    %s\n' "$1" "$2" >&2
	exit 1
}

if [[ $from == - ]]; then
	mkdir -p /build /out
	[[ -n ${SDISTS-} ]] || exit 0 # everything in this lock is a wheel
	[[ ! -s /run/secrets/pip_conf ]] || PIP_CONFIG_FILE=/run/secrets/pip_conf
	printf '%s\n' "$SDISTS" >/build/sdists.txt
	exec "$python" -m pip wheel --quiet --no-build-isolation --no-deps --no-binary :all: --no-cache-dir \
		--require-hashes --requirement /build/sdists.txt --wheel-dir /out
fi

[[ -e $from/setup.py || -e $from/pyproject.toml ]] || fail "the context verl-source holds no Python project" \
	"give the tag's tree: --set '*.contexts.verl-source=DIR'"
mkdir -p /build /out
cp -r "$from" /build/source
for name in ${STRIP-}; do rm -rf "/build/source/${name:?}"; done
cd /build/source
# The wheel's zip entries carry modes; those of a checkout depend on whoever made it.
find . -type d -exec chmod 755 {} + -o -type f -perm /100 -exec chmod 755 {} + -o -type f -exec chmod 644 {} +
"$python" -m pip wheel --quiet --no-build-isolation --no-deps --no-index --no-cache-dir --wheel-dir /out .
made=(/out/*.whl)
have=$(sha256sum "${made[0]}" | cut -d' ' -f1)
[[ $have == "$wanted" ]] || fail "the wheel built from this source has sha256 $have, the lock says $wanted" \
	"is this the source of the lock's tag? Build it from the release sdist: unpack it, --set '*.contexts.verl-source=DIR'"
