#!/usr/bin/env bash
# Compiles a CUDA extension from its source archive into one wheel; the Dockerfile's stage `compile` runs it.
#
#   flash-attn.sh SOURCE BUILD OUT
#
# SOURCE holds the archive, or nothing: then EXTENSION (`name==version --hash=sha256:…`) is had from the index.
# Environment: CUDA_HOME; CUDA_ARCHS, "8.0 9.0"; SOURCE_DATE_EPOCH; MAX_JOBS, or nothing. Secrets pip_conf and ca, if given.
# BUILD is always the same folder, for paths end up in the objects. What was compiled stays there, so that a compile that
# was stopped goes on with the file it was at (ninja compares commands and times).
set -euo pipefail
umask 022
[[ $# -eq 3 ]] || { echo "usage: $0 SOURCE BUILD OUT" >&2 && exit 2; }
readonly source=$1 build=$2 out=$3
export LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 HOME=$build TMPDIR=/tmp
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1
here=$(dirname -- "$(readlink -f -- "$0")")
readonly here
readonly job_mib=6000 # measured: 5903 MiB for the largest file of flash-attn 2.5.9.post1, one architecture

fail() { # WHAT DO
	printf 'flash-attn: error: %s\n  do:    %s\n' "$1" "$2" >&2
	exit 1
}

memory_mib() { # what is free now, or what our control group allows if that is less
	local free limit
	free=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
	limit=$(cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null | head -n 1)
	if [[ $limit =~ ^[0-9]{1,15}$ ]] && ((limit / 1048576 < free)); then free=$((limit / 1048576)); fi
	echo "$free"
}

jobs() {
	local free most cores
	free=$(memory_mib) cores=$(nproc)
	most=$((free / job_mib))
	if [[ -n ${MAX_JOBS-} ]]; then
		[[ $MAX_JOBS =~ ^[1-9][0-9]{0,3}$ ]] || fail "MAX_JOBS=$MAX_JOBS is no number of jobs" "leave it out, or give 1 or more"
		((MAX_JOBS <= most)) || fail "MAX_JOBS=$MAX_JOBS needs $((MAX_JOBS * job_mib)) MiB of memory, $free MiB are free" \
			"leave it out, or give fewer"
		most=$MAX_JOBS
	elif ((most == 0)); then
		fail "one job needs $job_mib MiB of memory, $free MiB are free" "free memory, or raise the container's limit"
	elif ((most > cores)); then
		most=$cores
	fi
	echo "$most"
}

[[ -n ${CUDA_ARCHS-} ]] || fail "the list of architectures is empty" "set cuda_archs in constraints/stacks.toml"
[[ ${CUDA_ARCHS} =~ ^[0-9]+\.[0-9](\ [0-9]+\.[0-9])*$ ]] ||
	fail "CUDA_ARCHS=$CUDA_ARCHS is no list like \"8.0 9.0\"" "correct cuda_archs in constraints/stacks.toml"
command -v ninja >/dev/null ||
	fail "ninja is missing; without it torch compiles one file after the other" "add it under flash_attn.build_tools"
known=$(python -c 'import torch; print(torch._C._cuda_getArchFlags())')
for arch in $CUDA_ARCHS; do
	[[ " $known " == *" sm_${arch/./} "* ]] || fail "torch itself has no code for architecture $arch; it has: $known" \
		"correct cuda_archs in constraints/stacks.toml"
done

MAX_JOBS=$(jobs)

# What another compiler, or another Python's torch, has left here would be taken for ours: nvcc's path is the same.
made_by=$({ "$CUDA_HOME/bin/nvcc" --version && g++ -v && python -c 'import sys, torch; print(sys.version, torch.__version__)' &&
	sha256sum "$here/nvcc.py"; } 2>&1 | sha256sum)
mkdir -p "$build"
if [[ $(cat "$build/made-by" 2>/dev/null) != "$made_by" ]]; then
	find "$build" -mindepth 1 -delete
	printf '%s\n' "$made_by" >"$build/made-by"
fi
rm -rf "$build/sdist"
mkdir -p "$build/sdist" "$build/bin" "$out"
if [[ -z $(find "$source" -maxdepth 1 -name '*.tar.gz' -print -quit) ]]; then
	[[ ! -s /run/secrets/pip_conf ]] || PIP_CONFIG_FILE=/run/secrets/pip_conf
	[[ ! -s /run/secrets/ca ]] || export PIP_CERT=/run/secrets/ca
	printf '%s\n' "$EXTENSION" >"$build/requirements.txt"
	# Its setup.py asks git for a submodule that the archive already holds, and fails where there is no git at all.
	ln -sf /bin/true "$build/bin/git"
	PATH=$build/bin:$PATH python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation --no-cache-dir \
		--require-hashes --requirement "$build/requirements.txt" --dest "$build/sdist"
else
	cp "$source"/*.tar.gz "$build/sdist/"
fi
archives=("$build"/sdist/*.tar.gz)
[[ ${#archives[@]} -eq 1 && -e ${archives[0]} ]] ||
	fail "there are ${#archives[@]} source archives instead of one" "give the one that the lock names"
[[ -z ${EXTENSION-} || $EXTENSION == *"--hash=sha256:$(sha256sum <"${archives[0]}" | cut -d' ' -f1)"* ]] ||
	fail "the source archive is not the one whose hash the lock names" "fetch it again: verlstack fetch"
gzip -t "${archives[0]}" || fail "the source archive is damaged" "fetch it again: verlstack fetch"
cd "$build"
# Times come from the archive, so a second unpacking changes nothing for ninja.
tar -xzf "${archives[0]}" --no-same-owner
folder=$(tar -tzf "${archives[0]}" | cut -d/ -f1 | sort -u)
[[ -f $folder/setup.py ]] || fail "the source archive has no single folder with a setup.py" "is it an sdist?"

ln -sf /bin/true "$build/bin/git"
export MAX_JOBS PYTORCH_NVCC=$here/nvcc.py COMPILE_LOG=$build/compile.log PATH=$build/bin:$PATH
export FLASH_ATTENTION_FORCE_BUILD=TRUE # else its setup.py looks for a wheel on the network and takes it unseen
nvcc=$("$CUDA_HOME/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
echo "flash-attn: compiling $folder for $CUDA_ARCHS with nvcc $nvcc, $MAX_JOBS jobs"
status=0
(cd "$folder" && exec python -m pip wheel --no-build-isolation --no-deps --no-index --no-cache-dir --verbose --wheel-dir "$out" .) \
	2>&1 | tee "$build/pip.log" || status=$?
if ((status)); then
	if grep -qE "signal 9|[Kk]illed|[Oo]ut of memory|Cannot allocate memory" "$build/pip.log"; then
		fail "the compiler was killed for lack of memory, with $MAX_JOBS jobs; $(memory_mib) MiB are free now" \
			"run again with MAX_JOBS=$((MAX_JOBS > 1 ? MAX_JOBS - 1 : 1)) or more memory; what was compiled is kept"
	fi
	fail "the compile failed with exit status $status" "read the compiler's words above; what was compiled is kept"
fi
full=$("$CUDA_HOME/bin/nvcc" --version | sed -n 's/.*, V\([0-9.]*\).*/\1/p')
# Of all runs together: a compile that was stopped and went on would tell minutes for hours.
seconds=$(awk -F '\t' -v jobs="$MAX_JOBS" '{ sum += $2 + 0 } END { print int(sum / jobs) }' "$COMPILE_LOG")
peak=$(awk -F '\t' '{ sub(/ MiB/, "", $3); if ($3 + 0 > most) most = $3 + 0 } END { print most + 0 }' "$COMPILE_LOG")
made=("$out"/*.whl)
[[ ${#made[@]} -eq 1 && -e ${made[0]} ]] || fail "the compile gave no single wheel" "read the lines of pip above"
sha256=$(sha256sum <"${made[0]}" | cut -d' ' -f1) # what is told below is told of this wheel and no other
printf '{"sha256": "%s", "compiler": "nvcc %s, g++ %s", "seconds": %d, "peak_mib": %d, "jobs": %d}\n' \
	"$sha256" "$full" "$(g++ -dumpfullversion)" "$seconds" "$peak" "$MAX_JOBS" >"$out/compile.json"
cp "$COMPILE_LOG" "$out/compile.log" # a line a file: name, seconds, memory of the largest process, exit status
