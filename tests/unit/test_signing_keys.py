"""Keys as files: which are taken, what opens them, and that nothing of a private one is shown."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from nacl.secret import SecretBox

from support.signatures import pair
from verlstack.errors import SignatureError
from verlstack.signing import keys

CYCLONEDX = "https://cyclonedx.org/bom"


def unasked():
    pytest.fail("a password was asked for")


def sealed(der, password, **changed):
    """A private key in cosign's box, some of its fields changed."""
    salt, nonce = b"s" * 32, b"n" * 24
    cost = {"N": 1024, "r": 8, "p": 1}
    import hashlib

    secret = hashlib.scrypt(password, salt=salt, n=1024, r=8, p=1, dklen=32)
    box = {
        "kdf": {"name": "scrypt", "params": cost | changed.get("params", {}), "salt": base64.b64encode(salt).decode()},
        "cipher": {"name": changed.get("cipher", "nacl/secretbox"), "nonce": base64.b64encode(nonce).decode()},
        "ciphertext": base64.b64encode(SecretBox(secret).encrypt(der, nonce).ciphertext).decode(),
    }
    box |= changed.get("box", {})
    text = base64.encodebytes(json.dumps(box).encode()).decode()
    kind = changed.get("kind", "SIGSTORE")
    return f"-----BEGIN ENCRYPTED {kind} PRIVATE KEY-----\n{text}-----END ENCRYPTED {kind} PRIVATE KEY-----\n"


def der_of(private):
    key = serialization.load_pem_private_key(private.read_bytes(), None)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.DER, form, serialization.NoEncryption())


@pytest.mark.parametrize("kind", ["SIGSTORE", "COSIGN"])
def test_a_key_in_cosigns_box(tmp_path, kind):
    private, public = pair(tmp_path, "k")
    box = tmp_path / "cosign.key"
    box.write_text(sealed(der_of(private), b"geheim", kind=kind))
    key = keys.private(box, lambda: b"geheim")
    assert key.public.id == keys.public(public).id
    assert keys.public(public).verifies(key.sign(b"data"), b"data")
    assert not keys.public(public).verifies(key.sign(b"data"), b"other")
    with pytest.raises(SignatureError, match="password does not open") as caught:
        keys.private(box, lambda: b"falsch")
    assert "falsch" not in str(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"params": {"N": 1 << 30}}, {"params": {"r": 1 << 20}}, {"params": {"p": 1000}}, {"params": {"N": "x"}},
        {"params": {"N": 1000}}, {"params": {"N": -2}}, {"params": {"p": 0}}, {"cipher": "none"},
        {"box": {"ciphertext": "!"}}, {"box": {"kdf": 1}}, {"box": {"cipher": {"name": "nacl/secretbox", "nonce": ""}}},
    ],
)  # fmt: skip
def test_a_box_that_is_damaged_or_demands_too_much(tmp_path, changed):
    private, _ = pair(tmp_path, "k")
    box = tmp_path / "cosign.key"
    box.write_text(sealed(der_of(private), b"geheim", **changed))
    with pytest.raises(SignatureError):
        keys.private(box, lambda: b"geheim")


def test_a_plain_key_needs_no_password_and_an_encrypted_one_does(tmp_path):
    private, _ = pair(tmp_path, "plain")
    assert keys.private(private, unasked).public.id
    private, public = pair(tmp_path, "locked", password=b"geheim")
    assert keys.private(private, lambda: b"geheim").public.id == keys.public(public).id
    with pytest.raises(SignatureError, match="password is wrong"):
        keys.private(private, lambda: b"falsch")


def test_nothing_of_a_private_key_is_shown(tmp_path):
    private, _ = pair(tmp_path, "k")
    number = serialization.load_pem_private_key(private.read_bytes(), None).private_numbers().private_value
    assert str(number) not in repr(keys.private(private, unasked))
    assert repr(keys.private(private, unasked)) == f"PrivateKey({keys.private(private, unasked).public.id})"


PUBLIC = serialization.PublicFormat.SubjectPublicKeyInfo


def pem(key):
    return key.public_key().public_bytes(serialization.Encoding.PEM, PUBLIC)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no public key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "no public key"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "a certificate"),
        (b"\xff\0" * 100, "no public key"),
        (b"x" * (1 << 17), "longer than any key"),
        (pem(ec.generate_private_key(ec.SECP384R1())), "another kind"),
        (pem(ed25519.Ed25519PrivateKey.generate()), "another kind"),
        (pem(rsa.generate_private_key(65537, 2048)), "another kind"),
    ],
)
def test_what_is_no_public_key(tmp_path, data, said):
    path = tmp_path / "key"
    path.write_bytes(data)
    with pytest.raises(SignatureError, match=said):
        keys.public(path)
    with pytest.raises(SignatureError):
        keys.private(path, lambda: b"")


def test_a_private_key_is_no_public_one_and_a_folder_neither(tmp_path):
    private, _ = pair(tmp_path, "k")
    with pytest.raises(SignatureError, match="a private key"):
        keys.public(private)
    with pytest.raises(SignatureError, match="no file"):
        keys.public(tmp_path)
    with pytest.raises(SignatureError, match="another kind"):
        keys.private(pair(tmp_path, "k384", ec.SECP384R1())[0], unasked)
