"""A stack's check: its lock, the index's word on every release, wheels' names and objects, and the import probe."""

import dataclasses
import hashlib
import io
import json
import re
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from support.elves import Elf
from support.fake_uv import FakeUv
from support.wheels import Wheel
from verlstack import engine, lockfile, oci, pins
from verlstack.cache import Cache
from verlstack.check import against, baselibs, objects, probe, probe_worker, run, wheelname
from verlstack.errors import EngineError, PinsError, WheelError
from verlstack.extension import system
from verlstack.progress import Silent
from verlstack.workshop import Workshop

ROOT = Path(__file__).parents[2]
STACK = pins.load(ROOT / "constraints" / "stacks.toml", "cu121")
LOCK = lockfile.load(ROOT / "constraints", STACK)
FILES = [*LOCK.wheels, *(built.source for built in LOCK.built)]
CLOSURE = frozenset(f"{one.project}=={one.version}" for one in FILES)
EVERYTHING = [(one.project, one.version, "2024-06-05") for one in FILES]
FACTS = against.of(STACK, LOCK)
PLATFORM = system.of_platform(STACK.platform)


@pytest.fixture
def shop(tmp_path):
    constraints = tmp_path / "constraints"
    shutil.copytree(ROOT / "constraints", constraints)
    return Workshop(
        constraints=constraints,
        smoke_tests=ROOT / "smoke_tests",
        cache=Cache(tmp_path / "cache"),
        env={"HOME": str(tmp_path)},
        progress=Silent(),
        workers=1,
    )


def check(shop, uv=None, name="cu121"):
    uv = uv or FakeUv(answers={CLOSURE: EVERYTHING})
    return run.check(name, STACK, shop, shop.constraints.parent / "dist", uv)


def codes(report):
    return {one.code: one.severity for one in report.findings}


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_our_own_stack_has_nothing_but_its_known_limits_and_what_was_not_looked_at(shop):
    report = check(shop)
    assert codes(report) == {"RELEASE-LIMIT": "warn", "GLIBC-UNREAD": "warn", "PROBE-NOT-RUN": "warn"}
    assert (report.kind, report.exit_code) == ("stack", 0)


def test_a_second_index_in_the_environment_is_told(shop):
    there = dataclasses.replace(shop, env={**shop.env, "UV_INDEX": "https://user:secret@index.invalid/simple"})
    report = check(there)
    assert codes(report)["INDEX-EXTRA"] == "warn"
    assert "secret" not in repr(report)


def test_a_lock_edited_by_hand(shop):
    edit(shop.constraints / "cu121.txt", "click==8.5.1", "click==8.3.1")
    uv = FakeUv(answers={frozenset(STACK.requires): EVERYTHING})
    report = check(shop, uv)
    (lock,) = [one for one in report.findings if one.code == "LOCK"]
    assert (lock.severity, report.exit_code) == ("fail", 1)
    assert "edited by hand" in lock.measured
    assert "verlstack lock cu121" in lock.fix


def test_changed_pins_are_checked_as_they_would_resolve(shop):
    edit(shop.constraints / "stacks.toml", 'peft = { bound = "==0.13.2"', 'peft = { bound = "==0.21.2"')
    changed = pins.load(shop.constraints / "stacks.toml", "cu121")
    rows = [(n, "0.21.2" if n == "peft" else v, d) for n, v, d in EVERYTHING]
    report = check(shop, FakeUv(answers={frozenset(changed.requires): rows}))
    assert {"LOCK", "RELEASE-PAIR"} <= set(codes(report))
    assert any("EncoderDecoderCache" in one.measured for one in report.findings)


def test_a_tag_that_does_not_exist_is_a_finding_and_no_crash(shop):
    edit(shop.constraints / "stacks.toml", 'tag = "v0.2.0.post2"', 'tag = "v0.2.3"')
    (one,) = check(shop).findings
    assert (one.code, one.severity) == ("PINS-INVALID", "fail")
    assert "v0.2.0.post2" in one.measured


def test_pins_that_cannot_be_read_leave_files_unjudged():
    error = PinsError("bad", where="stacks.toml")
    assert run.invalid("cu121", error, stack=True).exit_code == 1
    assert run.invalid("x.whl", error, stack=False).exit_code == 2


def test_a_stacks_file_is_checked_as_pins(shop, tmp_path):
    one, _, _ = (shop.constraints / "stacks.toml").read_text().partition("[stack.cu121-vllm]")
    (tmp_path / "stacks.toml").write_text(one)
    uv = FakeUv(answers={frozenset(STACK.requires): EVERYTHING})
    report = check(shop, uv, name=str(tmp_path / "stacks.toml"))
    assert (report.kind, report.exit_code) == ("pins", 0)
    assert set(codes(report)) == {"RELEASE-LIMIT"}


def test_a_release_that_the_index_lost(shop):
    words = "error: Because there is no version of ray==2.60.0 and you require ray==2.60.0"
    report = check(shop, FakeUv(conflicts={CLOSURE: words}))
    assert codes(report)["PINS-GONE"] == "fail"
    assert "ray==2.60.0" in report.findings[0].measured


def test_a_yanked_release_of_the_lock(shop):
    uv = FakeUv(answers={CLOSURE: EVERYTHING}, warnings={CLOSURE: "warning: `click==8.5.1` is yanked"})
    assert codes(check(shop, uv))["PINS-YANKED"] == "fail"


def test_an_index_that_is_silent_leaves_it_open(shop):
    report = check(shop, FakeUv(conflicts={CLOSURE: "error sending request"}))
    assert (codes(report)["INDEX-UNASKED"], report.exit_code) == ("unknown", 2)


# -- wheels' names


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("flash_attn-2.6.3+cu123torch2.3cxx11abiFALSE-cp310-cp310-linux_x86_64.whl", None),
        ("flash_attn-2.6.3+cu12torch2.4cxx11abiFALSE-cp310-cp310-linux_x86_64.whl", "WHEEL-TORCH"),
        ("torch_scatter-2.1.2+pt24cu121-cp310-cp310-linux_x86_64.whl", "WHEEL-TORCH"),
        ("torch_scatter-2.1.2+pt23cu121-cp310-cp310-linux_x86_64.whl", None),
        ("torch-2.3.1+cu118-cp310-cp310-linux_x86_64.whl", "WHEEL-CUDA"),
        ("x-1+cu130-cp310-cp310-linux_x86_64.whl", "WHEEL-CUDA"),
        ("x-1+torch2.3.cxx11abi1-cp310-cp310-linux_x86_64.whl", "WHEEL-ABI"),
        ("x-1-cp310-cp310-linux_aarch64.whl", "WHEEL-TAG"),
        ("x-1-cp310-cp310-manylinux_2_39_x86_64.whl", "WHEEL-TAG"),
        ("x-1-cp312-cp312-linux_x86_64.whl", "WHEEL-TAG"),
        ("x-1-cp38-abi3-manylinux1_x86_64.whl", None),
        ("x-1-py3-none-any.whl", None),
        ("x.whl", "WHEEL-NAME"),
        ("torch-2.3.1+cpu-cp310-cp310-linux_x86_64.whl", "WHEEL-CUDA"),
        ("x-1+rocm6.1torch2.3-cp310-cp310-linux_x86_64.whl", "WHEEL-CUDA"),
        ("x-1+pt23cpu-cp310-cp310-linux_x86_64.whl", "WHEEL-CUDA"),
        ("x-1+cputune.cu121-cp310-cp310-linux_x86_64.whl", None),
        ("torch-2.4.0-cp310-cp310-manylinux1_x86_64.whl", "WHEEL-TORCH"),
        ("torch-2.3.0-cp310-cp310-manylinux1_x86_64.whl", None),
        ("peft-0.21.2-py3-none-any.whl", "RELEASE-PAIR"),
    ],
)
def test_a_wheels_name(name, code):
    assert {one.code for one in wheelname.check(name, FACTS)} == ({code} if code else set())


def test_without_a_lock_nobody_knows_the_abi():
    facts = against.of(STACK, None)
    assert wheelname.check("x-1+cxx11abiTRUE-cp310-cp310-linux_x86_64.whl", facts) == []
    assert str(facts.versions["torch"]) == "2.3.1"


# -- what objects need


def wheel(tmp_path, **files):
    made = Wheel(files={f"demo/{name}.so": elf for name, elf in files.items()}, tag="cp310-cp310-linux_x86_64")
    path = tmp_path / made.filename
    path.write_bytes(made.to_bytes())
    return path, hashlib.sha256(made.to_bytes()).hexdigest()


def needing(*versions):
    return Elf(undefined=tuple((f"f{n}", library, version) for n, (library, version) in enumerate(versions))).to_bytes()


def test_an_object_that_needs_a_newer_c_library(tmp_path):
    old = needing(("libc.so.6", "GLIBC_2.35"), ("libstdc++.so.6", "GLIBCXX_3.4.30"))
    new = needing(("libc.so.6", "GLIBC_2.38"), ("libstdc++.so.6", "GLIBCXX_3.4.32"), ("libx.so", "X_9"))
    path, sha256 = wheel(tmp_path, old=old, new=new, script=b"INPUT(libx.so)")
    needs = objects.needs(path, sha256, Cache(tmp_path / "cache"))
    found = list(objects.too_new(path.name, needs, PLATFORM))
    assert [(one.code, one.subject.rpartition("/")[2], one.measured) for one in found] == [
        ("GLIBC", "new.so", "needs GLIBC_2.38"),
        ("GLIBC", "new.so", "needs GLIBCXX_3.4.32"),
    ]
    assert "GLIBC_2.35 at most" in found[0].right


def test_a_wheel_is_read_once(tmp_path):
    path, sha256 = wheel(tmp_path, new=needing(("libc.so.6", "GLIBC_2.38")))
    cache = Cache(tmp_path / "cache")
    first = objects.needs(path, sha256, cache)
    path.unlink()
    assert objects.needs(path, sha256, cache) == first
    (note,) = (cache.root / "needs").iterdir()
    note.write_text("[1")
    with pytest.raises(WheelError):
        objects.needs(path, sha256, cache)


def test_a_wheel_file_is_looked_into(tmp_path, shop):
    path, _ = wheel(tmp_path, new=needing(("libc.so.6", "GLIBC_2.38")))
    assert codes(check(shop, name=str(path))) == {"GLIBC": "fail"}
    path.write_bytes(b"no zip")
    assert codes(check(shop, name=str(path))) == {"WHEEL-FILE": "fail"}


@pytest.mark.parametrize("before", ["", "https://files.invalid/a/"])
def test_a_name_as_an_address_writes_it(shop, before):
    name = "flash_attn-2.6.3%2Bcu123torch2.3cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"
    assert codes(check(shop, name=before + name)) == {}
    assert codes(check(shop, name=before + name.replace("cu123", "cu118"))) == {"WHEEL-CUDA": "fail"}


def test_names_in_a_list_as_an_address_writes_them(shop, tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("x-1%2Bcu118-cp310-cp310-linux_x86_64.whl\n")
    assert codes(check(shop, name=str(path))) == {"WHEEL-CUDA": "fail"}


def based(folder, glibc):
    """A layout with one base layer below the first one of the lock."""
    raw = tar(**{
        "usr/lib/x86_64-linux-gnu/libc.so.6": f"GNU C Library (Debian) stable release version {glibc}.\n".encode(),
        "usr/lib/x86_64-linux-gnu/libstdc++.so.6": b"\0GLIBCXX_3.4.9\0GLIBCXX_3.4.28\0",
    })  # fmt: skip
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    blob = folder / oci.blob_path(digest)
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(raw)
    entry = {"digest": digest, "mediaType": "application/vnd.oci.image.layer.v1.tar", "size": len(raw)}
    config = {"rootfs": {"diff_ids": [digest, LOCK.layers[0].diff_id]}}
    return "sha256:1", {"layers": [entry, {"digest": "sha256:never-read", "mediaType": "x+zstd"}]}, config


def tar(**files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def test_the_base_below_the_image_counts_too(tmp_path, monkeypatch):
    cache = Cache(tmp_path / "cache")
    layout = based(tmp_path, "2.31")
    monkeypatch.setattr(oci, "read_layout", lambda folder: layout)
    base = baselibs.below(LOCK, tmp_path, cache, PLATFORM)
    assert (base.gives("GLIBC_2.31"), base.gives("GLIBC_2.32")) == (True, False)
    assert (base.gives("GLIBCXX_3.4.28"), base.gives("GLIBCXX_3.4.30"), base.gives("CXXABI_1.3.9")) == (
        True,
        False,
        True,
    )
    shutil.rmtree(tmp_path / "blobs")
    assert baselibs.below(LOCK, tmp_path, cache, PLATFORM) == base  # kept
    needs = {"x.so": [("libc.so.6", "GLIBC_2.33", "f")]}
    assert [one.right for one in objects.too_new("x", needs, base)] == ["the base in dist: GLIBC_2.31 at most"]


def test_without_an_image_or_a_c_library_the_platform_alone_counts(tmp_path, monkeypatch):
    assert baselibs.below(LOCK, tmp_path / "none", Cache(tmp_path / "cache"), PLATFORM) is None
    layout = based(tmp_path, "none")
    monkeypatch.setattr(oci, "read_layout", lambda folder: layout)
    assert baselibs.below(LOCK, tmp_path, Cache(tmp_path / "cache"), PLATFORM) is None


# -- the import probe


def test_what_fails_is_told_once_and_what_is_optional_by_its_package():
    results = {
        "verl": None,
        "vllm": ["ModuleNotFoundError", "No module named 'vllm'", "vllm"],
        "verl.third_party.vllm": ["InvalidVersion", "Invalid version: None", None],
        "flash_attn.bert_padding": ["ModuleNotFoundError", "No module named 'flash_attn'", "flash_attn"],
        "verl.workers.actor": ["ModuleNotFoundError", "No module named 'flash_attn'", "flash_attn"],
        "apex": ["ModuleNotFoundError", "No module named 'apex'", "apex"],
        "verl.protocol": ["ImportError", "cannot import name 'x' from 'y'", None],
        "verl.other": ["ImportError", "cannot import name 'x' from 'y'", None],
    }
    found = list(probe.judge(results))
    assert [(one.code, one.severity, one.subject) for one in found] == [
        ("PROBE", "fail", "verl.other, verl.protocol"),
        ("PROBE-ABSENT", "warn", "flash_attn"),
        ("PROBE-ABSENT", "warn", "vllm"),
        ("PROBE-ABSENT", "warn", "apex"),
    ]
    assert "verl.workers.actor" in found[1].measured


def test_a_package_that_every_stack_has_is_not_optional():
    wrong = {"tensordict": ["ModuleNotFoundError", "No module named 'tensordict'", "tensordict"]}
    assert [one.code for one in probe.judge(wrong)] == ["PROBE"]


def test_vllm_that_is_there_excuses_nothing():
    wrong = {"vllm": None, "verl.third_party.vllm": ["ImportError", "undefined symbol", None]}
    assert [one.code for one in probe.judge(wrong)] == ["PROBE"]


def test_a_known_failure_has_its_own_reason():
    text = "No module named 'transformers.modeling_flash_attention_utils'"
    wrong = {
        "verl.models.transformers.llama": ["ModuleNotFoundError", text, "transformers.modeling_flash_attention_utils"]
    }
    (one,) = probe.judge(wrong)
    assert (one.code, one.severity) == ("PROBE-LIMIT", "warn")
    assert "Ulysses" in one.why


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package called verl, on sys.path and in nobody's memory afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "site" / "verl").mkdir(parents=True)
    before = set(sys.modules)
    yield tmp_path / "site" / "verl"
    for name in set(sys.modules) - before:
        del sys.modules[name]


def probed(package, capsys, **files):
    for name, text in {"__init__": "", **files}.items():
        path = package / f"{name.replace('__', '/') if name != '__init__' else name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    probe_worker.main()
    return json.loads(capsys.readouterr().out)


def test_every_module_is_imported_and_what_it_names(package, capsys):
    found = probed(
        package,
        capsys,
        good="import json\nfrom email import message\nprint('noise')\n",
        bad="import nobody_has_this\n",
        late="def f():\n    from json import nothing_of_that_name\n",
        guarded="try:\n    import not_there_either\nexcept ImportError:\n    pass\n",
        chosen="import sys\nif sys.version_info < (3,):\n    import never_there\n",
        quits="raise SystemExit(3)\n",
    )
    assert {name for name, wrong in found.items() if wrong is None} >= {
        "verl",
        "verl.good",
        "verl.late",
        "verl.guarded",
    }
    assert found["verl.bad"] == ["ModuleNotFoundError", "No module named 'nobody_has_this'", "nobody_has_this"]
    assert found["nobody_has_this"] == found["verl.bad"]
    assert found["json"][0] == "ModuleNotFoundError"
    assert found["verl.quits"] == ["SystemExit", "3", None]
    assert not {"not_there_either", "never_there"} & set(found)


def test_an_image_without_verl(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(probe_worker.importlib.util, "find_spec", lambda name: None)
    probe_worker.main()
    assert set(json.loads(capsys.readouterr().out)) == {"verl"}


class Engine:
    name = "an engine"

    def __init__(self, out):
        self.out, self.ran = out, []

    def held(self, name, ids):
        return "sha256:1" if name == "verlstack:cu121" and "sha256:1" in ids else None

    def ask(self, order, patience):
        self.ran.append((order.image, order.command, order.user))
        if isinstance(self.out, Exception):
            raise self.out
        return self.out


@pytest.fixture
def image(monkeypatch):
    """An image of the present lock, and the engine that holds it."""
    labels = {"dev.verlstack.lock": f"sha256:{LOCK.digest}"}
    layout = ("sha256:1", {"config": {"digest": "sha256:2"}}, {"config": {"Labels": labels}})
    monkeypatch.setattr(oci, "read_layout", lambda folder: layout)
    monkeypatch.setattr(oci, "tag_of", lambda folder: "cu121")

    def use(made):
        monkeypatch.setattr(engine.Engine, "connect", classmethod(lambda cls, env: made))
        return made

    use.labels = labels
    return use


def test_it_runs_once_for_each_lock_in_an_engine(shop, image, tmp_path):
    at = image(Engine("noise\n" + json.dumps({"verl": ["ImportError", "no", None]})))
    for _ in range(2):
        (one,) = probe.check(LOCK, shop, tmp_path)
        assert (one.code, one.measured) == ("PROBE", "ImportError: no")
    ((name, command, user),) = at.ran
    assert (name, user) == ("sha256:1", 54321)
    assert "importlib" in command[2]
    other = dataclasses.replace(LOCK, digest="f" * 64)
    image.labels["dev.verlstack.lock"] = f"sha256:{other.digest}"
    probe.check(other, shop, tmp_path)
    assert len(at.ran) == 2


@pytest.mark.parametrize(
    "out",
    [
        *("", "no json", "[1]", "[" * 100_000, EngineError("it refuses")),
        '{"verl": ["E", "\\ud800", null]}',
        *("{}", '{"six": null}', '{"verl": 1}', '{"verl": []}', '{"verl": ["E", 1, null]}', '{"verl": ["E", "m"]}'),
    ],
)
def test_no_result_is_no_pass_and_is_not_kept(shop, image, tmp_path, out):
    at = image(Engine(out))
    for _ in range(2):
        assert [one.code for one in probe.check(LOCK, shop, tmp_path)] == ["PROBE-NOT-RUN"]
    assert len(at.ran) == 2


def test_a_damaged_note_is_no_pass(shop, image, tmp_path):
    at = image(Engine('{"verl": null}'))
    assert probe.check(LOCK, shop, tmp_path) == []
    (note,) = (shop.cache.root / "probes").iterdir()
    note.write_text("{}")
    assert probe.check(LOCK, shop, tmp_path) == []
    assert len(at.ran) == 2


def test_an_image_of_another_lock_is_not_asked(shop, image, tmp_path):
    at = image(Engine("{}"))
    image.labels["dev.verlstack.lock"] = "sha256:other"
    (one,) = probe.check(LOCK, shop, tmp_path)
    assert (one.code, at.ran) == ("PROBE-NOT-RUN", [])


def test_the_worker_runs_without_this_package():
    text = Path(probe_worker.__file__).read_text()
    assert not re.search(r"^(from|import) verlstack", text, re.MULTILINE)
    compile(text, "probe", "exec")
