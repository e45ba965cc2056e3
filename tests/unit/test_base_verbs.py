"""The verbs for base images, with engine, mirror and registry replaced."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import json
import types
from pathlib import Path

import pytest

from support import layouts, stacks
from verlstack import buildkit, cli, oci, pins, shell, trees
from verlstack.base import aptsources, assemble, bases, debian, debs, diff, dpkg, interpreter, mmdebstrap, staged, use
from verlstack.base.interpreter import Interpreter
from verlstack.cache import Cache
from verlstack.errors import BaseImageError, BuildError, EngineError, FetchError, UsageError
from verlstack.progress import Silent
from verlstack.workshop import Workshop

PYTHON = Interpreter(executable=Path("/p/bin/python3.10"), prefix=Path("/p"), version="3.10.13", shared=True)
MIRROR = "deb http://admin:s3cret@mirror.invalid/debian bookworm main\n"


@pytest.fixture
def shop(tmp_path, monkeypatch, in_process):
    monkeypatch.setattr("verlstack.store.Compiler", in_process)
    monkeypatch.setattr(interpreter, "find", lambda *_, **__: PYTHON)
    folder = tmp_path / "constraints"
    folder.mkdir()
    stacks.write(folder)
    (tmp_path / "Dockerfile").write_text("FROM scratch AS base\n")
    with Cache(tmp_path / "cache").use() as cache:
        yield Workshop(constraints=folder, smoke_tests=folder, cache=cache, env={}, progress=Silent(), workers=1)


@pytest.fixture
def stack(shop):
    return pins.load(shop.constraints / "stacks.toml", "demo")


@pytest.fixture
def fit(tmp_path):
    return layouts.write(tmp_path / "fit", layouts.FIT)


def make(stack, shop, tmp_path, base, *packages, apt=None):
    return assemble.assemble(stack, shop, base=base, packages=packages, apt=apt, dist=tmp_path / "dist")


def test_a_base_and_the_interpreters_layer_become_a_layout(stack, shop, tmp_path, fit):
    report = make(stack, shop, tmp_path, f"oci:{fit}")
    digest, manifest, config = oci.read_layout(tmp_path / "dist" / "base-demo")
    assert (report.digest, report.tag, report.packages, report.local) == (digest, "base-demo", 2, True)
    assert len(manifest["layers"]) == 2
    assert manifest["layers"][0]["digest"] == oci.read_layout(fit)[1]["layers"][0]["digest"], "the base as it is"
    env = dict(one.split("=", 1) for one in config["config"]["Env"])
    assert env["PATH"] == "/opt/verl/bin:/bin"
    assert config["config"]["Labels"][bases.SCOPE] == "local"
    assert make(stack, shop, tmp_path, f"oci:{fit}").digest == digest
    again = bases.obtain(f"oci:{report.layout}", request(stack, shop))
    assert (again.python_home, again.local, again.packages) == (
        "/usr/bin",
        True,
        (("gcc", "4:12.2.0-3"), ("libc6", "2.36-9")),
    )


def test_proxies_of_apt_and_of_the_environment(stack, shop):
    dump = 'Acquire::http::Proxy "http://a:b@apt.invalid:1";\nAcquire::https::Proxy "DIRECT";\n'
    run = lambda *_, **__: types.SimpleNamespace(stdout=dump)  # noqa: E731
    env = {"http_proxy": "http://env.invalid", "HTTPS_PROXY": "http://env.invalid"}
    asked = dataclasses.replace(request(stack, shop), run=run, env=env)
    assert staged._proxies(asked) == "http=http://a:b@apt.invalid:1\nhttps=http://env.invalid\n"
    assert staged._proxies(dataclasses.replace(asked, env={}, run=missing)) == ""


def missing(*_, **__):
    raise shell.ProgramMissingError("apt-config")


def test_only_a_base_of_this_release_takes_this_machines_mirror(stack, shop, fit, tmp_path, monkeypatch):
    (tmp_path / "sources.list").write_text(MIRROR)
    monkeypatch.setattr(mmdebstrap, "ETC_APT", tmp_path)
    found = bases.look(f"oci:{fit}", request(stack, shop))
    texts = []
    for system, codename in (("ubuntu", "jammy"), ("debian", "bookworm"), ("ubuntu", "bookworm")):
        release = aptsources.Release(id=system, version="22.04", codename=codename, name="x")
        monkeypatch.setattr(bases, "host", lambda release=release: release)
        texts.append(staged._machines_sources(found))
    assert texts == [{}, {}, {"own.list": MIRROR}], "without a mirror of its release there is none"


def request(stack, shop):
    from verlstack import build

    return build.base_request(stack, shop, PYTHON)


@pytest.mark.parametrize("name", ["a;rm", "-o", "UPPER", "a b", "$(id)", "", "a", "+a"])
def test_names_that_are_no_packages(stack, shop, tmp_path, fit, name):
    with pytest.raises(UsageError, match=r"no name of a Debian package\n"):
        make(stack, shop, tmp_path, f"oci:{fit}", name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gcc-", "order to remove"),
        ("g++-", "order to remove"),
        ("gcc=4:12", "no version"),
        ("gcc/bookworm", "suite"),
        ("gcc:i386", "architecture"),
    ],
)
def test_what_apt_takes_for_an_order_is_refused_everywhere(stack, shop, tmp_path, fit, name, why):
    for base in (f"oci:{fit}", "debian"):
        with pytest.raises(UsageError, match=f"no name of a Debian package: .*{why}") as e:
            make(stack, dataclasses.replace(shop, offline=True), tmp_path, base, name)
        assert e.value.where == "--package"
    release = "ID=debian\nVERSION_CODENAME=bookworm\n"
    with pytest.raises(UsageError, match="no name of a Debian package") as e:
        debian.plan(["gcc", name], epoch=1, compression=stack.compression, os_release=release)
    assert "stacks.toml" in e.value.where


def test_names_that_end_in_a_plus_are_names():
    dpkg.check_names(["g++", "memtest86+", "libstdc++6", "g++-12", "python3.11", "0ad"], "here")


# -- packages into an image, by an engine


class Engine:
    """Stands in for buildkit: the stage adds these files in one layer."""

    def __init__(self, monkeypatch, files, *, error=None):
        self.files, self.error, self.requests, self.bake_files, self.secrets = files, error, [], [], {}
        builder = buildkit.Builder(engine="26", buildkit="0.13", driver="docker", network="host")
        monkeypatch.setattr(buildkit, "check", lambda env: builder)
        monkeypatch.setattr(buildkit, "bake", self.bake)
        monkeypatch.setattr(staged, "_proxies", lambda request: "")

    def bake(self, request, *, env, scratch, progress):
        self.requests.append(request)
        self.bake_files.append(json.loads(request.files[0].read_text()))
        self.secrets = {name: (path.read_text(), path.stat().st_mode & 0o777) for name, path in request.secrets.items()}
        if self.error:
            raise self.error
        where = self.bake_files[-1]["target"]["base"]["contexts"]["os"].removeprefix("oci-layout://").partition("@")[0]
        _, manifest, config = oci.read_layout(Path(where))
        raws = [gzip.decompress((Path(where) / oci.blob_path(x["digest"])).read_bytes()) for x in manifest["layers"]]
        blobs = request.output / "blobs" / "sha256"
        layouts.write(request.output)  # its folders
        raws.append(layouts.tarball(self.files))
        for raw in raws:
            (blobs / layouts.sha(raw).removeprefix("sha256:")).write_bytes(raw)
        plain = [
            {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layouts.sha(r), "size": len(r)}
            for r in raws
        ]
        diff_ids = {"rootfs": {"type": "layers", "diff_ids": [layouts.sha(raw) for raw in raws]}}
        layouts.write(request.output, manifest={"layers": plain}, config=config | diff_ids)


def test_packages_go_through_the_stage_and_come_back_as_our_layer(stack, shop, tmp_path, fit, monkeypatch):
    litter = {"var/lib/apt/lists/x": b"mirror.invalid", "var/log/apt/term.log": b"x", "etc/apt/sources.list": b"deb"}
    engine = Engine(monkeypatch, {"usr/bin/ibstat": b"elf", "usr/share/.wh.old": b""} | litter)
    (tmp_path / "m").write_text(MIRROR)
    apt = aptsources.given(tmp_path / "m", None, None)
    report = make(stack, shop, tmp_path, f"oci:{fit}", "ibutils", "less", apt=apt)
    (order,) = engine.requests
    target = engine.bake_files[0]["target"]["base"]
    assert target["args"] == {
        "OS": "os",
        "PYTHON": "3.10",
        "PACKAGES": "ibutils less",
        "SOURCE_DATE_EPOCH": str(stack.epoch),
    }
    assert (order.target, order.network, order.folder, order.cached) == ("base", "host", tmp_path, False)
    assert engine.secrets == {"apt_sources": (MIRROR, 0o600)}
    assert "s3cret" not in str(buildkit.command(order)) + str(engine.bake_files)
    assert report.local
    names = [member.path for member in second_layer(report.layout)]
    assert names == ["usr", "usr/bin", "usr/bin/ibstat", "usr/share", "usr/share/.wh.old"]
    assert list(shop.cache.tmp.iterdir()) == []
    assert make(stack, shop, tmp_path, f"oci:{fit}", "ibutils", "less", apt=apt).digest == report.digest


def test_what_fails_upon_the_grown_base_is_no_fault_of_the_disk(stack, shop, tmp_path, fit, monkeypatch):
    Engine(monkeypatch, {"usr/bin/ibstat": b"elf"})

    def refuse(*_):
        raise PermissionError(errno.EACCES, "no", "/usr/lib/python3.10/x.py")

    monkeypatch.setattr(assemble.build, "interpreter_job", refuse)
    with pytest.raises(PermissionError):
        make(stack, shop, tmp_path, f"oci:{fit}", "ibutils")
    assert list(shop.cache.tmp.iterdir()) == []


def second_layer(layout):
    described = oci.read_layout(layout)[1]["layers"][1]
    return trees.read(layout / oci.blob_path(described["digest"]), described["mediaType"]).members


def test_a_stage_that_adds_nothing_adds_no_layer(stack, shop, tmp_path, fit, monkeypatch):
    Engine(monkeypatch, {"var/log/dpkg.log": b"x"})
    report = make(stack, shop, tmp_path, f"oci:{fit}", "gcc")
    assert len(oci.read_layout(report.layout)[1]["layers"]) == 2


def test_no_engine(stack, shop, tmp_path, fit, monkeypatch):
    def check(env):
        raise EngineError("there is no docker command", todo="install it")

    monkeypatch.setattr(buildkit, "check", check)
    with pytest.raises(EngineError, match="no docker command"):
        make(stack, shop, tmp_path, f"oci:{fit}", "less")


def test_a_stage_that_fails_leaves_nothing(stack, shop, tmp_path, fit, monkeypatch):
    Engine(monkeypatch, {}, error=BuildError("the mirror of Debian has no package nosuch"))
    with pytest.raises(BuildError, match="nosuch"):
        make(stack, shop, tmp_path, f"oci:{fit}", "nosuch")
    assert list(shop.cache.tmp.iterdir()) == []
    assert not (tmp_path / "dist").exists()


def test_what_only_a_bootstrap_or_a_checkout_can(stack, shop, tmp_path, fit):
    from test_apt_given import PEM

    (tmp_path / "pem").write_text(PEM)
    with pytest.raises(UsageError, match="--trust-ca"):
        make(stack, shop, tmp_path, f"oci:{fit}", apt=aptsources.given(None, None, tmp_path / "pem"))
    (tmp_path / "Dockerfile").unlink()
    with pytest.raises(UsageError, match="Dockerfile") as caught:
        make(stack, shop, tmp_path, f"oci:{fit}", "less")
    assert caught.value.todo


def test_a_hard_link_out_of_the_layer(tmp_path, stack, shop, fit, monkeypatch):
    import io
    import tarfile

    def linked(files):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as out:
            info = tarfile.TarInfo("usr/bin/x")
            info.type, info.linkname = tarfile.LNKTYPE, "usr/bin/gcc"
            out.addfile(info)
        return buffer.getvalue()

    Engine(monkeypatch, {})
    monkeypatch.setattr(layouts, "tarball", linked)
    with pytest.raises(BaseImageError, match="hard link to /usr/bin/gcc"):
        make(stack, shop, tmp_path, f"oci:{fit}", "less")


# -- show and diff


@pytest.fixture
def project(shop, monkeypatch, tmp_path):
    monkeypatch.setenv("VERLSTACK_CACHE", str(shop.cache.root))
    monkeypatch.chdir(tmp_path)


def test_show_for_people_and_for_programs(project, fit, capsys):
    assert cli.main(["base", "show", str(fit), "--stack", "demo"]) == 0
    out = capsys.readouterr().out
    for text in (
        "Ubuntu 22.04, glibc 2.36, GLIBCXX 3.4.30",
        "/usr/bin/python3.10 3.10.12",
        "fits the stack",
        "libc6 2.36-9",
    ):
        assert text in out
    assert cli.main(["base", "show", f"oci:{fit}", "--stack", "demo", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["packages"][0] == {
        "name": "gcc", "version": "4:12.2.0-3", "architecture": "amd64", "source": "gcc-defaults",
        "source_version": "1.203", "installed_kib": 50, "licence": None, "sha256": None,
    }  # fmt: skip
    assert known["local"] is True
    assert len(known["layers"]) == 1


@pytest.mark.parametrize(("more", "digest"), [("", "a" * 64), ("nonsense\n", None)])
def test_show_has_the_hashes_that_a_base_lists(project, tmp_path, capsys, more, digest):
    files = layouts.FIT | {debs.PATH: f"{'a' * 64}  libc6_2.36-9_amd64.deb\n{more}".encode()}
    assert cli.main(["base", "show", str(layouts.write(tmp_path / "x", files)), "--stack", "demo", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)["packages"]
    assert {x["name"]: x["sha256"] for x in known} == {"gcc": None, "libc6": digest}


def test_show_says_why_a_base_does_not_fit(project, tmp_path, capsys):
    lame = layouts.write(tmp_path / "lame", {name: x for name, x in layouts.FIT.items() if "gcc" not in name})
    assert cli.main(["base", "show", str(lame), "--stack", "demo"]) == 0
    assert "unfit     the base has no C compiler" in capsys.readouterr().out


def test_base_build_asks_the_mirror_again(project, monkeypatch):
    asked = []

    def obtain(spec, request):
        asked.append((spec, request.fresh))
        raise BaseImageError("seen enough")

    monkeypatch.setattr(bases, "obtain", obtain)
    assert cli.main(["base", "build", "demo"]) == 9
    assert asked == [("debian", True)]


@pytest.mark.parametrize("word", ["auto", "none/such", "oci:", "registry:", ""])
@pytest.mark.parametrize("verb", [("show",), ("diff", "debian")])
def test_what_show_and_diff_cannot_look_at(project, monkeypatch, capsys, verb, word):
    monkeypatch.setattr(bases, "look", lambda spec, request: None)
    assert cli.main(["base", *verb, word, "--stack", "demo"]) == 2
    said = capsys.readouterr().err
    assert f"there is no base {word!r}" in said
    assert "where: BASE" in said
    assert "the folder of a layout" in said
    assert "auto" not in said.replace(repr(word), "")


def test_diff_says_what_differs(project, fit, tmp_path, capsys):
    status = layouts.STATUS.replace("2.36-9", "2.36-10").replace(
        "Package: gone\nStatus: deinstall ok config-files", "Package: new\nStatus: install ok installed"
    )
    other = layouts.write(
        tmp_path / "other",
        layouts.FIT,
        {"var/lib/dpkg/status": status.encode(), "opt/x": b"y", "usr/bin/.wh.python3.10": b""},
    )
    assert cli.main(["base", "diff", str(fit), str(other), "--stack", "demo"]) == 1
    out = capsys.readouterr().out
    for text in ("2 packages differ", "libc6:amd64  2.36-9 → 2.36-10", "new:amd64  - → 1", "/opt/x  added",
                 "/usr/bin/python3.10  removed", "/var/lib/dpkg/status  changed in size, content"):  # fmt: skip
        assert text in out
    assert cli.main(["base", "diff", str(fit), str(other), "--stack", "demo", "--json"]) == 1
    assert {x["path"] for x in json.loads(capsys.readouterr().out)["files"]} >= {"opt/x", "usr/bin/python3.10"}
    assert cli.main(["base", "diff", str(fit), str(fit), "--stack", "demo"]) == 0


def test_long_differences_are_cut_for_people():
    node = trees.Node(kind="file", mode=0o644, uid=0, gid=0)
    files = tuple(trees.Difference(path=f"x{n}", one=None, other=node) for n in range(5))
    found = diff.Comparison(packages=(), raw_bytes=0, stored_bytes=0, files=files)
    assert diff.lines(found, shown=2)[-1] == "  and 3 more (--json has all)"


# -- use

REF = "registry.invalid/team/base:1@sha256:" + "b" * 64


def test_use_judges_first_and_then_writes(stack, shop, monkeypatch):
    calls = []
    monkeypatch.setattr("verlstack.build.base_of", lambda stack, shop, spec, python: calls.append(spec))

    def repin(name, table, values, shop):
        calls.append((name, table, values))
        return types.SimpleNamespace(digest="c" * 64)

    monkeypatch.setattr("verlstack.repin.repin", repin)
    report = use.use(stack, shop, REF)
    assert calls == [f"registry:{REF}", ("demo", "stack.demo", {"registry_base": REF})]
    assert (report.before, report.after, report.lock_before) == (stack.registry_base, REF, None)
    assert report.lock == "sha256:" + "c" * 64


def test_use_of_a_base_that_is_not_to_be_had_or_does_not_fit(stack, shop, monkeypatch):
    def refuse(error):
        def base_of(*_):
            raise error

        return base_of

    monkeypatch.setattr("verlstack.repin.repin", lambda *_: pytest.fail("nothing may be written"))
    for error in (FetchError("nobody there"), BaseImageError("no C compiler")):
        monkeypatch.setattr("verlstack.build.base_of", refuse(error))
        with pytest.raises(type(error)):
            use.use(stack, shop, REF)
    asked = []

    def resolve(client, tag):
        asked.append(f"{client.reference.host}/{client.reference.repository}:{tag}")
        if len(asked) > 1:
            raise FetchError("nobody there")
        return f"sha256:{'d' * 64}"

    monkeypatch.setattr("verlstack.base.registry.Client.resolve", resolve)
    tag = "registry.invalid/team/base:1"
    with pytest.raises(UsageError, match="a tag can move") as e:
        use.use(stack, shop, tag)
    assert e.value.todo.endswith(f"now it is {tag}@sha256:{'d' * 64}")
    for other in (shop, dataclasses.replace(shop, offline=True)):
        with pytest.raises(UsageError, match="a tag can move") as e:
            use.use(stack, other, tag)
        assert "skopeo inspect" in e.value.todo
    assert asked == [tag, tag], "offline nobody is asked"
