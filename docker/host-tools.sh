#!/usr/bin/env bash
# Puts in place what `--base debian` bootstraps with: mmdebstrap, and for an ordinary user fakeroot. As root they are
# installed with apt-get; without root they are unpacked from the machine's own Debian mirror into a folder of the cache,
# where verlstack looks. apt verifies signature and hash either way. Prints the folder of the tools.
#
#   docker/host-tools.sh [DIR]     DIR: instead of <cache>/host-tools; then put what is printed on PATH yourself
set -euo pipefail

cache=${VERLSTACK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/verlstack}
dir=${1:-$cache/host-tools}
packages=(mmdebstrap fakeroot libfakeroot)

fail() {
  printf 'host-tools: %s\n  do:    %s\n' "$1" "$2" >&2
  exit 9
}

# Whatever the machine has already is not fetched again.
if command -v mmdebstrap >/dev/null && { [ "$(id -u)" = 0 ] || command -v fakeroot >/dev/null; }; then
  dirname "$(command -v mmdebstrap)"
  exit 0
fi
if [ -x "$dir/bin/mmdebstrap" ]; then
  printf '%s\n' "$dir/bin"
  exit 0
fi
for tool in apt-get dpkg-deb perl; do
  command -v "$tool" >/dev/null || fail "$tool is not installed" "use a Debian or Ubuntu machine, or --base registry:REF@sha256:..."
done

if [ "$(id -u)" = 0 ] && [ $# = 0 ]; then
  if ! { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends mmdebstrap; } >&2; then
    fail "mmdebstrap cannot be installed" "see what apt-get install mmdebstrap says"
  fi
  dirname "$(command -v mmdebstrap)"
  exit 0
fi

mkdir -p "$(dirname "$dir")"
work=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$work"' EXIT

# apt with a state of its own: an ordinary user may neither refresh nor lock the system's.
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/debs"
apt=(apt-get -qq -o "Dir::State=$work/state" -o "Dir::State::status=/var/lib/dpkg/status" -o "Dir::Cache=$work/cache"
  -o "APT::Sandbox::User=$(id -un)" -o "APT::Update::Post-Invoke-Success::=" -o "Acquire::Languages=none"
  -o "Debug::NoLocking=true")
"${apt[@]}" update >&2 || fail "the distribution's mirror cannot be reached" "see that apt-get update works on this machine"
(cd "$work/debs" && "${apt[@]}" download "${packages[@]}" >&2) \
  || fail "the mirror lacks one of: ${packages[*]}" "enable the component main in /etc/apt"

for deb in "$work"/debs/*.deb; do
  dpkg-deb --extract "$deb" "$work/root"
done

# The package's own `fakeroot` names its files below /usr; this one takes them from where they lie. The preloaded
# library goes by its bare name, so that a chroot finds the copy the bootstrap lends it.
mkdir -p "$work/bin"
ln -s ../root/usr/bin/mmdebstrap "$work/bin/mmdebstrap"
cat >"$work/bin/fakeroot" <<'SCRIPT'
#!/bin/sh
here=$(dirname -- "$(readlink -f -- "$0")")/../root/usr
answer=$("$here/bin/faked-sysv") || exit 1
trap 'kill "${answer#*:}" 2>/dev/null' EXIT INT TERM
export FAKEROOTKEY="${answer%%:*}" LD_PRELOAD=libfakeroot-sysv.so
export LD_LIBRARY_PATH="$(echo "$here"/lib/*/libfakeroot)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
"$@"
SCRIPT
chmod 755 "$work/bin/fakeroot"
rm -rf "$work/state" "$work/cache" "$work/debs"

# One rename makes it whole; whoever came second keeps the first one's.
mv -T "$work" "$dir" 2>/dev/null || [ -x "$dir/bin/mmdebstrap" ] || fail "cannot write $dir" "give another DIR"
printf '%s\n' "$dir/bin"
