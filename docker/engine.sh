#!/usr/bin/env bash
# Brings up a private Docker engine on a bare Debian 12 or 13 machine, from Debian's own packages, and takes it down again.
#
#   docker/engine.sh start [DATA_DIR]   fetch the engine if need be, start it, wait until it answers (as root)
#   eval "$(docker/engine.sh env)"      DOCKER_HOST, DOCKER_CONFIG and PATH of this engine, for docker, buildx and the SDK
#   docker/engine.sh status             exit status 0: it answers; 3: it does not run
#   docker/engine.sh stop               stop dockerd, its containerd and every container; unmount what they mounted
#
# DATA_DIR (default /var/lib/verlstack-engine) holds programs, images and the log; removing it while stopped removes all.
#
# Why the packages of Debian 13 on both releases: Debian 12's engine is 20.10, whose BuildKit knows neither
# rewrite-timestamp nor COPY --link. The programs taken here need only GLIBC 2.34 and Debian 12 has 2.36. runc needs 2.38 in
# Debian 13's build, so runc (and iptables) are the machine's own. Why unpacked rather than installed on Debian 13 too: the
# package's install script starts a second daemon on the system socket, with its own firewall rules.
#
# Why iptables=false, ip-forward=false and bridge=none: the machine's firewall and routing stay as they are. Builds use
# --network host and tests --network none or --internal user networks; no container needs a route of its own to the
# outside. Name lookup on user networks does need the iptables program, but its rules live inside the container's namespace.
set -euo pipefail
umask 022
export LC_ALL=C

readonly suite=trixie # Debian 13: docker.io 26.1.5, docker-buildx 0.13.1
readonly packages=(docker.io docker-cli containerd docker-buildx tini)
readonly programs=(dockerd docker docker-proxy containerd containerd-shim-runc-v2 ctr tini-static)
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg
readonly run=/run/verlstack-engine # socket, pid, configuration: gone at the next boot, as they should be
readonly pidfile=$run/dockerd.pid socket=$run/docker.sock
readonly patience=90    # seconds for a first start or an orderly stop on a busy 2-core machine; 2 are usual
readonly engine_error=11 # exit status of verlstack.errors.EngineError

fail() { # WHAT WHERE TODO: the project's form of an error
	printf '%s\n  where: %s\n  do:    %s\n' "$1" "$2" "$3" >&2
	exit "$engine_error"
}

say() { printf '%s\n' "$*" >&2; }

data_dir() { # the folder of the engine that runs or ran last since boot
	[[ -L $run/data ]] && readlink "$run/data"
}

alive() { # PID PROGRAM: that process runs that very file; a zombie runs none, a recycled number another
	[[ -n $1 && /proc/$1/exe -ef $2 ]]
}

await_end() { # PID PROGRAM
	for ((i = 0; i < patience * 5; i++)); do
		alive "$@" || return 0
		sleep 0.2
	done
	return 1
}

daemon_pid() { # pid of our dockerd if it lives
	local pid
	pid=$(cat "$pidfile" 2>/dev/null) && alive "$pid" "$(data_dir)/bin/dockerd" && printf '%s\n' "$pid"
}

answers() {
	local data
	data=$(data_dir) && [[ -x $data/bin/docker ]] &&
		timeout 10 "$data/bin/docker" --host "unix://$socket" version >/dev/null 2>&1
}

need_debian_root() {
	local id='' version=''
	[[ $EUID -eq 0 ]] || fail "an engine can be brought up by root alone; you are uid $EUID" "$0" \
		"run as root, or set DOCKER_HOST to an engine you may use (Docker 26 or later, with buildx)"
	# shellcheck source=/dev/null
	[[ -r /etc/os-release ]] && id=$(. /etc/os-release && echo "${ID-}") && version=$(. /etc/os-release && echo "${VERSION_ID-}")
	case $id-$version in
	debian-12 | debian-13) ;;
	*) fail "this script knows Debian 12 and 13; this machine says ${id:-nothing} ${version}" /etc/os-release \
		"install Docker 26 or later with buildx from your system's packages, and set DOCKER_HOST if it is not the default" ;;
	esac
	# With bridge=none dockerd deletes an interface of this name, which would cut another engine's containers off.
	[[ ! -e /sys/class/net/docker0 ]] || fail "another Docker engine owns this machine's docker0" /sys/class/net/docker0 \
		"use that engine (it needs no help from here), or stop it and run: ip link delete docker0"
}

mirror() { # the machine's own Debian mirror, whatever the form of its apt sources, before its first apt-get update too
	local codename found
	# shellcheck source=/dev/null
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
	# shellcheck disable=SC2016 # apt's variables, not the shell's
	found=$(apt-get indextargets --no-release-info --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk -v suite="$codename" '$2 == suite && $3 == "main" { print $1; exit }')
	[[ -n $found ]] || fail "apt knows no mirror of Debian's suite '$codename', component main" "/etc/apt/sources.list(.d)" \
		"add your Debian mirror there; its suite $suite is needed too"
	printf '%s\n' "$found"
}

private_apt() { # ROOT ARGS...: apt-get that knows nothing but Debian's suite $suite; proxy, CA and timeouts stay the machine's
	local root=$1
	shift
	apt-get -q -o Dir::Etc::SourceList="$root/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
		-o Dir::State="$root/state" -o Dir::State::status="$root/status" -o Dir::Cache="$root/cache" \
		-o APT::Sandbox::User=root -o APT::Default-Release= -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}

unpack_programs() { # DATA: programs of ${packages[@]} in DATA/bin, checked by Debian's signature; whole or not at all
	local data=$1 apt=$1/apt.tmp new=$1/bin.tmp uri deb name
	[[ -e $data/bin/.complete ]] && return
	say "engine: fetching ${packages[*]} of Debian $suite"
	[[ -r $keyring ]] || fail "Debian's keyring is missing" "$keyring" "apt-get install debian-archive-keyring"
	uri=$(mirror)
	rm -rf "$apt" "$new"
	mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/debs" "$apt/tree" "$new/cli-plugins"
	: >"$apt/status"
	(umask 077 && printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$uri" "$suite" >"$apt/sources.list")
	private_apt "$apt" -o APT::Update::Error-Mode=any update >"$apt/log" 2>&1 ||
		fail "the package list of Debian $suite cannot be had: $(tail -n 3 "$apt/log")" "$apt/sources.list" \
			"check that this mirror carries $suite and that debian-archive-keyring is up to date (it must hold $suite's keys)"
	(cd "$apt/debs" && private_apt "$apt" download "${packages[@]}") >"$apt/log" 2>&1 ||
		fail "the engine's packages cannot be had: $(tail -n 3 "$apt/log")" "$apt/sources.list" "check the mirror, then start again"
	for deb in "$apt"/debs/*.deb; do dpkg -x "$deb" "$apt/tree"; done
	for name in "${programs[@]}"; do
		find "$apt/tree" -path "*bin/$name" -type f -exec mv -t "$new" {} +
		[[ -x $new/$name ]] || fail "Debian's packages hold no program $name" "$apt/tree" "report this: the package layout changed"
	done
	find "$apt/tree" -path "*/cli-plugins/docker-buildx" -type f -exec mv -t "$new/cli-plugins" {} +
	mv "$new/tini-static" "$new/docker-init" # in Debian a link from the one package into the other
	touch "$new/.complete"
	rm -rf "${data:?}/bin" "$apt"
	mv "$new" "$data/bin"
}

install_helpers() { # what a bare machine may lack, of its own release; none of them starts a service
	local helper missing=()
	for helper in runc iptables umount:mount; do
		command -v "${helper%:*}" >/dev/null || missing+=("${helper#*:}")
	done
	[[ ${#missing[@]} -gt 0 ]] || return 0
	say "engine: installing ${missing[*]}"
	{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
		-o DPkg::Lock::Timeout=300 "${missing[@]}"; } >"$run/apt.log" 2>&1 ||
		fail "${missing[*]} cannot be installed: $(tail -n 3 "$run/apt.log")" "$run/apt.log" \
			"run: apt-get update && apt-get install ${missing[*]}"
}

write_config() { # DATA
	mkdir -p "$1/config/cli-plugins"
	ln -sfn "$1/bin/cli-plugins/docker-buildx" "$1/config/cli-plugins/docker-buildx"
	cat >"$run/daemon.json" <<-JSON
		{
		  "hosts": ["unix://$socket"],
		  "group": "root",
		  "data-root": "$1/data",
		  "exec-root": "$run/exec",
		  "pidfile": "$pidfile",
		  "features": {"containerd-snapshotter": true},
		  "exec-opts": ["native.cgroupdriver=cgroupfs"],
		  "bridge": "none",
		  "iptables": false,
		  "ip6tables": false,
		  "ip-forward": false,
		  "shutdown-timeout": 10
		}
	JSON
}

launch() { # DATA
	local pid
	# 9 is our lock: a daemon that inherited it would hold it for life. A private path keeps an old engine of the machine out.
	PATH=$1/bin:/usr/sbin:/usr/bin:/sbin:/bin DOCKER_CONFIG=$1/config \
		setsid "$1/bin/dockerd" --config-file "$run/daemon.json" >>"$1/dockerd.log" 2>&1 </dev/null 9>&- &
	pid=$!
	for ((i = 0; i < patience * 5; i++)); do
		answers && return
		kill -0 "$pid" 2>/dev/null || fail "dockerd ended at once: $(tail -n 3 "$1/dockerd.log")" "$1/dockerd.log" \
			"read the log; often the kernel or a container forbids mounts, or DATA_DIR lies on a file system without overlay support"
		sleep 0.2
	done
	kill "$pid" 2>/dev/null || true
	fail "dockerd does not answer after $patience s: $(tail -n 3 "$1/dockerd.log")" "$1/dockerd.log" "read the log, then start again"
}

end_orphans() { # DATA: what outlived a killed dockerd: its containerd, and containers with the shims that hold them
	local exe pid children
	for exe in /proc/[0-9]*/exe; do
		pid=${exe#/proc/} pid=${pid%/exe}
		if alive "$pid" "$1/bin/containerd-shim-runc-v2"; then
			read -ra children -d '' < <(cat "/proc/$pid/task"/*/children 2>/dev/null) || true
			# first the container's init, and with it all of the container; then its shim
			kill -KILL "${children[@]}" "$pid" 2>/dev/null || true
		elif alive "$pid" "$1/bin/containerd"; then
			kill "$pid" 2>/dev/null || true
			await_end "$pid" "$1/bin/containerd" || kill -KILL "$pid" 2>/dev/null || true
		fi
	done
}

unmount_all() { # DATA: deepest first; an orderly stop leaves nothing here, a killed daemon does
	local point
	while read -r point; do
		umount "$point" 2>/dev/null || umount -l "$point"
	done < <(awk -v a="$1/data/" -v b="$run/exec/" \
		'index($2 "/", a) == 1 || index($2, b) == 1 { print $2 }' /proc/self/mounts | sort -r)
}

clean_up() { # DATA: after the daemon's end, whatever its manner
	end_orphans "$1"
	unmount_all "$1"
	rm -rf "$run/exec" "$socket" "$pidfile"
}

lock() { # one start or stop at a time; held on descriptor 9 until this script ends
	exec 9>"$run/lock"
	flock -w "$patience" 9 || fail "another start or stop has been at work for $patience s" "$run/lock" "wait for it, or end it"
}

start() { # [DATA_DIR]
	local data version
	need_debian_root
	mkdir -p "$run"
	lock
	if answers; then
		data=$(data_dir)
		[[ -z ${1-} || $(realpath -m "$1") == "$data" ]] ||
			fail "the engine already runs, with its data elsewhere" "$data" "run: $0 stop"
		say "engine: already answers at unix://$socket"
		return
	fi
	! daemon_pid >/dev/null || fail "dockerd runs (pid $(daemon_pid)) but does not answer" "$pidfile" "run: $0 stop"
	! data=$(data_dir) || clean_up "$data" # what a killed daemon left
	data=$(realpath -m "${1:-/var/lib/verlstack-engine}")
	[[ $data != *[\"\\[:space:]]* ]] || fail "DATA_DIR may hold no blank, quote or backslash" "$data" "choose another folder"
	mkdir -p "$data"
	unpack_programs "$data"
	install_helpers
	write_config "$data"
	ln -sfn "$data" "$run/data"
	launch "$data"
	version=$("$data/bin/docker" --host "unix://$socket" version --format '{{.Server.Version}}')
	say "engine: Docker $version answers at unix://$socket"
}

stop() {
	local data pid
	[[ -d $run ]] || { say "engine: not running" && return; }
	[[ $EUID -eq 0 ]] || fail "the engine belongs to root; you are uid $EUID" "$run" "run as root"
	lock
	data=$(data_dir) || return 0
	if pid=$(daemon_pid); then
		kill "$pid" # dockerd ends containers, then its own containerd
		await_end "$pid" "$data/bin/dockerd" ||
			fail "dockerd (pid $pid) does not end after $patience s" "$data/dockerd.log" "end it: kill -9 $pid, then: $0 stop"
	fi
	clean_up "$data"
	say "engine: stopped; its data stay in $data"
}

status() {
	if answers; then
		printf 'running: unix://%s, data in %s\n' "$socket" "$(data_dir)"
	else
		printf 'not running\n'
		exit 3 # what init scripts answer for a service that does not run
	fi
}

print_env() {
	local data
	answers || fail "the engine does not run" "$socket" "run: $0 start"
	data=$(data_dir)
	printf 'export DOCKER_HOST=%q\nexport DOCKER_CONFIG=%q\n' "unix://$socket" "$data/config"
	# shellcheck disable=SC2016 # the caller's PATH
	printf 'export PATH=%q:"$PATH"\n' "$data/bin"
}

case ${1-} in
start) start "${2-}" ;;
stop) stop ;;
status) status ;;
env) print_env ;;
*) printf 'usage: %s start [DATA_DIR] | stop | status | env\n' "$0" >&2 && exit 2 ;;
esac
