"""What may be shown of other programs' output: no control character, no credential, and all of the text."""

import pytest

from verlstack import explain, leftovers, network, told
from verlstack.trees import Difference, Node


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m text", "red text"),
        ("\x1b]0;a window's title\x07text", "text"),
        ("\x1b]8;;https://x.invalid\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x1b]0;no end: text stays", "0;no end: text stays"),
        ("\x9b31mone byte\x9b0m", "one byte"),
        ("\x1b(Bcharset \x1bc reset", "charset  reset"),
        ("over\rwritten\b\b", "overwritten"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\x1b", ""),
    ],
)
def test_nothing_speaks_to_the_terminal(raw, shown):
    assert told.plain(raw) == shown


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("see https://user:s3cret@host.invalid/simple", "see https://host.invalid/simple"),
        ("https://s3cret@host.invalid/x", "https://host.invalid/x"),
        ("https://user:s3/cr@et@host.invalid/x", "https://host.invalid/x"),
        ("https://user:s3\x1b[0mcret@host.invalid", "https://host.invalid"),
        ("two http://a:s3cret@x and http://b:s3cret@y", "two http://x and http://y"),
        ("HTTP_PROXY=u:s3cret@proxy.invalid:3128", "HTTP_PROXY=proxy.invalid:3128"),
        ("Proxy-Authorization: Basic s3cret==", "Proxy-Authorization: Basic …"),
        ("{'Authorization': 'Bearer s3cret'}", "{'Authorization': 'Bearer …'}"),
        ("https://store.invalid/blob?sig=s3cret#x", "https://store.invalid/blob#x"),
        ("docker-image://r.invalid:5000/os@sha256:12", "docker-image://r.invalid:5000/os@sha256:12"),
        ("docker-image://u:s3cret@r.invalid:5000/os@sha256:12", "docker-image://r.invalid:5000/os@sha256:12"),
        ("https://git.invalid/verl.git#abc", "https://git.invalid/verl.git#abc"),
        ("// mail to a@b // x", "// mail to a@b // x"),
    ],
)
def test_no_credential_is_shown(raw, shown):
    assert told.plain(raw) == shown
    assert "s3cret" not in told.plain(raw)


def test_a_name_out_of_an_image_keeps_what_it_is():
    assert told.escaped("é/\x1b[2J\n") == "é/\\x1b[2J\\n"


def test_reports_about_an_image_speak_to_no_terminal():
    node = Node(kind="symlink", mode=0o777, uid=0, gid=0, content="\x1b[2J")
    path = "run/secrets/\x1b[2Jx"
    other = Node(kind="symlink", mode=0o777, uid=0, gid=0)
    (shown,) = explain.explain([Difference(path=path, one=node, other=other)], {path: "\x1b"})
    texts = [shown.path, shown.one, shown.other, shown.owner, *(x.path for x in leftovers.find({path: node}, {}))]
    assert len(texts) == 5
    assert all(text.isprintable() for text in texts)


def test_the_proxies_of_an_environment():
    env = {"https_proxy": "http://low", "HTTPS_PROXY": "http://up", "NO_PROXY": "x", "http_proxy": "", "TOKEN": "t"}
    assert network.proxies(env) == {"HTTPS_PROXY": "http://low", "NO_PROXY": "x"}
    assert network.settings({**env, "SSL_CERT_FILE": "/ca"}) == {
        **{k: v for k, v in env.items() if k != "TOKEN"},
        "SSL_CERT_FILE": "/ca",
    }
