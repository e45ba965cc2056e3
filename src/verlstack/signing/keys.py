"""Keys for signatures: ECDSA on P-256, as plain or encrypted PEM, or in cosign's own encrypted form."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from verlstack import reading
from verlstack.errors import SignatureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MOST = 1 << 16  # bytes of a key file; cosign's have 700
_COSIGN = re.compile(
    rb"\s*-----BEGIN ENCRYPTED (?:SIGSTORE|COSIGN) PRIVATE KEY-----(.*)"
    rb"-----END ENCRYPTED (?:SIGSTORE|COSIGN) PRIVATE KEY-----\s*",
    re.DOTALL,
)
_ALGORITHM = ec.ECDSA(hashes.SHA256())
_MOST_SCRYPT = 1 << 28  # bytes of memory that a key file may demand; cosign's demand 64 MiB
_MOST_PARALLEL = 16  # likewise of passes; cosign's demand one
_PUBLISHERS = "name the file of the publisher's public key: PEM, ECDSA on P-256"
_MAKE = "`cosign generate-key-pair`, or `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`"
_PAIR = f"a pair is made with {_MAKE}"


@dataclass(frozen=True)
class PublicKey:
    """A key to verify with.

    Attributes:
        name: its file, for messages.
        id: `sha256:…` of its DER form: two files with one key are one key.
    """

    name: str
    id: str
    _key: ec.EllipticCurvePublicKey

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Whether the key's owner signed these bytes."""
        try:
            self._key.verify(signature, data, _ALGORITHM)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class PrivateKey:
    """A key to sign with; nothing of it is ever shown."""

    public: PublicKey
    _key: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"PrivateKey({self.public.id})"

    def sign(self, data: bytes) -> bytes:
        """A signature in DER form."""
        return self._key.sign(data, _ALGORITHM)


def public(path: Path) -> PublicKey:
    """The public key in a file.

    Raises:
        SignatureError: there is none, or one of another kind.
    """
    data = _read(path)
    if b"CERTIFICATE" in data:
        raise _unfit(path, "a certificate, whose dates and authority nobody checks here", "give the bare public key")
    if b"PRIVATE KEY" in data:
        raise _unfit(path, "a private key", "give its public half (`cosign public-key`, `openssl pkey -pubout`)")
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise _unfit(path, "no public key in PEM form", _PUBLISHERS) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _unfit(path, "a key of another kind than ECDSA on P-256", _PUBLISHERS)
    return _public(key, str(path))


def private(path: Path, password: Callable[[], bytes]) -> PrivateKey:
    """The private key in a file.

    Args:
        path: the file.
        password: asked for only where the key is encrypted.

    Raises:
        SignatureError: there is none, one of another kind, or the password is wrong.
    """
    data = _read(path)
    if match := _COSIGN.fullmatch(data):
        der = _opened(path, match[1], password())
        key = _loaded(path, lambda: serialization.load_der_private_key(der, None))
    else:
        secret = password() if b"ENCRYPTED" in data else None
        key = _loaded(path, lambda: serialization.load_pem_private_key(data, secret))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _unfit(path, "a key of another kind than ECDSA on P-256", f"make a pair with {_MAKE}")
    return PrivateKey(_public(key.public_key(), str(path)), key)


def _public(key: ec.EllipticCurvePublicKey, name: str) -> PublicKey:
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(name, f"sha256:{hashlib.sha256(der).hexdigest()}", key)


def _read(path: Path) -> bytes:
    try:
        with reading.opened(path) as file:
            data = file.read(_MOST + 1)
    except OSError as e:
        raise _unfit(path, f"no file that can be read ({e.strerror})", f"name the file of a key; {_PAIR}") from None
    if len(data) > _MOST:
        raise _unfit(path, "longer than any key", "name the file of a key")
    return data


def _loaded(path: Path, load: Callable[[], Any]) -> Any:
    """What `load` gives; its own words may quote the key, so they are not shown."""
    try:
        return load()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _unfit(
            path, "no private key, or the password is wrong", f"set COSIGN_PASSWORD to the right one; {_PAIR}"
        ) from None


def _opened(path: Path, text: bytes, password: bytes) -> bytes:
    """The DER form of a key in cosign's box: scrypt, then NaCl's secretbox."""
    import nacl.exceptions  # noqa: PLC0415 - only here, and it takes 30 ms
    import nacl.secret  # noqa: PLC0415

    try:
        box = json.loads(base64.b64decode(b"".join(text.split()), validate=True))
        kdf, cipher = box["kdf"], box["cipher"]
        cost = {name: int(kdf["params"][name.upper() if name == "n" else name]) for name in ("n", "r", "p")}
        salt, nonce = (base64.b64decode(x, validate=True) for x in (kdf["salt"], cipher["nonce"]))
        sealed = base64.b64decode(box["ciphertext"], validate=True)
        known = (kdf["name"], cipher["name"]) == ("scrypt", "nacl/secretbox")
        if not known or not 0 < cost["p"] <= _MOST_PARALLEL:
            raise _unfit(path, "sealed in a way that cosign does not use", f"make a pair with {_MAKE}")
        secret = hashlib.scrypt(password, salt=salt, dklen=32, maxmem=_MOST_SCRYPT, **cost)
        return bytes(nacl.secret.SecretBox(secret).decrypt(sealed, nonce))
    except nacl.exceptions.CryptoError:
        what = "the password does not open this key"
        raise SignatureError(what, where=str(path), todo="set COSIGN_PASSWORD to the right one") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, MemoryError):
        raise _unfit(path, "a damaged key of cosign", f"make a pair with {_MAKE}") from None


def _unfit(path: Path, what: str, todo: str) -> SignatureError:
    return SignatureError(f"this key cannot be used: it is {what}", where=str(path), todo=todo)
