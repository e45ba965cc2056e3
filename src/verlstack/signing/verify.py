"""`verlstack verify`: whether an image is signed by those who must have signed it, wherever it lies."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verlstack import oci, scan
from verlstack.base.transport import MAX_DOCUMENT
from verlstack.errors import FetchError, SignatureError, UnwellError, UsageError
from verlstack.signing import bundles, claims
from verlstack.smoke import said

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sigstore.verify import Verifier

    from verlstack.errors import VerlstackError
    from verlstack.signing.bundles import Identity
    from verlstack.signing.claims import Judged
    from verlstack.signing.keys import PublicKey
    from verlstack.signing.stores import Store

# cosign's short names for predicate types, and ours.
TYPES = {
    "cyclonedx": "https://cyclonedx.org/bom",
    "spdxjson": "https://spdx.dev/Document",
    "slsaprovenance1": "https://slsa.dev/provenance/v1",
    "smoke": "https://verlstack.dev/smoke/v1",
    "vuln": scan.PREDICATE,
}
_MOST = 500  # signatures and attestations of one image that are looked at
_MOST_SHOWN = 5  # reasons in an error
_WHAT = {claims.SIMPLE: "signature", claims.DSSE: "attestation"}


@dataclass(frozen=True, kw_only=True)
class Report:
    """An image that is signed as it must be.

    Attributes:
        place: where it was looked for.
        signed: file of a key, or an identity → the names (HOST/REPOSITORY) under which its owner signed the image.
        attested: type of a predicate → files of the keys, and identities, that signed one.
        smoke: what the signed reports of the smoke tests say was run.
        scans: which scanner looked for vulnerabilities, and when, by the signed results.
        ignored: what lies there and does not count, and why.
    """

    place: str
    digest: str
    threshold: int
    signed: dict[str, tuple[str, ...]]
    attested: dict[str, tuple[str, ...]]
    smoke: tuple[str, ...]
    scans: tuple[str, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Whose signatures count.

    Attributes:
        keys: the same key twice is one.
        identities: who needs no key.
        trust: what knows them; None where there are none.
    """

    keys: tuple[PublicKey, ...] = ()
    identities: tuple[Identity, ...] = ()
    trust: Verifier | None = None

    @property
    def all(self) -> dict[str, PublicKey | Identity]:
        """Each of them once."""
        return {key.id: key for key in self.keys} | {one.id: one for one in self.identities}


@dataclass
class _Found:
    """What counts, and (what, which, why) of what does not."""

    claims: list[Judged] = field(default_factory=list)
    attestations: list[Judged] = field(default_factory=list)
    ignored: list[tuple[str, str, str]] = field(default_factory=list)
    unwell: UnwellError | None = None

    def ignore(self, text: str) -> None:
        """Note something that cannot be judged."""
        self.ignored.append(("", "", text))

    def failed(self, which: str, error: VerlstackError) -> None:
        """Note what could not be read; that a registry is ill is no word on what it has."""
        self.ignore(f"{which}: {error.what}")
        if isinstance(error, UnwellError):
            self.unwell = error

    def reasons(self) -> tuple[str, ...]:
        """What does not count and why, alike ones as one sentence."""
        alike: dict[tuple[str, str], list[str]] = {}
        for what, which, why in self.ignored:
            alike.setdefault((what, why), []).append(which)
        return tuple(
            why if not what else f"{len(ones)} {what}s are {why}" if ones[1:] else f"{what} {ones[0][:19]}… is {why}"
            for (what, why), ones in alike.items()
        )


def verify(
    store: Store,
    who: Wanted,
    *,
    threshold: int | None = None,
    name: str | None = None,
    attestations: Sequence[str] = (),
) -> Report:
    """Verify an image: signatures first, then that it is whole.

    Args:
        store: where it lies.
        who: whose signatures count.
        threshold: how many of them must have signed; all where it is None.
        name: HOST/REPOSITORY as which it must be signed; any where it is None.
        attestations: types of predicates that as many of them must have signed, too.

    Raises:
        SignatureError: too few signatures, or the image is damaged.
        UsageError: a threshold that no number of signatures reaches.
        FetchError: the registry does not answer.
    """
    known = who.all
    wanted = len(known) if threshold is None else threshold
    if not 1 <= wanted <= len(known):
        what = f"{wanted} of {len(known)} different keys and identities can never have signed"
        raise UsageError(what, where="--threshold", todo="give as many different ones as must have signed, or more")
    found = _collect(store, who, name)
    signers = {x.id for one in found.claims for x in one.signers}
    if len(signers) < wanted:
        raise _too_few(store, f"{len(signers)} of the {wanted} signatures that it must have", found, known, signers)
    for kind in attestations:
        full = TYPES.get(kind, kind)
        signed = {x.id for one in found.attestations if one.kind == full for x in one.signers}
        if len(signed) < wanted:
            what = f"{len(signed)} of {wanted} signed attestations of the type {kind}"
            raise _too_few(store, what, found, known, signed, kind)
    store.check()
    return Report(
        place=store.name,
        digest=store.digest,
        threshold=wanted,
        signed={
            one.name: tuple(sorted({x.name for x in found.claims if one in x.signers and x.name}))
            for one in known.values()
            if one.id in signers
        },
        attested={
            kind: tuple(sorted({x.name for one in found.attestations if one.kind == kind for x in one.signers}))
            for kind in sorted({one.kind for one in found.attestations})
        },
        smoke=tuple(sorted({said.line(one.predicate) for one in found.attestations if one.kind == TYPES["smoke"]})),
        scans=tuple(sorted({scan.line(one.predicate) for one in found.attestations if one.kind == TYPES["vuln"]})),
        ignored=found.reasons(),
    )


def _too_few(
    store: Store,
    what: str,
    found: _Found,
    known: dict[str, PublicKey | Identity],
    by: set[str],
    kind: str | None = None,
) -> VerlstackError:
    """The error for too few signatures, or attestations of a kind: whose lack, what else is there, what to do."""
    if found.unwell:
        return found.unwell
    verb = "attest" if kind else "sign"
    if by:
        there, lacking = ([x.name for key, x in known.items() if (key in by) is here] for here in (True, False))
        what += f", by {', '.join(there)} and not by {', '.join(lacking)}"
        todo = f"have the others {verb} it (`verlstack {verb}`), or demand fewer (--threshold)"
    else:
        todo = f"do not use it until its publisher has {verb}ed it"
    reasons = list(found.reasons()[:_MOST_SHOWN])
    if reasons:
        todo += "; or name who else's signatures shall count (--key, --certificate-identity)"
    names = {address: name for name, address in TYPES.items()}
    if kind and found.attestations:
        types = sorted({names.get(x.kind, x.kind) for x in found.attestations})
        reasons.append(f"of these types there are some: {', '.join(types)}")
    if kind and kind not in TYPES and ":" not in kind:  # a type's address has one
        todo = f"name a type's address, or one of {', '.join(TYPES)}; if it is one, {todo}"
    if not reasons and not by:
        reasons = ["nothing is attested there" if kind else "nothing is signed there"]
    why = f": {'; '.join(reasons)}" if reasons else ""
    return SignatureError(f"this image has {what}{why}", where=f"{store.name}@{store.digest}", todo=todo)


def _collect(store: Store, who: Wanted, name: str | None) -> _Found:
    """Judge everything that lies about the image; what cannot be read is named, and counts for nothing."""
    found, seen = _Found(), set()
    for number, entry in enumerate(_layers(store, found)):
        if number >= _MOST:
            found.ignore(f"more than {_MOST} signatures; the rest was not looked at")
            break
        digest, kind = entry["digest"], entry["mediaType"]
        signature = _note(entry, claims.NOTE) if kind == claims.SIMPLE else ""
        if (digest, kind, signature) in seen:
            continue
        seen.add((digest, kind, signature))
        if entry["size"] > MAX_DOCUMENT:
            found.ignored.append((_WHAT.get(kind, "bundle"), digest, "longer than any"))
            continue
        try:
            data = store.blob(digest)
        except (FetchError, SignatureError) as e:
            found.failed(digest, e)
            continue
        one = _judged(entry, data, who, store.digest)
        why_not = one.why_not
        if not why_not and one.kind == claims.SIGNATURE and name not in {None, one.name}:
            why_not = f"signed, but as {one.name or 'nothing'}, not as {name}"
        if why_not:
            found.ignored.append((_WHAT.get(kind, "bundle"), digest, why_not))
        else:
            (found.claims if one.kind == claims.SIGNATURE else found.attestations).append(one)
    return found


def _judged(entry: dict[str, Any], data: bytes, who: Wanted, digest: str) -> Judged:
    """What one signed thing is, by the form that its descriptor names."""
    kind = entry["mediaType"]
    if bundles.READ.fullmatch(kind):
        return bundles.judge(data, who.keys, who.identities, who.trust, digest)
    if kind == claims.SIMPLE:
        one = claims.judge_claim(data, _note(entry, claims.NOTE), who.keys, digest)
    else:
        one = claims.judge_envelope(data, who.keys, digest)
    if one.why_not and _note(entry, bundles.CERTIFICATE):
        what = "signed without a key in the form of cosign 2, which only `cosign verify` reads"
        return dataclasses.replace(one, why_not=what)
    return one


def _layers(store: Store, found: _Found) -> Iterator[dict[str, Any]]:
    """Layers of the manifests about the image that may be signatures or attestations."""
    for entry in _entries(store, found):
        if entry["size"] > MAX_DOCUMENT:
            found.ignored.append(("manifest", entry["digest"], "longer than any"))
            continue
        try:
            layers = store.manifest(entry["digest"]).get("layers")
        except (FetchError, SignatureError) as e:
            found.failed(entry["digest"], e)
            continue
        for layer in layers if isinstance(layers, list) else ():
            if oci.is_descriptor(layer) and _is_signed(layer["mediaType"]):
                yield layer


def _entries(store: Store, found: _Found) -> Iterator[dict[str, Any]]:
    """What may be about the image; a broken list stops nothing that was found before it.

    Raises:
        FetchError: nothing could be read at all.
    """
    seen: set[tuple[str, bool]] = set()
    try:
        for entry in store.about():
            one = (
                entry["digest"],
                entry["size"] > MAX_DOCUMENT,
            )  # a wrong size must not hide the same with the right one
            if one in seen:
                continue
            if len(seen) >= _MOST:
                found.ignore(f"more than {_MOST} documents about the image; the rest was not looked at")
                return
            seen.add(one)
            yield entry
    except FetchError as e:
        if not seen:
            raise
        found.failed("the list of referrers", e)


def _is_signed(kind: str) -> bool:
    return kind in {claims.SIMPLE, claims.DSSE} or bool(bundles.READ.fullmatch(kind))


def _note(entry: dict[str, Any], name: str) -> str:
    notes = entry.get("annotations")
    return str(notes.get(name, "")) if isinstance(notes, dict) else ""
