#!/usr/bin/env bash
# Installs the wheels of one layer with uv into /out, by hash, and gives /out its final form; the `layer-…` stages run it.
#
#   wheels.sh REQUIREMENTS      lines `name==version --hash=sha256:…`, and `# leave out: PACKAGE/GLOB`, a comment to uv,
#                               for files of a wheel that are not wanted; none: only what is in /out already
#
# Environment: PYTHON, the stack's "3.10". /run/tools/uv; /run/built, wheels made from source, and secrets uv_toml and ca, if
# given.
set -euo pipefail
umask 022
[[ $# -eq 1 ]] || { echo "usage: $0 REQUIREMENTS" >&2 && exit 2; }
here=$(dirname -- "$(readlink -f -- "$0")")

install() {
	# uv's cache lies beside its target, so that files are linked and not copied; it goes with the stage.
	export UV_CACHE_DIR=/out.cache UV_NO_PROGRESS=1 UV_LINK_MODE=hardlink
	[[ ! -s /run/secrets/uv_toml ]] || export UV_CONFIG_FILE=/run/secrets/uv_toml
	[[ ! -s /run/secrets/ca ]] || export SSL_CERT_FILE=/run/secrets/ca
	local built=()
	[[ ! -d /run/built ]] || built=(--find-links /run/built)
	/run/tools/uv pip install --quiet --python /opt/verl/bin/python --prefix /out/opt/verl --no-deps --only-binary :all: \
		--require-hashes "${built[@]}" --requirements /dev/stdin <<<"$1"
}

mkdir -p /out
[[ -z $1 ]] || install "$1"
PYTHONHASHSEED=0 /opt/verl/bin/python -S -s -B "$here/finish.py" /out "$PYTHON" "$1"
