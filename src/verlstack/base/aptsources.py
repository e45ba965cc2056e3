"""Which of the machine's apt sources are the distribution's own: read from /etc/apt at run time, never written down."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical, reading
from verlstack.errors import BaseImageError, UsageError
from verlstack.web import redact

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# `deb [options] uri suite component…` (sources.list(5), one-line style)
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")
# Fields that decide; `deb822` is the other style, stanzas of `Field: value` with continuation lines.
_FIELD = re.compile(r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t].*)*)", re.MULTILINE)

# Options of the one-line style whose deb822 field has another name, and takes blanks where the option takes commas.
_LISTS = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}
_OPTION = re.compile(r"([\w-]+?)([+-]?)=(\S+)")

_KEY_FILE = re.compile(r"[Ss]igned-[Bb]y(?:=|:[ \t]*)(/[^\s\],]+)")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\s]+?\n-----END CERTIFICATE-----")

# Options of the machine's apt that reaching the mirror may depend on: proxies, TLS, retries, tolerance for old mirrors.
_CARRIED = re.compile(r"Acquire::(https?|ftp|Retries|Check-Valid-Until|Check-Date|ForceIPv[46])\b")


@dataclass(frozen=True, kw_only=True)
class Release:
    """What os-release says of a system.

    Attributes:
        id: "debian".
        version: "12".
        codename: "bookworm"; empty where the distribution has none.
        name: for people, "Debian GNU/Linux 12 (bookworm)".
    """

    id: str
    version: str
    codename: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a user gives apt for one bootstrap beside or instead of the machine's own settings.

    Attributes:
        sources: file name → text of an apt sources file that replaces the machine's mirrors; empty for the machine's.
            May hold a password.
        authority: certificates, PEM, that apt trusts beside the machine's while it fetches; not in the image.
        trusted: certificates, PEM, that the image itself shall trust.
    """

    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    authority: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A hash over what decides the bytes: where packages come from, without passwords, and what is trusted."""
        bare = {name: redact(text) for name, text in self.sources.items()}
        return canonical.digest({"sources": bare, "trusted": self.trusted})


def given(mirror: Path | None, authority: Path | None, trusted: Path | None) -> Given | None:
    """What three options of the command line say; None where none is used.

    Raises:
        UsageError: a file is missing, no list of sources, no PEM, or names a key that is missing.
    """
    if mirror is authority is trusted is None:
        return None
    return Given(
        sources=_given_sources(mirror) if mirror else {},
        authority=_certificates(authority, "--ca") if authority else (),
        trusted=_certificates(trusted, "--trust-ca") if trusted else (),
    )


def _given_sources(path: Path) -> dict[str, str]:
    """The file under a name by which mmdebstrap tells apt's two styles apart."""
    text = _text(path, "--mirror")
    if lines := list(_lines(text)):
        found, name = "\n".join(lines), "given.list"
        well = all(_ONE_LINE.fullmatch(line) for line in lines if not line.startswith("deb-src"))
    else:
        stanzas = [dict(_FIELD.findall(stanza)) for stanza in _stanzas(text)]
        found, name = text, "given.sources"
        well = bool(stanzas) and all({"Types", "URIs", "Suites"} <= set(fields) for fields in stanzas)
    if not well:
        raise UsageError(
            "no list of apt sources",
            where=str(path),
            todo="write `deb [options] URI SUITE COMPONENT` or deb822 stanzas",
        )
    for key in _KEY_FILE.findall(found):
        if not Path(key).is_file():
            raise UsageError(f"the mirror's key {key} is not there", where=str(path), todo="copy the key there")
    return {name: found.rstrip("\n") + "\n"}


def _certificates(path: Path, option: str) -> tuple[str, ...]:
    found = _PEM.findall(_text(path, option))
    try:
        for certificate in found:
            ssl.PEM_cert_to_DER_cert(certificate)
    except ValueError:
        found = []
    if not found:
        raise UsageError(
            "no certificate in PEM", where=f"{option} {path}", todo="convert it: openssl x509 -inform der -in FILE"
        )
    return tuple(f"{certificate}\n" for certificate in found)


def _text(path: Path, option: str) -> str:
    try:
        return reading.text(path)
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "not a text"
        raise UsageError(f"cannot read the file: {why}", where=f"{option} {path}", todo="check the path") from None


def parse_release(text: str) -> Release:
    """Read an os-release file's text (os-release(5): shell assignments, values maybe quoted)."""
    fields = {key: value.strip("\"'") for key, value in re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE)}
    return Release(
        id=fields.get("ID", "linux"),
        version=fields.get("VERSION_ID", ""),
        codename=fields.get("VERSION_CODENAME", ""),
        name=fields.get("PRETTY_NAME", fields.get("NAME", "unknown")),
    )


def own_sources(files: Mapping[str, str], release: Release) -> dict[str, str]:
    """The distribution's own sources among apt's files, in apt's own two styles, verbatim.

    Kept: binary packages, from a suite of this release (main, updates, security), with a component `main`, and signed
    by the default keyring or by an archive keyring. A vendor's repository differs in one of them.

    Args:
        files: names and texts of /etc/apt/sources.list and of the files in sources.list.d.
        release: this machine's.

    Returns:
        file name → text, `own.sources` (deb822) and `own.list`, whichever is not empty.

    Raises:
        BaseImageError: none is left.
    """
    stanzas, lines = [], []
    for name, text in sorted(files.items()):
        if name.endswith(".sources"):
            stanzas += [stanza for stanza in _stanzas(text) if _is_own_stanza(stanza, release)]
        elif name.endswith(".list"):
            lines += [line for line in _lines(text) if _is_own_line(line, release)]
    if not stanzas and not lines:
        raise BaseImageError(
            f"apt on this machine knows no mirror of {release.name}",
            where=", ".join(sorted(files)) or "/etc/apt/sources.list.d",
            todo=f"add a source of suite {release.codename}, component main, or use `--base registry:REF@sha256:…`",
        )
    found = {"own.sources": "\n\n".join(stanzas), "own.list": "\n".join(lines)}
    return {name: text + "\n" for name, text in found.items() if text}


def joined(sources: Mapping[str, str]) -> str:
    """All sources as one file; apt takes one style in a file, so that lines beside stanzas become stanzas.

    Args:
        sources: file name → text, as `own_sources` returns it or a user gave it.
    """
    if len({Path(name).suffix for name in sources}) < 2:
        return "\n".join(sources.values())
    return "\n".join(_stanzas_of(text) if name.endswith(".list") else text for name, text in sources.items())


def _stanzas_of(lines: str) -> str:
    return "\n".join(_as_stanza(match) for line in _lines(lines) if (match := _ONE_LINE.fullmatch(line)))


def _as_stanza(match: re.Match[str]) -> str:
    """A line of the one-line style in deb822."""
    fields = {"Types": "deb", "URIs": match["uri"], "Suites": match["suite"], "Components": match["components"]}
    for name, sign, value in _OPTION.findall(match["options"] or ""):
        change = {"+": "-Add", "-": "-Remove", "": ""}[sign]
        known = _LISTS.get(name)
        fields[(known or name.title()) + change] = value.replace(",", " ") if known else value
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def read(etc_apt: Path) -> dict[str, str]:
    """Names and texts of the source files apt would read."""
    paths = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]
    return {str(path): path.read_text(errors="replace") for path in paths if path.suffix in {".list", ".sources"}
            and path.is_file()}  # fmt: skip


def carried_options(dump: str) -> str:
    """The lines of `apt-config dump` that reaching the mirror may depend on; may hold a proxy's password."""
    return "".join(f"{line}\n" for line in dump.splitlines() if _CARRIED.match(line))


def _stanzas(text: str) -> Iterator[str]:
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    yield from (stanza.strip("\n") for stanza in re.split(r"\n\s*\n", plain) if stanza.strip())


def _lines(text: str) -> Iterator[str]:
    yield from (line.partition("#")[0].strip() for line in text.splitlines() if line.strip().startswith("deb"))


def _is_own_stanza(stanza: str, release: Release) -> bool:
    fields = {key.lower(): value for key, value in _FIELD.findall(stanza)}
    if fields.get("enabled", "yes").strip().lower() in {"no", "false", "0"}:
        return False
    return "deb" in fields.get("types", "").split() and _is_own(
        fields.get("suites", "").split(), fields.get("components", "").split(), fields.get("signed-by", ""), release
    )


def _is_own_line(line: str, release: Release) -> bool:
    match = _ONE_LINE.fullmatch(line)
    if not match:
        return False
    signed_by = re.search(r"signed-by=(\S+)", match["options"] or "")
    key = signed_by[1] if signed_by else ""
    return _is_own([match["suite"]], match["components"].split(), key, release)


def _is_own(suites: Iterable[str], components: Iterable[str], signed_by: str, release: Release) -> bool:
    known = {f"{release.codename}{part}" for part in ("", "-updates", "-security", "/updates")}
    archive_key = not signed_by or "-archive-" in signed_by or "BEGIN PGP" in signed_by
    suites = set(suites)
    return bool(suites) and suites <= known and "main" in components and archive_key
