"""mmdebstrap's command line, as root and as an ordinary user, and what its failures mean."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import shell, told
from verlstack.base import aptsources
from verlstack.errors import BaseImageError, StorageError, VerlstackError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from verlstack.base.debian import Plan

ETC_APT = Path("/etc/apt")
INDEX = "index"  # of all packages that the mirrors have, beside the archive; one file, an empty line after each list
_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")  # what the machine trusts
_TRUSTED = "trusted-"  # the trusted certificates' files, numbered
_GID_MAP = Path("/proc/self/gid_map")
_FAKEROOT_DIR = "usr/lib/x86_64-linux-gnu/libfakeroot"  # no folder that ldconfig scans
_PROBE_SECONDS = 10.0
_LAST_SYSTEM_GROUP = 65534  # Debian's packages own files by groups up to nogroup

# dpkg's path filters; what is not unpacked costs no time. Copyright files stay: licences ask for it.
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
_APT_OPTIONS = (
    'APT::Sandbox::User "root";',  # the sandbox's user cannot reach a cache below a private home
    'Acquire::http::Timeout "20";',  # seconds; apt's own default is 30, twice
    'Acquire::Languages "none";',
)
# Run as an ordinary user, `chown` inside the tree must go through libfakeroot, so the tree needs it while it grows.
_LEND_FAKEROOT = f"""set -e
mkdir -p "$1/{_FAKEROOT_DIR}"
IFS=:
for folder in $LD_LIBRARY_PATH; do
  if [ -e "$folder/$LD_PRELOAD" ]; then cp "$folder/$LD_PRELOAD" "$1/{_FAKEROOT_DIR}/"; exit 0; fi
done
echo "libfakeroot was not found in $LD_LIBRARY_PATH" >&2
exit 1"""
# update-ca-certificates takes one certificate a file, and makes the bundle and OpenSSL's links.
_TRUST = """set -e
mkdir -p "$1/usr/local/share/ca-certificates"
cp {files}*.crt "$1/usr/local/share/ca-certificates/"
chroot "$1" update-ca-certificates >&2"""
# dpkg forgets which file a package came from. apt's lists are gone from the tree afterwards, and are read beside it.
_KEEP_INDEX = """set -e
cd "$1"
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
lists=$(apt-get indextargets --format '$(FILENAME)' 'Created-By: Packages')
echo "$lists" | while IFS= read -r list; do
  /usr/lib/apt/apt-helper cat-file "$list"
  echo
done >{index}"""
_TAKE_FAKEROOT_BACK = f'rm -r "$1/{_FAKEROOT_DIR}"'

# apt speaks these lines under LC_ALL=C.UTF-8.
_MISSING = re.compile(r"^E: (?:Unable to locate package |Package ')([^ '\n]+)", re.MULTILINE)
_UNREACHABLE = re.compile(r"^E: (?:Failed to fetch|The repository) .*$", re.MULTILINE)
_UNTRUSTED = re.compile(
    r"^(?:Err|[WE]):.*(?:[Cc]ertificate verification failed|certificate is NOT trusted).*$", re.MULTILINE
)
_UNSIGNED = re.compile(r"^(?:Err|[WE]):.*(?:NO_PUBKEY|is not signed|couldn't be verified).*$", re.MULTILINE)
_MIRROR_TROUBLE = (
    (
        _UNTRUSTED,
        "the certificate of the distribution's mirror cannot be verified",
        "name the mirror's certificate authority: `verlstack base build --ca FILE`, or add it to this machine's",
    ),
    (
        _UNSIGNED,
        "a mirror's signature cannot be verified",
        "name its key in the source: `[signed-by=/path/of/key.gpg]`, or `Signed-By:` in a .sources file",
    ),
    (
        _UNREACHABLE,
        "the distribution's mirror cannot be reached, or refuses us",
        "see that `apt-get update` works on this machine, or use `--base registry:REF@sha256:…`",
    ),
)
# apt would find a wrong name only after the essential packages, half a minute later.
_CHECK_NAMES = """found=$(env --chdir="$1" APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" \\
  apt-cache show --no-all-versions {names} 2>/dev/null | sed -n 's/^Package: //p')
for package in {names}; do
  case " $(echo $found) " in
    *" $package "*) ;;
    *) echo "E: Unable to locate package $package" >&2; missing=1 ;;
  esac
done
exit "${{missing:-0}}"
"""


def prepare(
    wanted: Plan, shop: Path, archive: Path, *, tools: Path, env: Mapping[str, str], run: Callable[..., shell.Result]
) -> tuple[list[str | Path], dict[str, str]]:
    """The bootstrap's words and environment; writes apt's sources and options into `shop`."""
    # What docker/host-tools.sh fetched comes after what is installed; an ordinary user's PATH lacks the sbin folders.
    path = f"{env.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin:{tools}"
    tool = shutil.which("mmdebstrap", path=path)
    if tool is None:
        raise _tool_missing("mmdebstrap", root=os.geteuid() == 0)
    given = wanted.apt
    mirrors = given.sources if given else {}
    mirrors = mirrors or aptsources.own_sources(aptsources.read(ETC_APT), wanted.release)
    for name, text in mirrors.items():
        _write_secret(shop / name, text)
    options = shop / "apt.conf"
    _write_secret(options, "\n".join((*_APT_OPTIONS, *_machine_options(run), *_certificates(wanted, shop), "")))
    carried = {k: v for k, v in env.items() if k.lower() in {"http_proxy", "https_proxy", "no_proxy", "home"}}
    environment = carried | {
        "PATH": path,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TMPDIR": str(shop),
        "SOURCE_DATE_EPOCH": str(wanted.epoch),
        "DEBIAN_FRONTEND": "noninteractive",
        "FAKEROOTDONTTRYCHOWN": "1",  # without it libfakeroot tries first, and an unmapped group is an error
        "LD_LIBRARY_PATH": f"/{_FAKEROOT_DIR}",  # where a tree that grows finds the lent library
    }
    hooks = Path(tool).resolve().parent.parent / "share" / "mmdebstrap" / "hooks" / "maybe-merged-usr"
    arguments = words(wanted, archive, options, tuple(shop / name for name in mirrors), hooks)
    return [*_root_words(path, run), "sh", "-c", 'umask 022; exec "$@"', "sh", tool, *arguments], environment


def _write_secret(path: Path, text: str) -> None:
    """Write what may hold a mirror's or a proxy's password."""
    path.touch(mode=0o600)
    path.write_text(text)


def _certificates(wanted: Plan, shop: Path) -> list[str]:
    """The option that makes apt trust the given authority beside the machine's; files for the hook that adds others."""
    if wanted.apt is None:
        return []
    for number, certificate in enumerate(wanted.apt.trusted):
        (shop / f"{_TRUSTED}{number}.crt").write_text(certificate)
    if not wanted.apt.authority:
        return []
    bundle = shop / "authorities.pem"
    machine = _BUNDLE.read_text(errors="replace") if _BUNDLE.is_file() else ""
    bundle.write_text("\n".join((machine, *wanted.apt.authority)))
    return [f'Acquire::https::CAInfo "{bundle}";']


def words(wanted: Plan, archive: Path, apt_options: Path, mirrors: Sequence[Path], hooks: Path) -> list[str | Path]:
    """The arguments of mmdebstrap.

    `essential` is its smallest variant that installs packages; the hook links /bin to /usr/bin itself, which spares
    the usrmerge package and with it all of Perl (50 MB).
    """
    return [
        "--mode=root",
        "--variant=essential",
        "--format=tar",
        f"--architectures={wanted.architecture}",
        f"--include={','.join(wanted.packages)}",
        f"--hook-dir={hooks}",
        f"--setup-hook={_CHECK_NAMES.format(names=' '.join(wanted.packages))}",
        f"--aptopt={apt_options}",
        *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
        # No terminal is needed, an ordinary user cannot mount one, and a killed run must leave no /dev behind.
        "--skip=chroot/mount/dev",
        f'--extract-hook=if [ -n "${{FAKEROOTKEY:-}}" ]; then {_LEND_FAKEROOT}\nfi',
        *([f"--customize-hook={_TRUST.format(files=apt_options.with_name(_TRUSTED))}"] if _trusts(wanted) else ()),
        f"--customize-hook={_KEEP_INDEX.format(index=shlex.quote(str(apt_options.with_name(INDEX))))}",
        f'--customize-hook=if [ -n "${{FAKEROOTKEY:-}}" ]; then {_TAKE_FAKEROOT_BACK}; fi',
        wanted.release.codename,
        archive,
        *mirrors,
    ]


def _trusts(wanted: Plan) -> bool:
    return wanted.apt is not None and bool(wanted.apt.trusted)


def _machine_options(run: Callable[..., shell.Result]) -> list[str]:
    """What this machine's apt needs to reach its mirror: proxies, tolerances, and the place of mirror passwords."""
    options = [aptsources.carried_options(run(("apt-config", "dump"), timeout=_PROBE_SECONDS).stdout)]
    if (passwords := ETC_APT / "auth.conf.d").is_dir():
        options.append(f'Dir::Etc::netrcparts "{passwords}/";')
    if (password := ETC_APT / "auth.conf").is_file():
        options.append(f'Dir::Etc::netrc "{password}";')
    return options


def _root_words(path: str, run: Callable[..., shell.Result]) -> list[str]:
    """What must stand before a command so that it may own files as it likes, or believes so.

    As root: a mount namespace of its own, so that the /proc of a killed run does not stay mounted below the cache.
    As an ordinary user: a user namespace of one id (no newuidmap needed), and fakeroot, which remembers the owners
    that cannot be set; the resulting tar is the same, byte for byte.

    Raises:
        BaseImageError: an ordinary user, and the machine allows neither.
    """
    if os.geteuid() == 0 and _owns_all_groups(_GID_MAP.read_text()):
        return ["unshare", "--mount"] if _works(("unshare", "--mount", "true"), run) else []
    alone = ["unshare", "--map-root-user", "--mount"]
    if not _works((*alone, "true"), run):
        raise BaseImageError(
            "this machine does not let an ordinary user make a user namespace, so nothing can be bootstrapped",
            where="unshare --map-root-user --mount true",
            todo="run as root, or have the administrator allow it (sysctl kernel.unprivileged_userns_clone=1), or use"
            " `--base registry:REF@sha256:…`",
        )
    if shutil.which("fakeroot", path=path) is None:
        raise _tool_missing("fakeroot", root=False)
    return [*alone, "fakeroot"]


def _works(command: Sequence[str], run: Callable[..., shell.Result]) -> bool:
    try:
        return run(command, timeout=_PROBE_SECONDS).returncode == 0
    except shell.ProgramMissingError:
        return False


def _owns_all_groups(gid_map: str) -> bool:
    """Whether we are root over all of Debian's groups, and not alone in a small user namespace (user_namespaces(7))."""
    rows = (line.split() for line in gid_map.splitlines())
    return any(int(inside) == 0 and int(count) > _LAST_SYSTEM_GROUP for inside, _, count in rows)


def _tool_missing(name: str, *, root: bool) -> BaseImageError:
    todo = f"apt-get install {name}"
    if not root:
        todo = f"run `make host-tools`, which fetches {name} without root"
    return BaseImageError(f"{name} is not installed; `--base debian` bootstraps with it", where="PATH", todo=todo)


def failure(result: shell.Result, wanted: Plan) -> VerlstackError:
    """The error behind a failed bootstrap, from what apt and mmdebstrap printed."""
    text = told.plain(f"{result.stderr}\n{result.stdout}")
    where = "--mirror" if wanted.apt and wanted.apt.sources else str(ETC_APT)
    if "No space left on device" in text or "You don't have enough free space" in text:
        return StorageError(
            "cannot write: no space left on the device", where="VERLSTACK_CACHE/tmp",
            todo="free 1 GB, or set VERLSTACK_CACHE to a larger disk",
        )  # fmt: skip
    if missing := _MISSING.findall(text):
        return BaseImageError(
            f"the mirror of {wanted.release.name} has no package {', '.join(sorted(set(missing)))}",
            where=where,
            todo="correct the package's name (constraints/stacks.toml, --package), or use a mirror that has it",
        )
    for pattern, what, todo in _MIRROR_TROUBLE:
        if found := pattern.search(text):
            return BaseImageError(what, where=found[0], todo=todo)
    return BaseImageError(
        f"mmdebstrap failed with exit status {result.returncode}",
        where=told.plain(result.tail),
        todo="read its last lines above; as a way round use `--base registry:REF@sha256:…`",
    )
