import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import requests

sys.path.append(str(Path(__file__).parent.parent / "support"))

from bad_server import BadServer, Reply, html_page, json_page, sha256

from verlstack.cache import Cache
from verlstack.download import Artifact
from verlstack.errors import FetchError, HashMismatchError, StorageError
from verlstack.fetch import fetch
from verlstack.index import Index
from verlstack.progress import Silent
from verlstack.web import TRIES

DATA = bytes(range(256)) * 1200  # 307,200 bytes: several reads of 64 kB
WRONG = DATA[::-1]
NAME = "demo-1.0-py3-none-any.whl"
PAGE, FILE = "/simple/demo/", f"/files/{NAME}"
DEMO = Artifact(project="demo", version="1.0", filename=NAME, sha256=sha256(DATA), size=len(DATA))
UNSIZED = Artifact(project="demo", version="1.0", filename=NAME, sha256=sha256(DATA), size=None)


@pytest.fixture(autouse=True)
def _direct(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", os.devnull)


@pytest.fixture
def server():
    with BadServer() as running:
        running.replies[PAGE] = [html_page({NAME: sha256(DATA)})]
        yield running


class Told(Silent):
    def __init__(self):
        self.lines, self.done, self.notes, self.hook = [], 0, [], lambda: None

    def advance(self, task, amount):
        self.done += amount
        self.hook()

    def finish(self, task, note=""):
        self.notes.append(note)

    def say(self, line):
        self.lines.append(line)


class Rig:
    def __init__(self, server, root):
        self.server, self.cache, self.told, self.slept = server, Cache(root), Told(), []
        self.index = Index(primary=f"{server.url}/simple")
        self.path = self.cache.file(DEMO.sha256, NAME)
        self.part = self.cache.parts / f"{DEMO.sha256}.part"

    def fetch(self, *artifacts, offline=False):
        return fetch(
            artifacts or [DEMO],
            cache=self.cache,
            index=self.index,
            offline=offline,
            progress=self.told,
            env={},
            sleep=self.slept.append,
        )

    def serve(self, *replies):
        self.server.replies[FILE] = list(replies)

    def ranges(self):
        return [s.headers.get("Range") for s in self.server.asked(FILE)]

    def good(self):
        assert self.path.read_bytes() == DATA
        assert not self.part.exists()
        assert self.told.done == len(DATA)

    def left(self, size):
        """A part of an interrupted download, the right bytes as far as they go."""
        self.part.parent.mkdir(parents=True, exist_ok=True)
        self.part.write_bytes(DATA[:size])


@pytest.fixture
def rig(server, tmp_path):
    return Rig(server, tmp_path)


def test_a_file_arrives_once_and_the_second_call_asks_nobody(rig):
    rig.serve(Reply(body=DATA))
    assert rig.fetch() == {DEMO.sha256: rig.path}
    rig.good()
    assert rig.told.notes == ["1 files, 0.3 MB downloaded, 0 files from the cache"]
    asked = len(rig.server.seen)
    assert rig.fetch() == {DEMO.sha256: rig.path}
    assert len(rig.server.seen) == asked
    assert rig.slept == []


def test_json_index_and_many_files_ask_for_each_page_once(rig):
    bodies = {f"demo-1.{n}.whl": bytes([n]) * (n + 1) for n in range(12)}
    rig.server.replies[PAGE] = [json_page("demo", {n: sha256(b) for n, b in bodies.items()}, yanked=True)]
    for name, body in bodies.items():
        rig.server.replies[f"/files/{name}"] = [Reply(body=body)]
    wanted = [
        Artifact(project="demo", version="1", filename=n, sha256=sha256(b), size=len(b)) for n, b in bodies.items()
    ]
    got = rig.fetch(*wanted)
    assert {p.name: p.read_bytes() for p in got.values()} == bodies
    assert len(rig.server.asked(PAGE)) == 1


@pytest.mark.parametrize("endless", [False, True])
def test_unknown_size_and_unknown_hash_on_the_page(rig, endless):
    rig.server.replies[PAGE] = [html_page({NAME: None})]
    rig.serve(Reply(body=DATA, endless=endless))
    rig.fetch(UNSIZED)
    rig.good()


def test_bytes_are_taken_as_they_are_whatever_encoding_the_server_claims(rig):
    rig.serve(Reply(body=DATA, headers={"Content-Encoding": "gzip"}))
    rig.fetch()
    rig.good()


@pytest.mark.parametrize("artifact", [DEMO, UNSIZED])
def test_wrong_bytes_are_deleted_and_both_hashes_named(rig, artifact):
    rig.serve(Reply(body=WRONG))
    with pytest.raises(HashMismatchError) as e:
        rig.fetch(artifact)
    for word in (NAME, sha256(DATA), sha256(WRONG), "deleted"):
        assert word in e.value.what
    assert not rig.path.exists()
    assert not rig.part.exists()
    assert len(rig.server.asked(FILE)) == 1
    assert rig.told.notes == ["stopped; what has arrived is kept"]


def test_another_hash_on_the_page_is_not_even_downloaded(rig):
    rig.server.replies[PAGE] = [html_page({NAME: sha256(WRONG)})]
    rig.serve(Reply(body=DATA))
    with pytest.raises(HashMismatchError):
        rig.fetch()
    assert rig.server.asked(FILE) == []


def test_wrong_bytes_in_the_cache_are_replaced(rig):
    rig.path.parent.mkdir(parents=True)
    rig.path.write_bytes(WRONG)
    rig.serve(Reply(body=DATA))
    rig.fetch()
    rig.good()
    assert sha256(WRONG) in rig.told.lines[0]


@pytest.mark.parametrize(
    ("artifact", "fault"),
    [
        (DEMO, {}),
        (UNSIZED, {}),
        (DEMO, {"reset": True}),
        (UNSIZED, {"reset": True}),
        (DEMO, {"length": 100_000}),  # the server believes that this is all; only the lock knows better
        (DEMO, {"endless": True}),
    ],
)
def test_a_cut_is_resumed(rig, artifact, fault):
    rig.serve(Reply(body=DATA, send=100_000, **fault), Reply(body=DATA))
    rig.fetch(artifact)
    rig.good()
    assert rig.slept == [0.5]
    if not fault.get("reset"):  # a reset may throw away what was under way
        assert rig.ranges() == [None, "bytes=100000-"]


def test_a_cut_in_a_chunked_answer_is_resumed(rig):
    body = f"{len(DATA):x}\r\n".encode() + DATA
    cut = Reply(body=body, send=100_000, endless=True, headers={"Transfer-Encoding": "chunked"})
    rig.serve(cut, Reply(body=DATA))
    rig.fetch(UNSIZED)
    rig.good()
    assert rig.slept == [0.5]


def test_always_short_ends_with_both_sizes_and_hashes(rig):
    rig.serve(Reply(body=DATA[:1000]))
    with pytest.raises(HashMismatchError) as e:
        rig.fetch()
    for word in ("1000", str(len(DATA)), sha256(DATA), f"{TRIES} tries"):
        assert word in e.value.what
    assert not rig.part.exists()


def test_always_cut_ends_with_both_sizes(rig):
    rig.serve(Reply(body=DATA, send=1000, ranges=False))
    with pytest.raises(HashMismatchError) as e:
        rig.fetch()
    for word in ("1000", str(len(DATA)), sha256(DATA[:1000]), sha256(DATA)):
        assert word in e.value.what
    assert not rig.part.exists()
    assert len(rig.slept) == TRIES - 1


def test_too_long_stops_at_once(rig):
    rig.serve(Reply(body=DATA + b"x" * 10_000_000))
    with pytest.raises(HashMismatchError, match=f"longer than {len(DATA)} bytes"):
        rig.fetch()
    assert not rig.part.exists()
    assert len(rig.server.asked(FILE)) == 1


def test_a_part_is_resumed(rig):
    rig.left(200_000)
    rig.serve(Reply(body=DATA))
    rig.fetch()
    rig.good()
    assert rig.ranges() == ["bytes=200000-"]
    assert rig.told.notes == ["1 files, 0.1 MB downloaded, 0 files from the cache"]


def test_a_whole_part_needs_no_request(rig):
    rig.left(len(DATA))
    rig.fetch()
    assert rig.path.read_bytes() == DATA
    assert rig.server.asked(FILE) == []


@pytest.mark.parametrize(
    ("reply", "ranges"),
    [
        ({"ranges": False}, ["bytes=200000-"]),
        ({"shift": 5}, ["bytes=200000-", None]),
        ({"status": 416, "body": b""}, ["bytes=200000-", None]),
    ],
)
def test_a_server_that_does_not_resume_starts_anew(rig, reply, ranges):
    rig.left(200_000)
    rig.serve(Reply(**{"body": DATA, **reply}), Reply(body=DATA))
    rig.fetch()
    rig.good()
    assert rig.ranges() == ranges


@pytest.mark.parametrize("size", [200_000, len(DATA)])
def test_a_damaged_part_is_thrown_away_before_anyone_is_blamed(rig, size):
    rig.left(0)
    rig.part.write_bytes(WRONG[:size])
    rig.serve(Reply(body=DATA))
    rig.fetch()
    rig.good()


def test_a_part_that_is_too_long_is_thrown_away(rig):
    rig.left(0)
    rig.part.write_bytes(DATA + b"more")
    rig.serve(Reply(body=DATA))
    rig.fetch()
    rig.good()
    assert rig.ranges() == [None]


@pytest.mark.parametrize("path", [PAGE, FILE])
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_in_trouble_is_asked_again(rig, path, status):
    rig.serve(Reply(body=DATA))
    rig.server.replies[path].insert(0, Reply(status=status))
    rig.fetch()
    rig.good()
    assert rig.slept == [0.5]


@pytest.mark.parametrize("path", [PAGE, FILE])
def test_a_server_in_trouble_for_good(rig, path):
    rig.serve(Reply(body=DATA))
    rig.server.replies[path] = [Reply(status=500)]
    with pytest.raises(FetchError, match=r"HTTP 500\) \(5 tries\)"):
        rig.fetch()
    assert rig.slept == [0.5, 1.0, 2.0, 4.0]


def test_retry_after_is_honoured(rig):
    rig.serve(Reply(status=429, headers={"Retry-After": "17"}), Reply(body=DATA))
    rig.fetch()
    rig.good()
    assert rig.slept == [17.0]


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "asks for a login"), (403, "refuses access"), (404, "no longer has it"), (410, "answered")],
)
def test_a_refusal_is_final_and_explained(rig, status, words):
    rig.serve(Reply(status=status))
    with pytest.raises(FetchError, match=words) as e:
        rig.fetch()
    assert f"{NAME} (demo 1.0)" in e.value.what
    assert e.value.todo
    assert rig.slept == []


def test_a_file_or_project_that_is_not_there(rig):
    rig.server.replies[PAGE] = [html_page({"demo-1.0.tar.gz": "0" * 64})]
    with pytest.raises(FetchError, match=r"for demo 1\.0 it has demo-1\.0\.tar\.gz"):
        rig.fetch()
    rig.server.replies[PAGE] = [Reply(status=404)]
    with pytest.raises(FetchError, match="no project demo"):
        rig.fetch()


def test_an_extra_index_is_asked_for_what_the_primary_lacks(rig):
    rig.index = Index(primary=f"{rig.server.url}/empty", extras=(f"{rig.server.url}/simple",))
    rig.serve(Reply(body=DATA))
    rig.fetch()
    rig.good()


@pytest.mark.parametrize("sent", [0, 100_000])
def test_silence_is_noticed(rig, monkeypatch, sent):
    monkeypatch.setattr("verlstack.web.READ_S", 0.1)
    rig.serve(Reply(body=DATA, send=sent, silent=True), Reply(body=DATA))
    rig.fetch()
    rig.good()


def test_silence_for_good_keeps_the_part(rig, monkeypatch):
    monkeypatch.setattr("verlstack.web.READ_S", 0.05)
    rig.serve(Reply(body=DATA, send=1000, silent=True))
    with pytest.raises(FetchError, match="broke off: no answer in time") as e:
        rig.fetch()
    assert "kept" in (e.value.todo or "")
    assert rig.part.read_bytes() == DATA[:1000]


def test_a_trickle_is_given_up(rig, monkeypatch):
    monkeypatch.setattr("verlstack.download.SLOW_S", 0.05)
    rig.serve(Reply(body=DATA, trickle=True), Reply(body=DATA))
    rig.fetch()
    rig.good()
    assert rig.slept == [0.5]


@pytest.mark.parametrize("address", ["http://me:secret@127.0.0.1:1/s?token=secret", "http://me:secret@no.invalid/s"])
def test_an_index_out_of_reach_names_itself_without_credentials(rig, address):
    rig.index = Index(primary=address)
    with pytest.raises(FetchError, match="cannot be reached") as e:
        rig.fetch()
    assert "secret" not in str(e.value)
    assert "UV_DEFAULT_INDEX" in str(e.value)
    assert "--offline" in str(e.value)
    assert len(rig.slept) == TRIES - 1


def test_credentials_serve_the_page_and_the_file_and_stop_at_another_host(rig, server):
    rig.index = Index(primary=f"http://me:p%40w@127.0.0.1:{server.port}/simple")
    login = {"login": "me:p@w"}
    page = html_page({NAME: sha256(DATA)}, base=f"{server.url}/files/")  # absolute: the address holds no login
    server.replies[PAGE] = [Reply(body=page.body, headers=page.headers, **login)]
    with BadServer() as other:
        rig.serve(Reply(status=302, headers={"Location": f"http://localhost:{other.port}/blob"}, **login))
        other.replies["/blob"] = [Reply(body=DATA)]
        rig.fetch()
        assert "Authorization" not in other.seen[0].headers
    rig.good()
    assert "Authorization" in server.asked(FILE)[0].headers


def test_wrong_credentials_are_not_shown(rig, server):
    rig.index = Index(primary=f"http://me:secret@127.0.0.1:{server.port}/simple")
    server.replies[PAGE] = [Reply(login="me:other")]
    with pytest.raises(FetchError, match="asks for a login") as e:
        rig.fetch()
    assert "secret" not in str(e.value)
    assert "netrc" in str(e.value)


def test_netrc_is_used(rig, server, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password pw\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    server.replies[PAGE] = [Reply(body=server.replies[PAGE][0].body, login="me:pw")]
    rig.serve(Reply(body=DATA, login="me:pw"))
    rig.fetch()
    rig.good()


def test_offline_never_asks(rig):
    with pytest.raises(FetchError, match="not in the cache"):
        rig.fetch(offline=True)
    assert rig.server.seen == []


def test_a_full_disk_is_a_storage_error(rig, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("verlstack.download.os.fsync", full)
    rig.serve(Reply(body=DATA))
    with pytest.raises(StorageError, match="no space left"):
        rig.fetch()


def test_two_at_once_download_once(rig):
    rig.serve(Reply(body=DATA))
    failures = []

    def go():
        try:
            fetch([DEMO], cache=rig.cache, index=rig.index, offline=False, progress=Silent(), env={})
        except Exception as e:  # noqa: BLE001 - the assertion below shows it
            failures.append(e)

    threads = [threading.Thread(target=go) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
    assert rig.path.read_bytes() == DATA
    assert len(rig.server.asked(FILE)) == 1


_CHILD = """
import sys
from pathlib import Path
from verlstack.cache import Cache
from verlstack.download import Artifact
from verlstack.fetch import fetch
from verlstack.index import Index
from verlstack.progress import Silent
class Told(Silent):
    def advance(self, task, amount):
        print(amount, flush=True)
root, url, name, sha256, size = sys.argv[1:]
a = Artifact(project="demo", version="1.0", filename=name, sha256=sha256, size=int(size))
try:
    fetch([a], cache=Cache(Path(root)), index=Index(primary=url), offline=False, progress=Told(), env={})
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_ends_promptly_and_the_next_run_resumes(rig, tmp_path):
    rig.serve(Reply(body=DATA, send=100_000, silent=True), Reply(body=DATA))
    words = [sys.executable, "-c", _CHILD, tmp_path, rig.index.primary, NAME, DEMO.sha256, str(DEMO.size)]
    with subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, text=True) as child:
        arrived = 0
        while arrived < 100_000:
            arrived += int(child.stdout.readline())
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=10) == 130  # far below READ_S: the silent socket is not waited for
    assert 0 < rig.part.stat().st_size <= 100_000
    assert not rig.path.exists()
    rig.fetch()
    assert rig.path.read_bytes() == DATA
    assert rig.ranges()[1].startswith("bytes=")


def test_a_missing_ca_bundle_is_explained(rig):
    rig.index = Index(primary="https://127.0.0.1:1/s", cert="/nowhere/ca.crt")
    with pytest.raises(FetchError, match="cannot be verified"):
        rig.fetch()


def test_requests_is_what_we_think_it_is():
    """Our redirect rule is requests' own; if it ever changes, this says so before a password leaks."""
    strip = requests.Session().should_strip_auth
    assert strip("http://a/x", "http://b/x")
    assert strip("https://a/x", "http://a/x")
    assert strip("http://a:1/x", "http://a:2/x")
