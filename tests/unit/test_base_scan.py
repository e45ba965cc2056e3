"""Hostile tars as layers of a base: refused with a message, whatever tarfile trips over, and never read without end."""

from __future__ import annotations

import io
import tarfile

import pytest

from support import layouts
from verlstack import foreigntar
from verlstack.base import imagescan
from verlstack.errors import BaseImageError


def scanned(tmp_path, *tars):
    tree = imagescan.Tree()
    for number, raw in enumerate(tars):
        path = tmp_path / str(number)
        path.write_bytes(raw)
        imagescan.lay(tree, path, "none")
    return tree


def extended(headers, data=b""):
    """A tar of one file behind a pax header."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as out:
        info = tarfile.TarInfo("x")
        info.pax_headers, info.size = headers, len(data)
        out.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def header(kind, size):
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "raw",
    [
        extended({"GNU.sparse.map": "abc"}),
        extended({"GNU.sparse.map": "0,1", "GNU.sparse.size": "1"}),
        extended({"GNU.sparse.size": "1"}),
        extended({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}, b"abc\n".ljust(512, b"\0")),
        extended({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}, b"1\n0\n1\n".ljust(512, b"\0")),
        header(tarfile.GNUTYPE_SPARSE, 0),
    ],
)
def test_a_sparse_file(tmp_path, raw):
    with pytest.raises(BaseImageError, match="sparse"):
        scanned(tmp_path, raw)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_an_extended_header_is_refused_before_it_is_read(tmp_path, kind):
    with pytest.raises(BaseImageError, match="an extended header of 3221225472 bytes"):
        scanned(tmp_path, header(kind, 3 << 30))


def test_headers_nested_without_end(tmp_path):
    with pytest.raises(BaseImageError):
        scanned(tmp_path, header(tarfile.XHDTYPE, 0) * 5000)


def test_a_stream_without_measure(tmp_path, monkeypatch):
    monkeypatch.setattr(foreigntar, "_MAX_STREAM", 20_000)
    with pytest.raises(BaseImageError, match="unpacks to more than 20000 bytes"):
        scanned(tmp_path, layouts.tarball({"x": bytes(30_000)}))


def test_an_opaque_root_hides_all_layers_below_and_nothing_of_its_own(tmp_path):
    tree = scanned(
        tmp_path,
        layouts.tarball({"usr/bin/gcc": b"", "etc/x": b""}),
        layouts.tarball({".wh..wh..opq": b"", "opt/y": b""}),
    )
    assert tree.is_file("opt/y")
    assert [path for path in ("usr/bin/gcc", "etc/x", "usr", "etc") if tree.real(path)] == []


def test_a_kept_file_is_known_by_all_its_names_and_forgotten_with_the_last(tmp_path):
    """libc.so.6 may be a hard link, and a status that forty layers replace must not count forty times."""
    raw = layouts.tarball({"usr/lib64/libc-2.31.so": b"GNU C Library", "var/lib/dpkg/status": b"Package: a"})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        info = tarfile.TarInfo("usr/lib64/libc.so.6")
        info.type, info.linkname = tarfile.LNKTYPE, "usr/lib64/libc-2.31.so"
        out.addfile(info)
    tree = scanned(tmp_path, raw, buffer.getvalue(), layouts.tarball({"var/lib/dpkg/status": b"Package: b"}))
    assert tree.library("libc.so.6") == b"GNU C Library"
    assert tree.text("var/lib/dpkg/status") == "Package: b"
    assert sorted(filter(None, tree.texts.values())) == [b"GNU C Library", b"Package: b"]


def test_a_hard_link_to_nothing(tmp_path):
    info = tarfile.TarInfo("x")
    info.type, info.linkname = tarfile.LNKTYPE, "y"
    with pytest.raises(BaseImageError, match="hard link to /y, which is no file"):
        scanned(tmp_path, info.tobuf() + bytes(1024))


def test_a_whiteout_of_nothing(tmp_path):
    with pytest.raises(BaseImageError, match="whiteout without a name"):
        scanned(tmp_path, layouts.tarball({"usr/.wh.": b""}))
