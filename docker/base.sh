#!/bin/sh
# Makes a base able to carry a stack: Python X.Y with headers, a C compiler, certificates, an admin's packages, and the
# empty venv /opt/verl as the composer has it. The stage `base` runs it. What a base has is left alone; one that has all
# gets no package. POSIX sh, so that a base without bash is told what it lacks.
#
# Environment: PYTHON "3.10" · PACKAGES Debian names, separated by blanks, may be empty · SOURCE_DATE_EPOCH.
# Secrets, each only if given, none of which leaves a trace:
#   apt_sources  sources (either of apt's styles) that replace the base's own
#   ca           certificates, PEM, that apt trusts beside the base's own
#   proxy        lines http=ADDRESS and https=ADDRESS
set -eu
umask 022
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PYTHONHASHSEED=0 SOURCE_DATE_EPOCH
unset TZ
readonly secrets=/run/secrets venv=/opt/verl
PACKAGES=${PACKAGES-}

fail() { # WHAT DO
	printf 'base: error: %s\n  do:    %s\n' "$1" "$2" >&2
	exit 1
}

system() {
	# shellcheck source=/dev/null
	(. /etc/os-release 2>/dev/null && printf '%s' "${PRETTY_NAME-}") || printf 'this system'
}

python_home() { # the folder that the composer would find (base/facts.py)
	for folder in /usr/local/bin /usr/bin /opt/*/bin; do
		if [ -f "$folder/python$PYTHON" ] && [ "$folder" != "$venv/bin" ]; then
			printf '%s' "$folder"
			return
		fi
	done
}

missing() { # Debian packages that the base lacks
	home=$(python_home)
	[ -n "$home" ] || printf 'python%s ' "$PYTHON"
	[ -f "${home:-/usr/bin}/../include/python$PYTHON/Python.h" ] || printf 'libpython%s-dev ' "$PYTHON"
	[ -f /usr/bin/cc ] || [ -f /usr/bin/gcc ] || [ -f /usr/local/bin/cc ] || [ -f /usr/local/bin/gcc ] || printf 'gcc '
	[ -f /usr/include/stdio.h ] || printf 'libc6-dev '
	[ -f /etc/ssl/certs/ca-certificates.crt ] || [ -d /etc/pki/tls ] || printf 'ca-certificates '
	for package in $PACKAGES; do
		[ "$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
			printf '%s ' "$package"
	done
}

settings() { # DIR: apt.conf and sources; DIR is no part of any layer, and nothing of it stands in a command line
	(
		umask 077
		{
			printf '%s\n' 'APT::Install-Recommends "false";' 'APT::Sandbox::User "root";' \
				'Acquire::Languages "none";' 'Acquire::Retries "3";' "Dir::Log \"$1\";" "Dir::State::Lists \"$work/lists\";" \
				"Dir::Cache \"$work/cache\";" 'DPkg::Options:: "--log=/dev/null";'
			# as the bootstrap leaves them out; copyright files stay: licences ask for it
			for folder in man info lintian locale doc; do
				printf 'DPkg::Options:: "--path-exclude=/usr/share/%s/*";\n' "$folder"
			done
			printf '%s\n' 'DPkg::Options:: "--path-include=/usr/share/doc/*/copyright";'
			if [ -s "$secrets/proxy" ]; then
				if grep -qvE '^(https?=[^"[:space:]]+)?$' "$secrets/proxy"; then
					fail "the secret proxy has other lines than http=ADDRESS and https=ADDRESS" "mend it"
				fi
				sed -n 's/^\(https\{0,1\}\)=\(.*\)$/Acquire::\1::Proxy "\2";/p' "$secrets/proxy"
			fi
			if [ -s "$secrets/ca" ]; then
				grep -q -e '-----BEGIN CERTIFICATE-----' "$secrets/ca" ||
					fail "the secret ca holds no certificate in PEM" "convert it: openssl x509 -inform der -in FILE"
				cat /etc/ssl/certs/ca-certificates.crt "$secrets/ca" >"$1/ca.pem" 2>/dev/null || cp "$secrets/ca" "$1/ca.pem"
				printf 'Acquire::https::CAInfo "%s";\n' "$1/ca.pem"
			fi
			if [ -s "$secrets/apt_sources" ]; then
				name=sources.sources # apt tells its two styles apart by the name
				! grep -qE '^[[:space:]]*deb(-src)?[[:space:]]' "$secrets/apt_sources" || name=sources.list
				ln -s "$secrets/apt_sources" "$1/$name"
				printf 'Dir::Etc::SourceList "%s";\nDir::Etc::SourceParts "/dev/null";\n' "$1/$name"
			fi
		} >"$1/apt.conf"
	)
}

said() { # LOG: its last lines that say something, without passwords
	sed 's#//[^/@[:space:]]*@#//#g' "$1" | grep -E '^(E|W|Err|dpkg)' | tail -n 5 | sed 's/^/  /'
}

refuse() { # LOG WHAT: explain a failed apt-get
	said "$1" >&2
	if grep -qiE 'certificate verification failed|certificate is NOT trusted' "$1"; then
		fail "$2: the mirror's certificate cannot be verified" "give the secret ca: the PEM of its authority"
	elif grep -qE 'NO_PUBKEY|is not signed|verified because' "$1"; then
		fail "$2: the mirror's signature cannot be verified" \
			"name its key in the sources: Signed-By: a file of the base, or the key itself"
	elif grep -q 'No space left on device' "$1"; then
		fail "$2: no space left on the device" "free some space where the engine keeps its data"
	fi
	fail "$2" "see the lines above; give the secrets apt_sources, ca and proxy that your mirror needs"
}

install() { # PACKAGE...
	command -v apt-get >/dev/null || fail "the base ($(system)) lacks $* and has no apt-get to install them" \
		"use a Debian or Ubuntu base, or: verlstack base build --base debian --package NAME"
	private=$(mktemp -d /dev/shm/verlstack.XXXXXX)
	work=$(mktemp -d /var/tmp/verlstack.XXXXXX)
	trap 'rm -rf "$private" "$work"' EXIT
	mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
	: >"$private/began"
	settings "$private"
	export APT_CONFIG="$private/apt.conf"
	log=$private/log
	apt-get -q -o APT::Update::Error-Mode=any update >"$log" 2>&1 || refuse "$log" "the package lists cannot be had"
	[ -n "$(apt-get indextargets)" ] || fail "the base ($(system)) lacks $* and names no mirror" \
		"give the secret apt_sources: the sources of your mirror"
	# By its exact name: apt itself would take `gcc+` for gcc, and `python3.1` for a pattern.
	absent=$(for package; do
		apt-cache show --no-all-versions "$package" 2>/dev/null | grep -qxF "Package: $package" || printf '%s ' "$package"
	done)
	case " $absent" in
	*" python$PYTHON "* | *" libpython$PYTHON-dev "*)
		fail "$(system) has no package python$PYTHON, and the base no Python $PYTHON of its own" \
			"use a base that has it (Ubuntu 22.04 has 3.10, the image python:$PYTHON too), or: verlstack base build --base debian"
		;;
	esac
	[ -z "$absent" ] || fail "the mirror of $(system) has no package ${absent% }" \
		"correct the name, or give the secret apt_sources with a mirror that has it"
	guard=/usr/sbin/policy-rc.d # no package may start a service here
	if [ -e "$guard" ]; then guard=; else printf '#!/bin/sh\nexit 101\n' >"$guard" && chmod 755 "$guard"; fi
	apt-get -q -y install "$@" >"$log" 2>&1 </dev/null || refuse "$log" "the packages cannot be installed: $*"
	[ -z "$guard" ] || rm "$guard"
	forget
}

forget() { # what tells of a moment; base/rootfs.py leaves the same out of a bootstrap
	find /var/log /var/cache/apt /var/cache/ldconfig /var/lib/apt/lists /var/backups -type f \
		-newer "$private/began" -delete 2>/dev/null || true
	find /etc /var/lib/dpkg /var/cache/debconf /var/lib/apt /var/lib/systemd -maxdepth 2 -type f \
		-newer "$private/began" \( -name '*-old' -o -path /etc/passwd- -o -path /etc/group- -o -path /etc/shadow- \
		-o -path /etc/gshadow- -o -path '/etc/sub[ug]id-' -o -name .pwd.lock -o -path /etc/machine-id \
		-o -path '/var/lib/dpkg/lock*' -o -path /var/lib/dpkg/triggers/Lock -o -name extended_states \
		-o -name random-seed \) -delete 2>/dev/null || true
}

skeleton() { # the venv, as python_tree.venv_entries of the composer writes it
	home=$(python_home)
	version=$(sed -n 's/^#define[[:space:]]\{1,\}PY_VERSION[[:space:]]\{1,\}"\([0-9.]*\).*/\1/p' \
		"$home/../include/python$PYTHON/patchlevel.h" 2>/dev/null | head -n 1)
	wanted=$(printf 'home = %s\ninclude-system-site-packages = false\nversion = %s' "$home" "${version:-$PYTHON}")
	[ "$(cat "$venv/pyvenv.cfg" 2>/dev/null)" != "$wanted" ] || return 0
	mkdir -p "$venv/bin" "$venv/lib/python$PYTHON/site-packages"
	printf '%s\n' "$wanted" >"$venv/pyvenv.cfg"
	ln -sfn "$home/python$PYTHON" "$venv/bin/python"
	ln -sfn python "$venv/bin/python3"
	ln -sfn python "$venv/bin/python$PYTHON"
	ln -sfn lib "$venv/lib64"
}

[ "$(uname -m)" = x86_64 ] || fail "the base is for $(uname -m), the wheels are for x86_64" "use a base for linux/amd64"
case ${PYTHON-} in 3.*) ;; *) fail "PYTHON is not set" "build through bake: docker/docker-bake.hcl" ;; esac
: "${SOURCE_DATE_EPOCH:?build through bake: docker/docker-bake.hcl}"
for package in $PACKAGES; do
	case $package in
	[!a-z0-9]* | *[!a-z0-9+.-]* | *- | ?) fail "'$package' is no name of a Debian package" \
		"write bare names, without -, =VERSION or /SUITE at the end" ;;
	esac
done
lacks=$(missing)
# shellcheck disable=SC2086 # one word a package
[ -z "$lacks" ] || install $lacks
[ -n "$(python_home)" ] || fail "there is still no Python $PYTHON" "report this: its package put it elsewhere"
skeleton
