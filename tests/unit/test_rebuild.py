"""Why a rebuilt image differs: what no lock pins is told from the labels; and bases as the labels name them."""

import dataclasses

import pytest

from support import layouts
from verlstack import rebuild
from verlstack.closurediff import Side
from verlstack.errors import BaseImageError
from verlstack.pullcost import Layer

NAME = "base bootstrapped from Debian GNU/Linux 12"


def side(folder, number, packages, files):
    """An image of a bootstrapped base and a layer `libs`, whose bytes lie in a layout."""
    layout = layouts.write(folder / str(number), files, {"opt/x": b"same"})
    _, manifest, config = rebuild.oci.read_layout(layout)
    rows = zip(manifest["layers"], config["rootfs"]["diff_ids"], (NAME, "libs"), (packages, {}), strict=True)
    layers = tuple(
        Layer(name=name, diff_id=diff_id, digest=entry["digest"], size=1, packages=own, media_type=entry["mediaType"],
              blob=layout / rebuild.oci.blob_path(entry["digest"]))
        for entry, diff_id, name, own in rows
    )  # fmt: skip
    return Side(name=str(number), kind="layout", lock=None, digest=str(number), layers=layers)


def test_a_base_of_other_debian_packages(tmp_path):
    one = side(tmp_path, 1, {"debian:gcc": "12.1"}, {"usr/bin/gcc": b"old", "etc/same": b""})
    other = side(tmp_path, 2, {"debian:gcc": "12.2"}, {"usr/bin/gcc": b"new", "etc/same": b""})
    (found,) = rebuild._files(one, other)
    assert found.path == "/usr/bin/gcc"
    assert found.owner == f"layer {NAME}"
    assert "the mirror has other Debian packages now: gcc 12.1 → 12.2" in found.cause


def test_a_base_of_the_same_packages(tmp_path):
    one, other = (side(tmp_path, n, {"debian:gcc": "1"}, {"usr/bin/gcc": bytes([n])}) for n in (1, 2))
    (found,) = rebuild._files(one, other)
    assert "the same Debian packages" in found.cause


def test_many_packages_are_cut(tmp_path):
    one, other = (side(tmp_path, n, {f"debian:p{i}": str(n) for i in range(9)}, {"a": bytes([n])}) for n in (1, 2))
    (found,) = rebuild._files(one, other)
    assert found.cause.endswith("p4 1 → 2 and 4 more")


def test_layers_that_both_have_are_not_read(tmp_path):
    one, other = (side(tmp_path, n, {}, {"a": b"1"}) for n in (1, 2))
    gone = tuple(dataclasses.replace(x, blob=tmp_path / "nothing") for x in one.layers)
    assert list(rebuild._files(dataclasses.replace(one, layers=gone), other)) == []


@pytest.mark.parametrize(
    ("label", "spec"),
    [
        ("bootstrapped from Debian GNU/Linux 12 (bookworm)", "debian"),
        ("host.example/team/base@sha256:0", "registry:host.example/team/base@sha256:0"),
    ],
)
def test_bases_as_the_label_names_them(label, spec, tmp_path):
    assert rebuild._base(label, tmp_path) == spec


def test_a_base_that_was_a_layout_is_found_by_its_digest(tmp_path):
    folder = layouts.write(tmp_path / "any", layouts.FIT)
    digest = rebuild.oci.read_layout(folder)[0]
    layouts.write(tmp_path / "damaged", layouts.FIT)
    (tmp_path / "damaged" / "index.json").write_text("{")
    assert rebuild._base(f"oci@{digest}", tmp_path) == f"oci:{folder}"
    with pytest.raises(BaseImageError):
        rebuild._base(f"oci@sha256:{'0' * 64}", tmp_path)
