#!/usr/bin/env bash
# Makes a base able to compile CUDA extensions: nvcc from the context `cuda`, g++ from the distribution; the stage
# `toolchain` runs it.
#
#   toolchain.sh CUDA_DIR DEBS_DIR
#
# CUDA_DIR is /usr/local of an image that has the toolkit (nvidia/cuda:…-devel), or what toolchain-debian.sh made.
# DEBS_DIR holds packages to install where the base has no apt, or is empty. Environment: CUDA, the stack's "12.1".
set -euo pipefail
umask 022
[[ $# -eq 2 ]] || { echo "usage: $0 CUDA_DIR DEBS_DIR" >&2 && exit 2; }
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
here=$(dirname -- "$(readlink -f -- "$0")")
readonly here from=$1 debs=$2

fail() { # WHAT DO
	printf 'toolchain: error: %s\n  do:    %s\n' "$1" "$2" >&2
	exit 1
}

shopt -s nullglob
kits=("$from"/cuda-[0-9]*.[0-9]*)
[[ ${#kits[@]} -eq 1 ]] || fail "the context cuda has ${#kits[@]} folders /usr/local/cuda-X.Y instead of one" \
	"give an image nvidia/cuda:…-devel, or the folder that docker/toolchain-debian.sh made"
version=$("${kits[0]}/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')
if [[ ${version%.*} != "${CUDA%.*}" ]]; then
	fail "nvcc is of CUDA $version, the stack of CUDA $CUDA: another major version" "give a toolkit of CUDA ${CUDA%.*}"
elif [[ $version != "$CUDA" ]]; then
	echo "toolchain: warning: nvcc is of CUDA $version, the stack of CUDA $CUDA; same major, so its code loads" >&2
fi
cp -a "${kits[0]}" /usr/local/
ln -sfn "$(basename "${kits[0]}")" /usr/local/cuda

shopt -s nullglob
packages=("$debs"/*.deb)
if command -v g++ >/dev/null; then
	:
elif [[ ${#packages[@]} -gt 0 ]]; then
	dpkg --install "${packages[@]}" >/dev/null
else
	PACKAGES=g++ "$here/base.sh" # with the mirror, CA and proxy that an admin gives
fi
mkdir -p /var/lib/dpkg /etc/alternatives # `devel` takes both along, also of a base that is not Debian's
g++ --version | sed -n 1p
