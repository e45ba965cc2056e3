#!/usr/bin/env bash
# Compiles a CUDA extension from its source archive into one wheel; the stage `flash-attn` runs it.
#
#   flash-attn.sh SDIST_DIR OUT
#
# Environment: CUDA_HOME; CUDA_ARCHS "8.0 9.0"; CUDA, the stack's "12.1"; SOURCE_DATE_EPOCH; MAX_JOBS, or nothing.
# The source is unpacked and compiled in /build, always: paths end up in the objects. What was compiled stays in /build,
# so a build that was stopped goes on with the file it was at (ninja compares commands and times).
set -euo pipefail
umask 022
export LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 HOME=/build TMPDIR=/tmp
here=$(dirname -- "$(readlink -f -- "$0")")
readonly here sdists=$1 out=$2 python=/opt/verl/bin/python build=/build
readonly job_mib=5700 # measured: 5.5 GB for the largest file of flash-attn 2.5.9.post1, one architecture

fail() { # WHAT DO
	printf 'flash-attn: error: %s\n  do:    %s\n' "$1" "$2" >&2
	exit 1
}

memory_mib() { # what is free now, or what our control group allows if that is less
	local free limit
	free=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
	limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
	if [[ $limit != max ]] && ((limit / 1048576 < free)); then free=$((limit / 1048576)); fi
	echo "$free"
}

jobs() {
	local free most
	free=$(memory_mib)
	most=$((free / job_mib))
	if [[ -n ${MAX_JOBS-} ]]; then
		[[ $MAX_JOBS =~ ^[1-9][0-9]*$ ]] || fail "MAX_JOBS=$MAX_JOBS is no number of jobs" "leave it out, or give 1 or more"
		((MAX_JOBS <= most)) || fail \
			"MAX_JOBS=$MAX_JOBS needs $((MAX_JOBS * job_mib)) MiB of memory, $free MiB are free" "leave it out, or give at most $most"
		echo "$MAX_JOBS"
	else
		((most > 0)) || fail "one job needs $job_mib MiB of memory, $free MiB are free" "free memory, or raise the container's limit"
		((most < $(nproc))) && echo "$most" || nproc
	fi
}

[[ -n ${CUDA_ARCHS-} ]] || fail "the list of architectures is empty" "set cuda_archs in constraints/stacks.toml"
"$python" - <<'PY'
import os, sys
import torch
known = {a[3:] for a in torch.cuda.get_arch_list()} or set(torch._C._cuda_getArchFlags().replace("sm_", "").split())
for arch in os.environ["CUDA_ARCHS"].split():
    if arch.replace(".", "") not in known:
        sys.exit(f"flash-attn: error: architecture {arch} is not among torch {torch.__version__}'s: {' '.join(sorted(known))}\n"
                 "  do:    correct cuda_archs in constraints/stacks.toml")
PY
command -v ninja >/dev/null || fail "ninja is missing; without it every file is compiled one after the other" "add ninja to build_tools"

shopt -s nullglob
archives=("$sdists"/*.tar.gz)
[[ ${#archives[@]} -eq 1 ]] || fail "$sdists holds ${#archives[@]} source archives instead of one" "fetch it again"
mkdir -p "$build" "$out" && cd "$build"
tar -xzf "${archives[0]}" --no-same-owner --skip-old-files
source=$(basename "${archives[0]}" .tar.gz)

export PYTORCH_NVCC=$here/nvcc.py COMPILE_LOG=$build/compile.log MAX_JOBS
MAX_JOBS=$(jobs)
# Its setup.py asks git for the submodule that the archive already holds, and fails where there is no git at all.
mkdir -p "$build/bin" && ln -sf /bin/true "$build/bin/git" && export PATH=$build/bin:$PATH
export FLASH_ATTENTION_FORCE_BUILD=TRUE # else its setup.py looks for a wheel on the network and takes it unseen
echo "flash-attn: compiling ${source} for ${CUDA_ARCHS} with $("$CUDA_HOME/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/nvcc \1/p'), $MAX_JOBS jobs"
status=0
(cd "$source" && "$python" -m pip wheel --no-build-isolation --no-deps --no-index --no-cache-dir --disable-pip-version-check \
	--verbose --wheel-dir "$out" .) 2>&1 | tee "$build/pip.log" || status=$?
if ((status)); then
	if grep -qE "signal 9|Killed|out of memory" "$build/pip.log"; then
		fail "the compiler was killed for lack of memory, with $MAX_JOBS jobs and $(memory_mib) MiB free" \
			"run again with MAX_JOBS=$((MAX_JOBS > 1 ? MAX_JOBS - 1 : 1)) or more memory; what was compiled is kept"
	fi
	fail "the compile failed with exit status $status" "read the compiler's words above"
fi
