#!/usr/bin/env bash
# Fetches nvcc 12.4 and g++ from the machine's own Debian mirror, for a compile where no CUDA image can be pulled.
#
#   docker/toolchain-debian.sh DIR STATUS
#
# STATUS is /var/lib/dpkg/status of the base, which says what is installed there already. Afterwards
#   DIR/cuda/usr/local/cuda-12.4   the toolkit as NVIDIA lays it out: the context `cuda`
#   DIR/debs/*.deb                 g++ and what it needs beyond the base: the context `debs`
#   DIR/packages                   each package with its version and SHA-256
# Needs a Debian 12 or 13 machine, its apt sources and its keyring; not root. Everything is checked by Debian's signature.
#
# Debian 12's own toolkit is 11.8. The one of Debian 13 (non-free) is NVIDIA's own binaries, which need no glibc above
# 2.17, so it is only unpacked; g++ is the base's own release's, so that what it compiles needs no newer libstdc++.
set -euo pipefail
umask 022
export LC_ALL=C
[[ $# -eq 2 ]] || { printf 'usage: %s DIR STATUS\n' "$0" >&2 && exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd) status=$2
readonly dir status suite=trixie version=12.4
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg
readonly kit=(nvidia-cuda-toolkit nvidia-cuda-dev libnvvm4 libcudart12 libcub-dev libthrust-dev libcu++-dev)

fail() { # WHAT WHERE DO
	printf 'toolchain: error: %s\n  where: %s\n  do:    %s\n' "$1" "$2" "$3" >&2
	exit 1
}

[[ -e $dir/.complete ]] && exit 0
[[ -r $keyring ]] || fail "Debian's keyring is missing" "$keyring" "apt-get install debian-archive-keyring"
[[ -r $status ]] || fail "the base's package list cannot be read" "$status" "give /var/lib/dpkg/status of the base"
find "$dir" -maxdepth 1 -name 'tmp.*' -exec rm -rf {} + # what a killed run left
work=$(mktemp -d "$dir/tmp.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{kit,own}/{state/lists/partial,cache/archives/partial} "$work/debs" "$work/tree"

own_apt() { # ROOT STATUS ARGS…: apt-get with folders of its own; sources, proxy and CA stay the machine's
	local root=$1 list=$2
	shift 2
	apt-get -q -o Dir::State="$root/state" -o Dir::State::status="$list" -o Dir::Cache="$root/cache" \
		-o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none -o Acquire::Retries=3 -o Debug::NoLocking=true "$@"
}

kit_apt() { # ARGS…: likewise, with $suite's sources alone
	own_apt "$work/kit" /dev/null -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o APT::Default-Release= "$@"
}

try() { # WHAT DO COMMAND…: its output is shown only if it fails
	local what=$1 todo=$2
	shift 2
	"$@" >"$work/log" 2>&1 || fail "$what: $(tail -n 3 "$work/log")" "apt" "$todo"
}

# shellcheck disable=SC2016,SC1091 # apt's variables, not the shell's; a file of every Debian machine
mirror=$(apt-get indextargets --no-release-info --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
	awk -v suite="$(. /etc/os-release && echo "${VERSION_CODENAME-}")" '$2 == suite && $3 == "main" { print $1; exit }')
[[ -n $mirror ]] || fail "apt knows no mirror with the component main" "/etc/apt" "add your Debian mirror there"
(umask 077 && printf 'deb [signed-by=%s] %s %s main non-free\n' "$keyring" "$mirror" "$suite" >"$work/sources.list")
echo "toolchain: fetching ${kit[*]} of Debian $suite (1.1 GB)" >&2
try "the package list of Debian $suite cannot be had" "the mirror must carry $suite with the component non-free" \
	kit_apt -o APT::Update::Error-Mode=any update
(cd "$work/tree" && try "the mirror lacks a package" "the mirror must carry $suite with the component non-free" \
	kit_apt download "${kit[@]}")
try "the package list of this machine's release cannot be had" "see that apt-get update works here" \
	own_apt "$work/own" "$status" update
try "g++ cannot be had for the base" "see that apt-get update works here; the base must be of this machine's release" \
	own_apt "$work/own" "$status" --yes --no-install-recommends --download-only install g++
find "$work/own/cache/archives" -name '*.deb' -exec mv -t "$work/debs" {} + # none, where the base has g++

shopt -s nullglob
# shellcheck disable=SC2016 # dpkg's variables
for deb in "$work"/tree/*.deb "$work"/debs/*.deb; do
	dpkg-deb --show --showformat '${Package} ${Version} ' "$deb" && sha256sum <"$deb" | cut -d' ' -f1
done >"$work/packages"
for deb in "$work"/tree/*.deb; do
	# of 2.6 GB in nvidia-cuda-dev a compile needs the headers and the runtime
	dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/tree" --exclude='./usr/share' --exclude='*_static.a' --wildcards
	rm "$deb"
done

from=$work/tree/usr to=$work/cuda/usr/local/cuda-$version
mkdir -p "$to"/{bin,nvvm/bin,lib64}
cp -a "$from"/bin/{bin2c,cudafe++,cuobjdump,fatbinary,nvdisasm,nvlink,nvprune,ptxas} "$from/lib/nvidia-cuda-toolkit/bin/nvcc" "$to/bin/"
cp -aL "$from/lib/nvidia-cuda-toolkit/bin/crt" "$to/bin/"
cp -a "$from/lib/nvidia-cuda-toolkit/bin/cicc" "$to/nvvm/bin/"
cp -a "$from/lib/nvidia-cuda-toolkit/libdevice" "$to/nvvm/"
cp -aL "$from/include" "$to/"
cp -a "$from"/lib/x86_64-linux-gnu/libcudart.so* "$from/lib/x86_64-linux-gnu/libcudadevrt.a" "$to/lib64/"
cat >"$to/bin/nvcc.profile" <<'PROFILE'
TOP                 = $(_HERE_)/..
NVVMIR_LIBRARY_DIR  = $(TOP)/nvvm/libdevice
LD_LIBRARY_PATH    += $(TOP)/lib64:
PATH               += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES           +=  "-I$(TOP)/include" $(_SPACE_)
LIBRARIES          =+ $(_SPACE_) "-L$(TOP)/lib64"
PROFILE
[[ $("$to/bin/nvcc" --version) == *"release $version"* ]] ||
	fail "this toolkit is not CUDA $version" "$to" "Debian $suite moved on: report this"

rm -rf "$dir/cuda" "$dir/debs"
mv "$work/cuda" "$work/debs" "$work/packages" "$dir/"
touch "$dir/.complete"
