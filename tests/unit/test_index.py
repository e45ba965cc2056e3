import sys

import pytest
import requests
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from verlstack import web
from verlstack.errors import FetchError, HashMismatchError
from verlstack.index import Index, configured, locate, session, uv_environment
from verlstack.shell import Result
from verlstack.web import AgainError, get, redact

A, B = "a" * 64, "b" * 64


def pip_says(*lines, status=0):
    def run(args, *, env, timeout):
        assert args == [sys.executable, "-P", "-m", "pip", "config", "list"]
        return Result(args=tuple(args), returncode=status, stdout="\n".join(lines), stderr="")

    return run


@pytest.mark.parametrize(
    ("env", "pip", "primary"),
    [
        ({}, (), PYPI_SIMPLE_ENDPOINT),
        ({}, ("global.index-url='https://g/s'",), "https://g/s"),
        ({}, ("global.index-url='https://g/s'", "install.index-url='https://i/s'"), "https://i/s"),
        ({}, ("global.index_url='https://g/s'", ":env:.index-url='https://e/s'"), "https://e/s"),
        ({"PIP_INDEX_URL": "https://p/s"}, ("install.index-url='https://i/s'",), "https://p/s"),
        ({"PIP_INDEX_URL": "https://p/s", "UV_INDEX_URL": "https://u/s"}, (), "https://u/s"),
        ({"UV_INDEX_URL": "https://u/s", "UV_DEFAULT_INDEX": "corp=https://d/s"}, (), "https://d/s"),
        ({"UV_DEFAULT_INDEX": ""}, ("global.index-url='https://g/s'",), "https://g/s"),
        ({"PIP_INDEX_URL": "file:///srv/simple"}, ("global.index-url='https://g/s'",), "https://g/s"),
        ({}, ("wheel.index-url='https://w/s'", "global.xindex-url='https://x/s'"), PYPI_SIMPLE_ENDPOINT),
    ],
)
def test_primary_index_by_precedence(env, pip, primary):
    assert configured(env, pip_says(*pip)).primary == primary


def test_extras_keep_order_and_drop_files_doubles_and_the_primary():
    env = {
        "UV_DEFAULT_INDEX": "https://d/s",
        "UV_INDEX": "corp=https://1/s https://d/s",
        "UV_EXTRA_INDEX_URL": "https://2/s",
        "PIP_EXTRA_INDEX_URL": "file:///srv/simple https://1/s",
    }
    pip = pip_says(r"global.extra-index-url='file:///opt/simple\nhttps://3/s'", "global.cert='/ca.crt'")
    got = configured(env, pip)
    assert got.extras == ("https://1/s", "https://2/s", "https://3/s")
    assert got.cert == "/ca.crt"


def test_a_slip_in_the_primary_is_an_error_and_not_the_public_index():
    with pytest.raises(FetchError, match="UV_DEFAULT_INDEX is not an http") as e:
        configured({"UV_DEFAULT_INDEX": "//me:secret@mirror/simple"}, pip_says())
    assert "secret" not in str(e.value)


def test_damaged_pip_configuration_is_named():
    with pytest.raises(FetchError, match="pip cannot read its configuration: bad line") as e:
        configured({}, pip_says("bad line https://me:secret@h/s", status=1))
    assert "secret" not in str(e.value)


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("https://h/s/", "https://h/s/"),
        ("https://me:pw@h:8080/s/", "https://h:8080/s/"),
        ("https://token@h/s", "https://h/s"),
        ("https://me:p@w@h/s", "https://h/s"),
        ("https://me:p/w@h/s", "https://h/s"),
        ("https://me:p?w@h/s", "https://h/s"),
        ("https://h/f.whl?token=x&y#sha256=z", "https://h/f.whl"),
        ("no https://me:pw@h/s?t=1, 'https://x@i/s#f' here", "no https://h/s 'https://i/s' here"),
        ("https://h/@scope/x", "https://h/@scope/x"),
    ],
)
def test_redact(text, bare):
    assert redact(text) == bare


def test_repr_shows_no_credentials():
    assert "secret" not in repr(Index(primary="https://me:secret@h/s", extras=("https://x:secret@h/s",)))


def test_uv_gets_the_primary_index_and_the_ca_bundle_but_nothing_of_pip():
    index = Index(primary="https://me:pw@h/s", extras=("https://x/s",), cert="/pip.crt")
    env = {"PIP_INDEX_URL": "https://p/s", "UV_INDEX_URL": "https://u/s", "UV_INDEX": "https://i/s", "HOME": "/h"}
    assert uv_environment(index, env) == {
        "HOME": "/h",
        "UV_INDEX": "https://i/s",
        "UV_DEFAULT_INDEX": "https://me:pw@h/s",
        "SSL_CERT_FILE": "/pip.crt",
    }
    assert uv_environment(index, {"SSL_CERT_FILE": "/own.crt"})["SSL_CERT_FILE"] == "/own.crt"
    assert uv_environment(index, {"REQUESTS_CA_BUNDLE": "/r.crt"})["SSL_CERT_FILE"] == "/r.crt"
    assert "SSL_CERT_FILE" not in uv_environment(Index(primary="https://h/s"), {})


@pytest.mark.parametrize(
    ("env", "cert", "verify"),
    [
        ({}, None, True),
        ({"SSL_CERT_FILE": "/s.crt"}, None, "/s.crt"),
        ({"SSL_CERT_FILE": "/s.crt"}, "/pip.crt", "/pip.crt"),
        ({"PIP_CERT": "/p.crt"}, "/pip.crt", "/p.crt"),
        ({"PIP_CERT": "/p.crt", "REQUESTS_CA_BUNDLE": "/r.crt"}, None, "/r.crt"),
    ],
)
def test_session_trusts_the_users_ca_bundle(env, cert, verify):
    with session(Index(primary="https://h/s", cert=cert), env) as made:
        assert made.verify == verify
        assert str(made.headers["User-Agent"]).startswith("verlstack ")


def answer(status=200, body=b"", kind="text/html", url="https://h/s/demo/", **headers):
    made = requests.Response()
    made.status_code, made._content, made._content_consumed, made.url = status, body, True, url
    made.headers.update({"Content-Type": kind, **headers})
    return made


class Fake:
    """A session that answers from a table, or raises what stands there."""

    def __init__(self, table):
        self.table, self.asked = table, []

    def get(self, url, **kwargs):
        self.asked.append((url, kwargs["auth"]))
        found = self.table.get(url, answer(404))
        if isinstance(found, Exception):
            raise found
        return found


def page(url, *links):
    return answer(body="".join(f'<a href="{href}">{name}</a>' for name, href in links).encode(), url=url)


H, X = "https://h/s/demo/", "https://x/s/demo/"
WHEEL = "demo-1.0-py3-none-any.whl"
BOTH = Index(primary="https://h/s", extras=("https://x/s/",))


def test_locate_prefers_the_primary_and_asks_extras_only_for_the_rest():
    at = Fake({H: page(H, (WHEEL, f"../f/{WHEEL}#sha256={A}"))})
    assert locate(BOTH, "Demo", "1.0", {A: WHEEL}, at) == {A: f"https://h/s/f/{WHEEL}"}
    assert [url for url, _ in at.asked] == [H]
    at = Fake({X: page(X, (WHEEL, f"{WHEEL}#sha256={A}"))})
    assert locate(BOTH, "demo", "1.0", {A: WHEEL}, at) == {A: f"https://x/s/demo/{WHEEL}"}


def test_locate_goes_by_hash_and_by_name_only_where_the_page_has_no_hash():
    at = Fake({H: page(H, ("renamed-1.0.zip", f"r.zip#sha256={A}"), (WHEEL, "w.whl"))})
    assert locate(BOTH, "demo", "1.0", {A: "demo-1.0.zip", B: WHEEL}, at) == {
        A: "https://h/s/demo/r.zip",
        B: "https://h/s/demo/w.whl",
    }


def test_locate_refuses_another_hash_and_names_both():
    at = Fake({H: page(H, (WHEEL, f"{WHEEL}#sha256={B}"))})
    with pytest.raises(HashMismatchError) as e:
        locate(BOTH, "demo", "1.0", {A: WHEEL}, at)
    assert A in str(e.value)
    assert B in str(e.value)
    assert WHEEL in str(e.value)


def test_locate_takes_the_right_hash_from_an_extra_when_the_primary_has_another():
    at = Fake({H: page(H, (WHEEL, f"{WHEEL}#sha256={B}")), X: page(X, (WHEEL, f"{WHEEL}#sha256={A}"))})
    assert locate(BOTH, "demo", "1.0", {A: WHEEL}, at) == {A: f"https://x/s/demo/{WHEEL}"}


def test_locate_lists_what_is_there():
    yanked = answer(
        body=f'<a href="d.tar.gz#sha256={B}" data-yanked="">demo-1.0.tar.gz</a>'
        f'<a href="e">demo-0.9.tar.gz</a><a href="f">odd</a>'.encode(),
        url=H,
    )
    with pytest.raises(FetchError, match=r"for demo 1\.0 it has demo-1\.0\.tar\.gz \(yanked\)\n") as e:
        locate(BOTH, "demo", "1.0", {A: WHEEL}, Fake({H: yanked}))
    assert "https://h/s, https://x/s/" in str(e.value)
    with pytest.raises(
        FetchError, match=r"no demo 2\.0, deleted or never mirrored; the nearest it has: \?, 0\.9, 1\.0"
    ):
        locate(BOTH, "demo", "2.0", {A: "demo-2.0-py3-none-any.whl"}, Fake({H: yanked}))
    with pytest.raises(FetchError, match="the index has no project demo"):
        locate(BOTH, "demo", "1.0", {A: WHEEL}, Fake({}))
    many = page(H, *[(f"demo-{n}.0.tar.gz", "x") for n in range(20)])
    with pytest.raises(FetchError, match=r"nearest it has: 7\.0, 8\.0, 9\.0, 10\.0, 11\.0, 12\.0, 13\.0, 14\.0\n"):
        locate(BOTH, "demo", "10.5", {A: WHEEL}, Fake({H: many}))
    many = page(H, *[(f"demo-1.0-{n}-py3-none-any.whl", "x") for n in range(20)])
    with pytest.raises(FetchError, match="and 12 more"):
        locate(BOTH, "demo", "1.0", {A: WHEEL}, Fake({H: many}))


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (answer(403), "refuses access"),
        (answer(401), "asks for a login"),
        (answer(418), "answered"),
        (answer(kind="image/png"), "no project page"),
        (answer(kind="application/vnd.pypi.simple.v1+json", body=b"{"), "no project page"),
        (answer(kind="application/vnd.pypi.simple.v1+json", body=b'{"a": 1}'), "no project page"),
    ],
)
def test_bad_project_pages(made, match):
    with pytest.raises(FetchError, match=match):
        locate(BOTH, "demo", "1.0", {A: WHEEL}, Fake({H: made}))


def test_credentials_go_to_their_own_origin_only_and_stay_out_of_the_address():
    index = Index(primary="https://me:p%40w@h:8080/s", extras=("https://token@x/s",))
    at = Fake({})
    for url in ("https://h:8080/f", "http://h:8080/f", "https://h/f", "https://x/f", "https://o:k@h:8080/f"):
        get(at, index, url, "demo", {})
    assert at.asked == [
        ("https://h:8080/f", ("me", "p@w")),
        ("http://h:8080/f", None),
        ("https://h/f", None),
        ("https://x/f", ("token", "")),
        ("https://h:8080/f", ("o", "k")),
    ]


SECRET = "https://me:secret@h/s?token=secret"


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (requests.ConnectionError(SECRET), AgainError, "cannot be reached: ConnectionError"),
        (requests.ReadTimeout(SECRET), AgainError, "no answer in time"),
        (requests.exceptions.SSLError(f"{SECRET} CERTIFICATE_VERIFY_FAILED"), FetchError, "cannot be verified"),
        (OSError(f"no suitable CA bundle {SECRET}"), FetchError, "cannot be verified"),
        (requests.exceptions.InvalidURL(SECRET), FetchError, "not a usable address"),
        (requests.TooManyRedirects(SECRET), FetchError, "TooManyRedirects"),
        (UnicodeError(SECRET), FetchError, "not a usable address"),
    ],
)
def test_no_answer_is_explained_without_echoing_the_address(error, kind, match):
    index = Index(primary=SECRET)
    with pytest.raises(kind) as e:
        get(Fake({"https://h/s?token=secret": error}), index, SECRET, "demo 1.0", {})
    shown = str(e.value.error if isinstance(e.value, AgainError) else e.value)
    assert match in shown
    assert "secret" not in shown
    assert "do:" in shown


def test_the_systems_own_word_is_found_below_the_wrappers():
    outer = requests.ConnectionError(SECRET)
    outer.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert web.reason(outer) == "Connection refused"


@pytest.mark.parametrize(
    ("text", "wait"),
    [("7", 7.0), ("", None), ("soon", None), ("Mon, 01 Jan 2001 00:00:00 GMT", 0.0)],
)
def test_retry_after(text, wait):
    with pytest.raises(AgainError) as e:
        get(Fake({"https://h/": answer(503, **{"Retry-After": text})}), BOTH, "https://h/", "demo", {})
    assert e.value.wait == wait
    assert "HTTP 503" in str(e.value.error)
