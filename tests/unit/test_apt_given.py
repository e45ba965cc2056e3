"""What an admin gives apt for one bootstrap: sources, certificates, and that none of it reaches argv or a message."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from test_debian_plan import BOOKWORM, EPOCH, FAST, OS_RELEASE, Run, said

from verlstack.base import aptsources, debian, mmdebstrap
from verlstack.errors import BaseImageError, UsageError

PEM = ssl.DER_cert_to_PEM_cert(b"not really a certificate, but base64")
ONE_LINE = "# ours\ndeb http://admin:s3cret@mirror.invalid/debian bookworm main\ndeb [trusted=yes] copy:/srv/mofed ./\n"
DEB822 = "Types: deb\nURIs: http://mirror.invalid/debian\nSuites: bookworm\nComponents: main\n"


def given(tmp_path, text=ONE_LINE, *, ca=None, trusted=None):
    paths = []
    for name, content in (("mirror", text), ("ca", ca), ("trusted", trusted)):
        (tmp_path / name).write_text(content or "")
        paths.append(tmp_path / name if content else None)
    return aptsources.given(*paths)


def plan(apt):
    return debian.plan(("gcc",), epoch=EPOCH, compression=FAST, os_release=OS_RELEASE, apt=apt)


@pytest.mark.parametrize(("text", "name"), [(ONE_LINE, "given.list"), (DEB822, "given.sources")])
def test_both_styles_are_known(tmp_path, text, name):
    assert list(given(tmp_path, text).sources) == [name]


STANZA = """Types: deb
URIs: http://mirror.invalid/debian-security
Suites: bookworm-security
Components: main contrib
Architectures: amd64 i386
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
Languages-Remove: de
"""


def test_apts_two_styles_become_one_beside_each_other_only():
    options = "arch=amd64,i386 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg lang-=de"
    line = f"deb [ {options} ] http://mirror.invalid/debian-security bookworm-security main contrib  # ours\n"
    assert aptsources.joined({"own.sources": DEB822, "own.list": line}) == f"{DEB822}\n{STANZA}"
    assert aptsources.joined({"own.list": line}) == line
    assert aptsources.joined({"own.sources": DEB822}) == DEB822
    assert aptsources.joined({}) == ""


def test_two_lines_become_two_stanzas():
    lines = "deb http://m.invalid a main\ndeb http://m.invalid b main\n"
    text = aptsources.joined({"own.sources": DEB822, "own.list": lines})
    assert len([stanza for stanza in text.split("\n\n") if "Types: deb" in stanza]) == 3


def test_nothing_given_is_nothing():
    assert aptsources.given(None, None, None) is None


@pytest.mark.parametrize("text", ["hello\n", "deb\n", "Types: deb\n", " ", "deb http://only-a-uri\n"])
def test_what_is_no_list_of_sources(tmp_path, text):
    with pytest.raises(UsageError, match="no list of apt sources"):
        given(tmp_path, text)


@pytest.mark.parametrize("text", ["deb [signed-by={}] http://m bookworm main\n", DEB822 + "Signed-By: {}\n"])
def test_a_missing_key_is_named(tmp_path, text):
    with pytest.raises(UsageError, match="no-such-key"):
        given(tmp_path, text.format(tmp_path / "no-such-key"))
    (tmp_path / "key").write_text("")
    assert given(tmp_path, text.format(tmp_path / "key"))


@pytest.mark.parametrize("text", ["DER\n", PEM.replace("bm90", "!!!!"), "-----BEGIN CERTIFICATE-----\n"])
def test_a_certificate_that_is_none(tmp_path, text):
    with pytest.raises(UsageError, match="no certificate in PEM") as caught:
        given(tmp_path, ca=text)
    assert caught.value.where.startswith("--ca")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="No such file") as caught:
        aptsources.given(None, tmp_path / "none", None)
    assert "none" in caught.value.where


def test_the_password_is_in_no_repr_and_no_key(tmp_path):
    apt = given(tmp_path)
    assert "s3cret" not in repr(apt)
    assert apt.key == given(tmp_path, ONE_LINE.replace("s3cret", "other")).key
    assert apt.key != given(tmp_path, ONE_LINE.replace("mirror", "another")).key


def test_the_key_of_a_plain_bootstrap_stays_and_that_of_others_differs(tmp_path):
    ca = given(tmp_path, ca=PEM)
    keys = [plan(None).key, plan(ca).key, plan(given(tmp_path, trusted=PEM)).key]
    assert len(set(keys)) == 3
    assert plan(ca).key == plan(given(tmp_path)).key, "a certificate that only fetches decides no byte"


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(mmdebstrap.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    monkeypatch.setattr(mmdebstrap, "_BUNDLE", tmp_path / "bundle")
    (tmp_path / "bundle").write_text("the machine's\n")
    shop = tmp_path / "shop"
    shop.mkdir()

    def prepare(apt):
        words, env = mmdebstrap.prepare(plan(apt), shop, shop / "root.tar", tools=Path("/t"), env={}, run=Run())
        return shop, [str(word) for word in words], env

    return prepare


def test_secrets_stand_in_private_files_alone(tmp_path, prepared):
    shop, words, env = prepared(given(tmp_path, ca=PEM))
    assert "s3cret" not in " ".join(words) + str(env)
    assert (shop / "given.list").stat().st_mode & 0o777 == 0o600
    assert "admin:s3cret@" in (shop / "given.list").read_text()
    assert f'CAInfo "{shop / "authorities.pem"}"' in (shop / "apt.conf").read_text()
    assert (shop / "authorities.pem").read_text() == f"the machine's\n\n{PEM}"
    assert not any("update-ca-certificates" in word for word in words)


def test_a_certificate_for_the_image_goes_through_the_hook(tmp_path, prepared):
    shop, words, _ = prepared(given(tmp_path, trusted=PEM * 2))
    assert [(shop / f"trusted-{n}.crt").read_text() for n in (0, 1)] == [PEM, PEM]
    hook = next(word for word in words if "update-ca-certificates" in word)
    assert f"{shop}/trusted-*.crt" in hook
    assert "CAInfo" not in (shop / "apt.conf").read_text()


@pytest.mark.parametrize(
    ("stderr", "what"),
    [
        ("Err:1 https://u:s3cret@m.invalid x\nW: https://m.invalid: The certificate is NOT trusted.",
         "certificate of the distribution's mirror"),
        ("W: GPG error: http://m.invalid: NO_PUBKEY 123\nE: The repository 'x' is not signed.", "signature"),
    ],
)  # fmt: skip
def test_a_mirror_that_is_not_trusted(tmp_path, stderr, what):
    error = mmdebstrap.failure(said(stderr), plan(given(tmp_path)))
    assert isinstance(error, BaseImageError)
    assert what in error.what
    assert "s3cret" not in str(error)


def test_a_missing_package_is_blamed_on_the_given_mirror(tmp_path):
    said_so = said("E: Unable to locate package mofed")
    assert mmdebstrap.failure(said_so, plan(given(tmp_path))).where == "--mirror"
    assert mmdebstrap.failure(said_so, plan(None)).where == "/etc/apt"
    assert BOOKWORM.name in mmdebstrap.failure(said_so, plan(None)).what
