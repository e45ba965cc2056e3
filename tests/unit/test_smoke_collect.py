"""Bringing a report out of an image that is not trusted: plain files of a report, bounded, and never outside."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from verlstack.errors import ProofError
from verlstack.smoke import collect


def tar(*members, chunk=1000):
    """A tar as an engine sends it, in pieces; a member is (name, bytes) or a TarInfo."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    data = out.getvalue()
    return iter([data[i : i + chunk] for i in range(0, len(data), chunk)])


def special(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_the_files_of_a_report_arrive(tmp_path):
    made = collect.from_tar(tar(("r/smoke.json", b"{}" * 900), ("r/ranks-2-logs/x/0/stdout.log", b"hello")), tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in made] == ["smoke.json", "ranks-2-logs/x/0/stdout.log"]
    assert (tmp_path / "smoke.json").read_bytes() == b"{}" * 900


@pytest.mark.parametrize(
    "member",
    [
        ("r/../../evil.json", b"x"),
        ("r/a/../evil.json", b"x"),
        ("/r/.evil.json", b"x"),
        ("r/evil.sh", b"x"),
        ("r/package.json", b"x"),
        ("r/docs/settings.json", b"x"),
        ("r/smoke.xml", b"x"),
        ("r/smoke.json/x.json", b"x"),
        ("r/ranks-1.json.txt", b"x"),
        ("r/ranks-1-logs/.x.json", b"x"),
        ("r/ranks-1-logs/x.sh", b"x"),
        ("r/evil", b"x"),
        ("r/ev il\n.json", b"x"),
        ("r", b"x"),
        special("r/smoke.txt", tarfile.SYMTYPE, "/etc/passwd"),
        special("r/smoke.txt", tarfile.LNKTYPE, "/etc/passwd"),
        special("r/smoke.txt", tarfile.FIFOTYPE),
        special("r/smoke.txt", tarfile.CHRTYPE),
    ],
)
def test_anything_else_is_left_out(tmp_path, member):
    inside = tmp_path / "report"
    made = collect.from_tar(tar(member, ("r/smoke.json", b"{}")), inside)
    assert made == [inside / "smoke.json"]
    assert sorted(tmp_path.rglob("*")) == [inside, inside / "smoke.json"]


def test_a_report_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "_MOST_BYTES", 10)
    with pytest.raises(ProofError, match="more than 10 bytes"):
        collect.from_tar(tar(("r/ranks-1.json", b"12345678"), ("r/ranks-2.json", b"12345678")), tmp_path / "one")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "smoke.json").write_bytes(b"12345678901")
    with pytest.raises(ProofError, match="more than 10 bytes"):
        collect.from_folder(tmp_path / "r", tmp_path / "two")


def test_a_report_has_so_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "_MOST_FILES", 2)
    names = ["ranks-1.json", "ranks-2.json", "ranks-3.json"]
    with pytest.raises(ProofError, match="or 2 files"):
        collect.from_tar(tar(*((f"r/{name}", b"") for name in names)), tmp_path / "one")
    (tmp_path / "r").mkdir()
    for name in names:
        (tmp_path / "r" / name).write_bytes(b"")
    with pytest.raises(ProofError, match="or 2 files"):
        collect.from_folder(tmp_path / "r", tmp_path / "two")


def test_what_is_no_tar_is_an_error_of_ours(tmp_path):
    with pytest.raises(ProofError, match="cannot be read"):
        collect.from_tar(iter([b"no tar" * 400]), tmp_path)


def test_a_folder_is_copied_without_following_links(tmp_path):
    source = tmp_path / "r"
    (source / "ranks-2-logs").mkdir(parents=True)
    (source / "smoke.json").write_bytes(b"{}")
    (source / "ranks-2-logs" / "0.log").write_bytes(b"said")
    (source / "smoke.txt").symlink_to("/etc/passwd")
    os.mkfifo(source / "ranks-1.json")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.json").write_bytes(b"secret")
    (source / "ranks-1-logs").symlink_to(tmp_path / "elsewhere")
    made = collect.from_folder(source, tmp_path / "report")
    assert [p.relative_to(tmp_path / "report").as_posix() for p in made] == ["smoke.json", "ranks-2-logs/0.log"]


def test_a_folder_that_is_a_link_is_no_report(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "smoke.json").write_bytes(b"{}")
    (tmp_path / "r").symlink_to("real")
    assert collect.from_folder(tmp_path / "r", tmp_path / "report") == []
    assert collect.from_folder(tmp_path / "none", tmp_path / "report") == []


def test_a_name_that_is_both_file_and_folder_is_one_of_them(tmp_path):
    made = collect.from_tar(
        tar(("r/node-1/ranks-1.json", b"x"), ("r/node-1/ranks-1.json/y.json", b"x"), ("r/smoke.json", b"{}")), tmp_path
    )
    assert [p.relative_to(tmp_path).as_posix() for p in made] == ["node-1/ranks-1.json", "smoke.json"]
