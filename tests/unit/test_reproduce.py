"""Two images layer by layer, without an engine; and what of this machine a build gets."""

import json
import stat
import tomllib
from types import SimpleNamespace

import pytest

from support import layouts
from support.layers import Item, folder, pack
from verlstack import buildinputs, index, layer, oci, reproduce, tar
from verlstack.cache import Cache
from verlstack.content import Inline
from verlstack.errors import FetchError, LockError
from verlstack.index import Index
from verlstack.layer import MEDIA_TYPES, Blob, Compression
from verlstack.oci import Image, NamedBlob
from verlstack.progress import Silent

EPOCH = 1_700_000_000
HOW = Compression(level=3, window_log=20, long_distance=True, library="1.5.7")
OURS = {"base x": ["etc/os"], "interpreter": ["opt/py"], "torch": ["opt/a/t"], "verl": ["opt/a/v", "opt/a/w"]}


def file(path):
    return tar.file(path, Inline(data=path.encode()))


def write(tmp_path, blobs, name):
    image = Image(
        layers=tuple(blobs), env=(), labels=(), epoch=EPOCH, architecture="amd64", working_dir="/", command=("x",)
    )
    oci.write_layout(image, tmp_path / name, tag="t")
    return tmp_path / name


def composed(tmp_path, layers=OURS):
    blobs = []
    for number, (name, paths) in enumerate(layers.items()):
        path = tmp_path / f"ours-{number}"
        with path.open("wb") as out:
            entries = layer.arrange([file(p) for p in paths])
            diff_id, digest, size, raw = layer.write(entries, out, HOW, epoch=EPOCH, progress=lambda _: None)
        kind = MEDIA_TYPES["zstd"]
        blob = Blob(path=path, digest=digest, diff_id=diff_id, size=size, raw_size=raw, media_type=kind)
        blobs.append(NamedBlob(name=name, blob=blob))
    return write(tmp_path, blobs, "composed")


def built(tmp_path, *layers):
    """Raw tars as another builder's image."""
    blobs = []
    for number, raw in enumerate(layers):
        path = tmp_path / f"theirs-{number}"
        path.write_bytes(raw)
        digest = oci.digest(raw)
        kind = MEDIA_TYPES["none"]
        blob = Blob(path=path, digest=digest, diff_id=digest, size=len(raw), raw_size=len(raw), media_type=kind)
        blobs.append(NamedBlob(name="COPY", blob=blob))
    return write(tmp_path, blobs, "built")


def raw(paths):
    return b"".join(layer.stream(layer.arrange([file(p) for p in paths]), epoch=EPOCH))


def theirs(*paths):
    return pack(*(Item(p, p.encode()) for p in reversed(paths)))


def rows(tmp_path, *layers):
    lock = SimpleNamespace(epoch=EPOCH, layers=[SimpleNamespace(name="torch"), SimpleNamespace(name="verl")])
    sides = [reproduce.read(path, Silent()) for path in (composed(tmp_path), built(tmp_path, *layers))]
    return list(reproduce.compare_layers(*sides, lock, Silent())), sides


BELOW = (raw(OURS["base x"]), raw(OURS["interpreter"]))


def test_the_base_is_what_the_lock_does_not_make(tmp_path):
    lock = SimpleNamespace(layers=[SimpleNamespace(name=name) for name in OURS if not name.startswith("base")])
    tree = reproduce.base_tree(reproduce.read(composed(tmp_path), Silent()), lock)
    assert {path for path, node in tree.nodes.items() if node.kind != "dir"} == set(OURS["base x"])


def test_other_tars_of_the_same_files_agree(tmp_path):
    found, sides = rows(tmp_path, *BELOW, theirs("opt/a/t"), theirs("opt/a/v", "opt/a/w"))
    assert [(row.layer, row.same, row.note) for row in found] == [(name, True, "") for name in OURS]
    assert sides[0].tree.nodes == sides[1].tree.nodes


def test_layers_that_hold_nothing_are_passed_over(tmp_path):
    found, _ = rows(tmp_path, *BELOW, pack(), theirs("opt/a/t"), theirs("opt/a/v", "opt/a/w"), pack())
    assert all(row.same for row in found)


def test_the_base_must_be_the_same_bytes(tmp_path):
    found, _ = rows(tmp_path, theirs("etc/os"), BELOW[1], theirs("opt/a/t"), theirs("opt/a/v", "opt/a/w"))
    assert [row.same for row in found] == [False, True, True, True]


def test_a_layer_with_another_file_differs(tmp_path):
    found, _ = rows(tmp_path, *BELOW, theirs("opt/a/t", "opt/a/more"), theirs("opt/a/v", "opt/a/w"))
    assert [(row.layer, row.note) for row in found if not row.same] == [("torch", "differs")]


def test_a_further_layer_is_no_part_of_the_image(tmp_path):
    found, _ = rows(tmp_path, *BELOW, theirs("tmp/x"), theirs("opt/a/t"), theirs("opt/a/v", "opt/a/w"))
    assert [(row.layer, row.composed) for row in found if not row.same] == [("further", None)]


def test_a_missing_layer_is_said(tmp_path):
    found, _ = rows(tmp_path, *BELOW, theirs("opt/a/v", "opt/a/w"))
    assert not all(row.same for row in found)
    assert "missing" in [row.note for row in found]


def test_what_our_format_has_not_is_said(tmp_path):
    found, _ = rows(tmp_path, *BELOW, pack(Item("opt/a/.wh.t")), theirs("opt/a/v", "opt/a/w"))
    (bad,) = [row for row in found if not row.same]
    assert (bad.layer, bad.built) == ("torch", None)
    assert "whiteout" in bad.note


@pytest.mark.parametrize("part", ["differences", "leftovers", "rows"])
def test_nothing_at_all_may_differ(part):
    good = reproduce.Row(layer="x", composed="a", built="a")
    report = {"rows": (good,), "differences": (), "leftovers": ()}
    facts = {"stack": "s", "digest": "d", "builder": "b", "files": 1, "bytes": 1, "seconds": 0.0}
    assert reproduce.Report(**report, **facts).identical
    report[part] += (reproduce.Row(layer="x", composed="a", built=None),)
    assert not reproduce.Report(**report, **facts).identical


def test_a_layer_that_is_not_what_its_image_says(tmp_path):
    layout = composed(tmp_path)
    _, manifest, _ = oci.read_layout(layout)
    (layout / oci.blob_path(manifest["layers"][0]["digest"])).write_bytes(pack(Item("other")))
    with pytest.raises(Exception, match=r"cannot be read|not what its image says"):
        reproduce.read(layout, Silent())


@pytest.mark.parametrize("history", [None, "absent", [], ["x"] * 4, {}, [{}] * 5, [{"empty_layer": True}] * 4])
def test_a_history_that_does_not_tell_the_layers(tmp_path, history):
    layout = composed(tmp_path)

    def change(manifest, config):
        config.pop("history") if history == "absent" else config.update(history=history)

    layouts.change(layout, change)
    with pytest.raises(LockError, match="history does not tell"):
        reproduce.read(layout, Silent())


def test_owners_are_pins_or_layers(tmp_path):
    info = "opt/verl/lib/python3.10/site-packages/torch-2.3.1.dist-info/RECORD"
    record = Item(info, b"torch/a.py,,\n")
    path = built(tmp_path, pack(folder("opt"), record, Item("opt/verl/lib/python3.10/site-packages/torch/a.py")))
    found = reproduce.owners(reproduce.read(path, Silent()))
    assert found["opt/verl/lib/python3.10/site-packages/torch/a.py"] == "torch 2.3.1"
    assert found["opt"] == "layer COPY"


# -- what the build gets of this machine


def test_the_base_is_the_lowest_layers_as_they_are(tmp_path):
    layout = composed(tmp_path)
    context = buildinputs.base_layout(layout, 2, tmp_path / "os", epoch=EPOCH)
    digest, manifest, config = oci.read_layout(tmp_path / "os")
    assert context == f"oci-layout://{tmp_path}/os@{digest}"
    assert manifest["layers"] == oci.read_layout(layout)[1]["layers"][:2]
    assert config["config"]["Env"] == [f"PATH={buildinputs._PATH}"]


def test_pip_and_uv_are_told_the_index(tmp_path, monkeypatch):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("CERT")
    primary, extra = 'https://me:p%40"ss@index.test/simple/', "https://more.test/simple/"
    monkeypatch.setattr(index, "configured", lambda env: Index(primary=primary, extras=(extra,), cert=str(bundle)))
    found = buildinputs.secrets({}, tmp_path)
    assert set(found) == {"pip_conf", "uv_toml", "ca"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in found.values())
    uv = tomllib.loads(found["uv_toml"].read_text())
    assert uv["index"] == [{"url": extra}, {"url": primary, "default": True}]
    assert found["pip_conf"].read_text() == f"[global]\nindex-url = {primary}\nextra-index-url = {extra}\n"
    assert found["ca"].read_text() == "CERT"


def test_without_a_bundle_there_is_no_such_secret(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "configured", lambda env: Index(primary="https://index.test/simple/"))
    assert set(buildinputs.secrets({}, tmp_path)) == {"pip_conf", "uv_toml"}


def test_a_bundle_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "configured", lambda env: Index(primary="https://i.test/", cert="/nowhere.pem"))
    with pytest.raises(FetchError, match="CA bundle"):
        buildinputs.secrets({}, tmp_path)


def test_a_lock_without_pip_or_verl(tmp_path):
    with pytest.raises(LockError, match="no pip or no source"):
        buildinputs.contexts(SimpleNamespace(build_tools=(), built=(), stack="x"), None, tmp_path)


def test_the_verdict_is_printed_and_is_json(capsys):
    from verlstack import canonical
    from verlstack.cli import reproduce as verb

    row = reproduce.Row(layer="torch", composed="sha256:" + "a" * 64, built=None, note="missing")
    facts = {"stack": "s", "digest": "sha256:d", "builder": "b", "files": 1, "bytes": 1, "seconds": 1.0}
    report = reproduce.Report(rows=(row,), differences=(), leftovers=(), **facts)
    verb._print(report)
    out = capsys.readouterr().out
    assert "torch  aaaaaaaaaaaa  ------------  missing" in out
    assert "NOT identical" in out
    assert json.loads(canonical.dumps(report))["rows"][0]["note"] == "missing"


WHEEL = SimpleNamespace(project="flash-attn", filename="flash_attn-1-py3-none-any.whl", sha256="a" * 64)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Asks for a build of a lock with a pinned wheel, beside an image with these labels; gives what the engine got."""

    def ask(labels, *, cached=True):
        cache = Cache(tmp_path / "cache")
        if cached:
            kept = cache.file(WHEEL.sha256, WHEEL.filename)
            kept.parent.mkdir(parents=True)
            kept.write_bytes(b"wheel")
        layout = layouts.write(tmp_path / "dist", layouts.FIT, labels=labels)
        lock = SimpleNamespace(stack="x", layers=(), epoch=1, compiled=SimpleNamespace(wheel=WHEEL))
        shop = SimpleNamespace(constraints=tmp_path, env={}, cache=cache, progress=Silent())
        builder = SimpleNamespace(network="default")
        got = []
        monkeypatch.setattr(reproduce, "_names", lambda *_: ())
        monkeypatch.setattr(buildinputs, "base_layout", lambda *_, **__: "os")
        monkeypatch.setattr(buildinputs, "contexts", lambda *_: {})
        monkeypatch.setattr(buildinputs, "secrets", lambda *_: {})
        monkeypatch.setattr(reproduce.buildkit, "bake", lambda request, **_: got.append(request))
        (tmp_path / "work").mkdir()
        reproduce._build(lock, shop, layout, builder, tmp_path / "work")
        return got[0]

    return ask


def test_the_other_builder_gets_the_pinned_wheel(asked):
    request = asked({})
    assert set(request.contexts) == {"os", "wheelhouse"}
    assert request.arguments == {}


def test_an_image_that_goes_without_the_wheel_is_built_without_it(asked):
    request = asked({"dev.verlstack.left-out": "flash-attn"}, cached=False)
    assert set(request.contexts) == {"os"}
    assert request.arguments == {"FLASH_ATTN": ""}


def test_a_pinned_wheel_of_which_only_the_layer_is_kept(asked):
    with pytest.raises(FetchError, match="is not in the cache") as e:
        asked({}, cached=False)
    assert "verlstack fetch" in e.value.todo
