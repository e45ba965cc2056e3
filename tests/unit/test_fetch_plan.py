import hashlib
import threading

import pytest

from verlstack.cache import Cache
from verlstack.download import Artifact, Download, StoppedError
from verlstack.errors import FetchError, HashMismatchError, StorageError
from verlstack.fetch import _by_project, _in_threads, _Worker, fetch
from verlstack.progress import Silent
from verlstack.web import RETRY_AFTER_MAX_S, TRIES, AgainError, patiently


def artifact(data=b"data", *, project="demo", name="demo-1.0.tar.gz", size=-1):
    sha256 = hashlib.sha256(data).hexdigest()
    return Artifact(
        project=project, version="1.0", filename=name, sha256=sha256, size=len(data) if size == -1 else size
    )


def put(cache, a, data):
    path = cache.file(a.sha256, a.filename)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


class Told(Silent):
    def __init__(self):
        self.lines, self.done, self.total, self.notes = [], 0, None, []

    def start(self, task, total=None):
        self.total = total

    def advance(self, task, amount):
        self.done += amount

    def finish(self, task, note=""):
        self.notes.append(note)

    def say(self, line):
        self.lines.append(line)


def offline(cache, *artifacts, progress=None):
    return fetch(artifacts, cache=cache, index=None, offline=True, progress=progress or Silent(), env={})


def test_cached_files_are_used_and_counted(tmp_path):
    cache, told = Cache(tmp_path), Told()
    one, two = artifact(b"one"), artifact(b"three", name="three.whl")
    paths = [put(cache, one, b"one"), put(cache, two, b"three")]
    assert offline(cache, one, two, one, progress=told) == {one.sha256: paths[0], two.sha256: paths[1]}
    assert (told.total, told.done) == (8, 8)
    assert told.notes == ["0 files, 0.0 MB downloaded, 2 files from the cache"]


def test_an_unknown_size_makes_the_total_unknown(tmp_path):
    cache, told = Cache(tmp_path), Told()
    a = artifact(b"one", size=None)
    put(cache, a, b"one")
    offline(cache, a, progress=told)
    assert (told.total, told.done) == (None, 3)


def test_nothing_to_fetch(tmp_path):
    assert offline(Cache(tmp_path)) == {}


def test_offline_lists_what_is_missing(tmp_path):
    missing = [artifact(bytes([n]), name=f"m{n}.whl") for n in range(12)]
    with pytest.raises(FetchError) as e:
        offline(Cache(tmp_path), *missing)
    text = str(e.value)
    assert "12 files are not in the cache" in text
    assert [n for n in range(12) if f"m{n}.whl" in text] == list(range(10))
    assert "and 2 more" in text
    assert list(tmp_path.iterdir()) == []


def test_offline_wrong_cached_bytes_name_both_hashes_and_stay(tmp_path):
    cache, a = Cache(tmp_path), artifact(b"right")
    path = put(cache, a, b"wrong")
    with pytest.raises(HashMismatchError) as e:
        offline(cache, a)
    assert a.sha256 in e.value.what
    assert hashlib.sha256(b"wrong").hexdigest() in e.value.what
    assert e.value.where == str(path)
    assert path.exists()


def test_one_job_per_release_biggest_first():
    jobs = _by_project(
        [
            artifact(b"1", project="Small"),
            artifact(b"22", project="a.b", name="x.whl"),
            artifact(b"?", project="unknown", size=None),
            artifact(b"333", project="A-B", name="y.whl"),
        ]
    )
    assert [[a.filename for a in job] for job in jobs] == [["x.whl", "y.whl"], ["demo-1.0.tar.gz"], ["demo-1.0.tar.gz"]]
    assert jobs[1][0].project == "Small"


class Flaky:
    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def again(wait=None, reached=0, error=None):
    return AgainError(error or FetchError("cut", where="w", todo="t"), wait=wait, reached=reached)


def test_pauses_grow_and_end_with_success():
    slept, action = [], Flaky(again(), again(), again(), "done")
    assert patiently(action, slept.append) == "done"
    assert slept == [0.5, 1.0, 2.0]


def test_enough_is_enough_and_the_error_keeps_its_kind():
    slept, action = [], Flaky(again(error=HashMismatchError("wrong", where="w", todo="t")))
    with pytest.raises(HashMismatchError, match=f"wrong \\({TRIES} tries\\)") as e:
        patiently(action, slept.append)
    assert (e.value.where, e.value.todo) == ("w", "t")
    assert action.calls == TRIES
    assert len(slept) == TRIES - 1


def test_a_servers_wish_to_wait_is_honoured_up_to_a_cap():
    slept = []
    patiently(Flaky(again(wait=7), again(wait=9999), again(wait=0), "done"), slept.append)
    assert slept == [7, RETRY_AFTER_MAX_S, 0]


def test_progress_earns_further_tries_but_only_beyond_the_best():
    step = 1 << 20
    action = Flaky(*[again(reached=n * step) for n in range(1, 20)], "done")
    assert patiently(action, lambda _: None) == "done"
    stuck = Flaky(*[again(reached=n % 2 * step) for n in range(20)])
    with pytest.raises(FetchError):
        patiently(stuck, lambda _: None)
    assert stuck.calls == TRIES + 1


def test_the_first_failure_stops_the_rest():
    stop, done = threading.Event(), []

    def work(job):
        if job == 1:
            raise FetchError("one")
        done.append(job)

    with pytest.raises(FetchError, match="one"):
        _in_threads([0, 1, 2, 3], work, count=1, stop=stop)
    assert stop.is_set()
    assert done[0] == 0
    assert len(done) < 4


def test_ctrl_c_leaves_without_waiting_for_a_worker_that_hangs(monkeypatch):
    monkeypatch.setattr("verlstack.fetch.LEAVE_S", 0.01)
    hang, stop = threading.Event(), threading.Event()

    def work(job):
        if job == 0:
            hang.wait()
        raise KeyboardInterrupt  # stands for the signal, which reaches the caller the same way

    try:
        with pytest.raises(KeyboardInterrupt):
            _in_threads([0, 1], work, count=2, stop=stop)
        assert stop.is_set()
        assert [t for t in threading.enumerate() if t.name == "fetch"]
    finally:
        hang.set()
        for thread in threading.enumerate():
            if thread.name == "fetch":
                thread.join()


def test_a_worker_told_to_stop_neither_tries_again_nor_reads_on(tmp_path):
    worker = _Worker(Cache(tmp_path), None, {}, Silent(), lambda _: None)
    download = Download(artifact(), "https://h/f", tmp_path / "part", lambda _: None, worker.tally, worker.stop)

    class Raw:
        def read1(self, amount, *, decode_content):
            return b"piece"

    pieces = download._pieces(Raw())
    assert next(pieces) == b"piece"
    worker._pause(0)
    worker.stop.set()
    with pytest.raises(StoppedError):
        next(pieces)
    with pytest.raises(StoppedError):
        worker._pause(0)


def test_a_cache_that_refuses_is_a_storage_error(tmp_path, monkeypatch):
    cache, a = Cache(tmp_path), artifact(b"x")
    put(cache, a, b"x")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("verlstack.fetch.sha256_file", refuse)
    with pytest.raises(StorageError):
        offline(cache, a)
