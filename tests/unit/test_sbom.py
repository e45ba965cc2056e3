"""What is in an image: read from layers, held against the lock, written as documents that the official schemas take."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import cyclonedx.schema
import jsonschema
import pytest
import referencing
from packageurl import PackageURL
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from support import imagelayers, layouts
from support.imagelayers import (
    BASE,
    DEBS,
    GCC,
    HASHED,
    LIBS,
    SITE,
    TORCH,
    artifact,
    image,
    layers,
    lock,
    package,
    surroundings,
)
from verlstack import oci, trees
from verlstack.errors import LockError
from verlstack.lockfile import Compiled
from verlstack.sbom import contents, licences, make, spdx
from verlstack.sbom import cyclonedx as writer
from verlstack.sbom.inventory import Inventory, take


@pytest.fixture
def read(tmp_path):
    """Contents by layer of an image of these files."""

    def run(found):
        around = surroundings(tmp_path)
        folder = image(tmp_path / "image", found)
        return contents.read(folder, around.cache, around.workers, around.progress)

    return run


@pytest.fixture
def inventory(read):
    known = {"name": "verlstack tiny-sdpa", "version": "0.2.0.post2", "digest": f"sha256:{'e' * 64}"}
    return Inventory(**known, created="2025-03-04T00:00:00Z", lock="sha256:d", components=take(read(layers()), lock()))


@pytest.fixture
def hashed(inventory, read):
    """The same on a base with the hash of one Debian package."""
    return dataclasses.replace(inventory, components=take(read(layers(**{"base debian": HASHED})), lock()))


def by_name(components):
    return {x.name: x for x in components}


def test_everything_is_there_with_version_hash_and_licence(inventory):
    found = by_name(inventory.components)
    assert {name: x.kind for name, x in found.items()} == {
        "click": "wheel", "numpy": "wheel", "torch": "wheel", "verl": "wheel", "six": "carried", "gcc": "deb",
        "libc6": "deb", "debian": "system", "cpython": "interpreter", "verlstack-smoke": "own",
    }  # fmt: skip
    torch, verl = found["torch"], found["verl"]
    assert (torch.version, torch.sha256) == ("2.3.1", imagelayers.sha("torch-2.3.1-py3-none-any.whl"))
    assert (torch.licence.expression, found["click"].licence.expression) == ("BSD-3-Clause", "Apache-2.0")
    assert found["numpy"].licence.words == "NVIDIA Proprietary Software"
    assert (verl.sha256, verl.made_from.sha256) == (imagelayers.sha("verl"), imagelayers.sha("verl-0.2.0.post2.tar.gz"))
    assert (found["six"].inside, found["six"].version) == (torch.purl, "2.0")
    assert (found["cpython"].version, found["libc6"].paper) == ("3.10.13", "/usr/share/doc/libc6/copyright")
    assert found["gcc"].purl == "pkg:deb/debian/gcc@4%3A12.2.0-3?arch=amd64&distro=debian-12"


def test_a_debian_package_has_the_hash_that_the_base_says(hashed):
    found = by_name(hashed.components)
    assert (found["gcc"].sha256, found["gcc"].file) == (imagelayers.sha(GCC), GCC)
    assert (found["libc6"].sha256, found["libc6"].file) == (None, None)
    one = by_name_in(json.loads(writer.document(hashed))["components"])
    assert one["gcc"]["hashes"] == [{"alg": "SHA-256", "content": imagelayers.sha(GCC)}]
    assert "hashes" not in one["libc6"]
    other = by_name_in(json.loads(spdx.document(hashed))["packages"])
    assert other["gcc"]["checksums"] == [{"algorithm": "SHA256", "checksumValue": imagelayers.sha(GCC)}]
    assert other["gcc"]["packageFileName"] == GCC
    assert "checksums" not in other["libc6"]
    assert cyclonedx_errors(writer.document(hashed)) == spdx_errors(spdx.document(hashed)) == []


def by_name_in(rows):
    return {x["name"]: x for x in rows}


def test_a_layer_over_a_bootstrap_may_change_its_packages(read):
    """What an engine installed into it: one package is another now, and none of its own layer has a hash."""
    listed = HASHED[DEBS] + f"{imagelayers.sha('libc6')}  libc6_2.36-9_amd64.deb\n".encode()
    files = {
        "base one": HASHED | {DEBS: listed},
        "base two": {"var/lib/dpkg/status": imagelayers.STATUS.replace("2.36-9", "2.36-10").encode()},
    }
    found = by_name(take(read(files), None))
    assert (found["gcc"].sha256, found["gcc"].layer) == (imagelayers.sha(GCC), "base two")
    assert (found["libc6"].sha256, found["libc6"].version) == (None, "2.36-10")


def test_a_base_that_was_upgraded_and_squashed_keeps_the_hashes_that_still_fit(read):
    listed = HASHED[DEBS] + f"{imagelayers.sha('libc6')}  libc6_2.36-9_amd64.deb\n".encode()
    status = imagelayers.STATUS.replace("2.36-9", "2.36-10").encode()
    found = by_name(take(read({"base debian": BASE | {DEBS: listed, "var/lib/dpkg/status": status}}), None))
    assert (found["gcc"].sha256, found["libc6"].sha256) == (imagelayers.sha(GCC), None)


def test_a_base_of_several_layers(tmp_path):
    """They all are called after the base."""
    files = layers()
    folder = image(
        tmp_path / "image", files, names=("base reg.io/x@sha256:1", "base reg.io/x@sha256:1", *list(files)[2:])
    )
    found = contents.read(folder, **vars(surroundings(tmp_path)))
    assert list(found)[:3] == ["base reg.io/x@sha256:1", "base reg.io/x@sha256:1 (2)", "torch"]
    components = by_name(take(found, lock(files)))
    assert components["cpython"].layer == "base reg.io/x@sha256:1 (2)"
    assert components["libc6"].layer == "base reg.io/x@sha256:1"


@pytest.mark.parametrize("name", ["torch", "interpreter"])
def test_other_layers_of_one_name_are_refused(tmp_path, name):
    files = layers()
    folder = image(tmp_path / "image", files, names=("base debian", name, name, *list(files)[3:]))
    with pytest.raises(LockError, match="one name"):
        contents.read(folder, **vars(surroundings(tmp_path)))


def test_package_urls_are_ones(inventory):
    for one in inventory.components:
        assert PackageURL.from_string(one.purl).name


def test_names_that_somebody_chose_to_do_harm(read):
    torch = package("torch", "2.3.1")
    evil = {f"{SITE}/torch/x-1.dist-info/METADATA": b"Name: a?b#c\x1b[31m\nVersion: 1 2\nLicense: \x1b]0;x\x07y\n"}
    record = f"{SITE}/torch-2.3.1.dist-info/RECORD"
    for path, data in evil.items():
        torch[path] = data
        torch[record] += imagelayers.row(path.removeprefix(f"{SITE}/"), data).encode()
    files = layers(torch=torch)
    components = take(read(files), lock(files))
    one = next(x for x in components if x.kind == "carried")
    assert PackageURL.from_string(one.purl).version == "1 2"
    known = {"name": "x", "version": None, "digest": f"sha256:{'e' * 64}", "created": "2025-03-04T00:00:00Z"}
    found = Inventory(**known, lock=None, components=components)
    assert cyclonedx_errors(writer.document(found)) == spdx_errors(spdx.document(found)) == []


def changed(files, path, data):
    return files | {f"{SITE}/{path}": data}


def without(files, path):
    return {name: data for name, data in files.items() if name != f"{SITE}/{path}"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"torch": changed(TORCH, "torch/__init__.py", b"evil")}, r"other bytes at /opt.*torch/__init__\.py"),
        ({"torch": changed(TORCH, "torch/more.py", b"evil")}, r"torch/more\.py, which no RECORD names"),
        ({"torch": changed(TORCH, "evil.pth", b"import evil")}, r"evil\.pth, which no RECORD names"),
        ({"torch": without(TORCH, "torch/__init__.py")}, r"lacks /opt.*torch/__init__\.py"),
        ({"torch": without(TORCH, "torch-2.3.1.dist-info/RECORD")}, r"which no RECORD names"),
        ({"torch": changed(TORCH, "torch/__init__.py", "-> /tmp/x")}, r"other bytes at /opt.*torch/__init__"),
        ({"smoke": package("evil")}, "knows no packages in it"),
        ({"extra": package("evil")}, "no layer extra"),
        ({"extra": {"etc/passwd": b"root"}}, "no layer extra"),
        ({"base debian": BASE | package("evil")}, "nothing pins that"),
        ({"base debian": HASHED | {DEBS: b"x" * 64 + b"  " + GCC.encode()}}, r"base debian has no hash .* in line 1"),
        ({"base more": {"usr/bin/python": b"evil"}}, "the layer base more lies over the layer torch"),
        ({"smoke": {f"{SITE}/.wh.torch": b""}}, r"\.wh\.torch"),
        ({"smoke": {"opt/verl/lib/python3.10/site-packages": "-> /tmp"}}, "hides the environment"),
        ({"smoke": {"opt/verl": "-> /tmp"}}, "hides the environment"),
        ({"libs": LIBS | package("evil")}, "the lock does not name it there"),
        ({"libs": package("click")}, "names numpy in the layer libs"),
        ({"libs": package("click") | package("numpy", "1.1")}, r"numpy is 1\.1 in the layer libs, and 1\.0"),
        ({"libs": None}, "the lock names click, and no layer holds it"),
        ({"smoke": None}, "the layer smoke, and no layer holds it"),
    ],
)
def test_an_image_that_is_not_what_its_lock_says(read, change, said):
    found = layers(**change)
    pinned = lock()
    fitting = tuple(  # diff_ids that agree: what is looked for must be found by looking, not by these
        dataclasses.replace(x, diff_id=layouts.sha(layouts.tarball(found[x.name]))) if x.name in found else x
        for x in pinned.layers
    )
    with pytest.raises(LockError, match=said):
        take(read(found), dataclasses.replace(pinned, layers=fitting))


def test_a_layer_with_another_diff_id(read):
    with pytest.raises(LockError, match="has the diff_id"):
        take(read(layers(smoke={"opt/verlstack/smoke_tests/run.py": b"evil"})), lock())


def compiled(**how):
    return Compiled(
        source=artifact("flash-attn", "2.5", "flash_attn-2.5.tar.gz"), cuda_archs=("8.0",), cxx11_abi=False, tools=(),
        wheel=artifact("flash-attn", "2.5", "flash_attn-2.5-cp310-cp310-linux_x86_64.whl"),
    )  # fmt: skip


def test_a_compiled_wheel_is_there_or_left_out_and_said_to_be(read):
    files = layers(**{"flash-attn": package("flash_attn", "2.5")})
    pinned = lock()
    one = dataclasses.replace(
        pinned.layers[0], name="flash-attn", packages=("flash-attn",),
        diff_id=layouts.sha(layouts.tarball(files["flash-attn"])),
    )  # fmt: skip
    pinned = dataclasses.replace(pinned, compiled=compiled(), layers=(*pinned.layers, one))
    found = by_name(take(read(files), pinned))["flash-attn"]
    assert (found.file, found.made_from.file) == (compiled().wheel.filename, "flash_attn-2.5.tar.gz")
    assert "flash-attn" not in by_name(take(read(layers()), pinned, left_out="flash-attn"))
    with pytest.raises(LockError, match="names flash-attn"):
        take(read(layers()), pinned)


def test_layers_are_read_once_and_by_their_digest(tmp_path, monkeypatch):
    around, folder = surroundings(tmp_path), image(tmp_path / "image")
    first = contents.read(folder, around.cache, 2, around.progress)
    monkeypatch.setattr(trees, "read", lambda *_, **__: pytest.fail("read again"))
    assert contents.read(folder, around.cache, 2, around.progress) == first
    for path in (around.cache.root / "contents").iterdir():
        path.write_text("{}")
    with pytest.raises(pytest.fail.Exception, match="read again"):
        contents.read(folder, around.cache, 2, around.progress)


def test_a_damaged_layer_is_refused(tmp_path):
    around, folder = surroundings(tmp_path), image(tmp_path / "image")
    _, manifest, _ = oci.read_layout(folder)
    (folder / oci.blob_path(manifest["layers"][2]["digest"])).write_bytes(b"x")
    with pytest.raises(LockError, match="not what its digest says"):
        contents.read(folder, around.cache, 2, around.progress)


def test_a_config_that_lies_about_a_layer(tmp_path):
    around, folder = surroundings(tmp_path), image(tmp_path / "image")
    layouts.change(folder, lambda _, config: config["rootfs"]["diff_ids"].reverse())
    with pytest.raises(LockError, match="not what the image's config says"):
        contents.read(folder, around.cache, 2, around.progress)


def cyclonedx_errors(text):
    folder = Path(cyclonedx.schema.__file__).parent / "_res"
    names = {"spdx.schema.json": "spdx.SNAPSHOT.schema.json", "jsf-0.82.schema.json": "jsf-0.82.SNAPSHOT.schema.json"}
    rows = [
        (
            f"http://cyclonedx.org/schema/{name}",
            referencing.Resource.from_contents(json.loads((folder / x).read_text())),
        )
        for name, x in names.items()
    ]
    schema = json.loads((folder / "bom-1.6.SNAPSHOT.schema.json").read_text())
    check = jsonschema.Draft7Validator(schema, registry=referencing.Registry().with_resources(rows))
    return [x.message for x in check.iter_errors(json.loads(text))]


def spdx_errors(text):
    document = JsonLikeDictParser().parse(json.loads(text))
    return [x.validation_message for x in validate_full_spdx_document(document)]


def test_cyclonedx_is_what_its_schema_wants(inventory):
    text = writer.document(inventory)
    assert cyclonedx_errors(text) == []
    assert cyclonedx_errors(text.replace(b'"library"', b'"book"'))
    document = json.loads(text)
    refs = [x["bom-ref"] for x in document["components"]]
    assert len(set(refs)) == len(refs) == len(inventory.components)
    torch = next(x for x in document["components"] if x["name"] == "torch")
    assert torch["hashes"] == [{"alg": "SHA-256", "content": imagelayers.sha("torch-2.3.1-py3-none-any.whl")}]
    held = {x["ref"]: x["dependsOn"] for x in document["dependencies"]}
    assert held[torch["bom-ref"]] == [x for x in refs if "six" in x]


def test_spdx_is_what_its_specification_wants(inventory):
    text = spdx.document(inventory)
    assert spdx_errors(text) == []
    assert spdx_errors(text.replace(b'"BSD-3-Clause"', b'"no licence"'))
    document = json.loads(text)
    torch = next(x for x in document["packages"] if x["name"] == "torch")
    assert torch["checksums"][0]["checksumValue"] == imagelayers.sha("torch-2.3.1-py3-none-any.whl")
    made = [x for x in document["relationships"] if x["relationshipType"] == "GENERATED_FROM"]
    assert [x["relatedSpdxElement"].startswith("SPDXRef-source-verl") for x in made] == [True]


def test_the_same_image_gives_the_same_documents(inventory):
    other = dataclasses.replace(inventory, digest=f"sha256:{'f' * 64}")
    for write in (writer.document, spdx.document):
        assert write(inventory) == write(dataclasses.replace(inventory))
        assert write(inventory) != write(other)


def test_a_base_has_no_lock(tmp_path):
    around = surroundings(tmp_path)
    labels = {"dev.verlstack.lock": None}
    folder = image(tmp_path / "image", {"base debian": BASE}, labels=labels)
    layouts.change(folder, lambda _, config: config["config"]["Labels"].pop("dev.verlstack.lock"))
    found = make.inventory(folder, tmp_path, **vars(around))
    assert {x.kind for x in found.components} == {"deb", "system"}
    assert cyclonedx_errors(writer.document(found)) == spdx_errors(spdx.document(found)) == []


def test_the_base_of_an_image_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "lock_of", lambda *_: lock())
    found = make.inventory(image(tmp_path / "image"), tmp_path, **vars(surroundings(tmp_path)))
    rows = json.loads(writer.document(found))["metadata"]["properties"]
    assert {x["name"]: x["value"] for x in rows}["dev.verlstack:base"] == "bootstrapped from Debian"
    assert "on bootstrapped from Debian" in json.loads(spdx.document(found))["comment"]


def test_a_lock_that_is_not_here(tmp_path):
    with pytest.raises(LockError, match="is not here"):
        make.inventory(image(tmp_path / "image"), tmp_path, **vars(surroundings(tmp_path)))


@pytest.mark.parametrize(
    ("fields", "expression", "words"),
    [
        ([("License-Expression", "mit OR apache-2.0"), ("License", "x")], "MIT OR Apache-2.0", None),
        ([("License", "Apache 2.0")], "Apache-2.0", None),
        ([("License", "   Apache License\n  Version 2.0, January 2004\n http")], "Apache-2.0", None),
        ([("Classifier", "License :: OSI Approved :: MIT License")], "MIT", None),
        ([("Classifier", "License :: OSI Approved :: BSD License")], None, "BSD License"),
        ([("License", "BSD"), ("Classifier", "License :: OSI Approved :: MIT License")], "MIT", None),
        ([("Classifier", "License :: A"), ("Classifier", "License :: B")], None, "A / B"),
        ([("License", "Proprietary\x1b[31m")], None, "Proprietary"),
        ([("License", "A long text\n" + "x" * 5000)], None, "A long text"),
        ([("License-Expression", "LicenseRef-Own")], None, "LicenseRef-Own"),
        ([], None, None),
    ],
)
def test_licences(fields, expression, words):
    found = licences.of(fields)
    assert (found.expression, found.words) == (expression, words)
