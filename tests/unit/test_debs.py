"""The list of the packages' hashes: written from a mirror's indices, and read again even where a stranger wrote it."""

from __future__ import annotations

import dataclasses
import re

import pytest

from support.layouts import STATUS
from verlstack.base import debs, dpkg

GCC, LIBC = dpkg.parse(STATUS)
A, B = "a" * 64, "b" * 64
GCC_FILE = "gcc_4%3a12.2.0-3_amd64.deb"
LIBC_FILE = "libc6_2.36-9_amd64.deb"


def stanza(package, digest=A, **other):
    fields = {"Package": package.name, "Version": package.version, "Architecture": package.architecture,
              "Depends": "x", "SHA256": digest} | other  # fmt: skip
    return "".join(f"{key}: {value}\n" for key, value in fields.items()) + "\n"


def listed(*stanzas, installed=(GCC, LIBC)):
    return debs.listed("".join(stanzas).splitlines(keepends=True), installed)


def test_each_installed_package_has_its_line_sorted():
    assert listed(stanza(LIBC, B), stanza(GCC)) == f"{A}  {GCC_FILE}\n{B}  {LIBC_FILE}\n"


@pytest.mark.parametrize("other", [{"Version": "2.36-10"}, {"Architecture": "i386"}, {"Package": "libc6-dev"}])
def test_of_another_version_architecture_or_name_is_no_hash(other):
    assert listed(stanza(LIBC, B), stanza(LIBC, A, **other)) == f"{B}  {LIBC_FILE}\n"
    assert listed(stanza(LIBC, A, **other)) == ""


def test_two_mirrors_with_one_file_agree_and_with_two_files_leave_it_out():
    assert listed(stanza(LIBC), stanza(LIBC)) == f"{A}  {LIBC_FILE}\n"
    assert listed(stanza(LIBC), stanza(GCC), stanza(LIBC, B)) == f"{A}  {GCC_FILE}\n"


def test_a_package_for_all_architectures_has_its_line():
    tzdata = dataclasses.replace(LIBC, name="tzdata", architecture="all")
    assert listed(stanza(tzdata), installed=(tzdata,)) == f"{A}  tzdata_2.36-9_all.deb\n"
    assert listed(stanza(tzdata, Architecture="amd64"), installed=(tzdata,)) == ""


def test_an_index_may_write_its_hashes_large():
    assert listed(stanza(LIBC, A.upper())) == f"{A}  {LIBC_FILE}\n"


@pytest.mark.parametrize("digest", ["", "x" * 64, "a" * 63])
def test_an_index_without_sha256(digest):
    assert listed(stanza(LIBC, digest)) == ""


def test_the_last_list_may_lack_its_empty_line():
    assert listed(stanza(LIBC).rstrip("\n")) == f"{A}  {LIBC_FILE}\n"


def test_what_is_written_is_read():
    packages, complaints = debs.read(listed(stanza(GCC), stanza(LIBC, B)), (GCC, LIBC))
    assert [x.sha256 for x in packages] == [A, B]
    assert complaints == ()


def test_without_a_list_there_are_no_hashes():
    assert debs.read("", (GCC, LIBC)) == ((GCC, LIBC), ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{A}  {LIBC_FILE}\n{A} {GCC_FILE}\n", "no hash and name of a package in line 2 of /"),
        (f"{A[1:]}  {LIBC_FILE}\n", "in line 1 of"),
        (f"{A.upper()}  {LIBC_FILE}\n", "in line 1 of"),
        (f"{A}  ../../{LIBC_FILE}\n", "in line 1 of"),
        (f"{A}  \x1b[31m.deb\n", "in line 1 of"),
        ("\n", "in line 1 of"),
        (f"{A}  {LIBC_FILE}\n{B}  {LIBC_FILE}\n", f"two hashes of {LIBC_FILE}"),
        (f"{A}  stale_1_all.deb\n{B}  stale_1_all.deb\n", "two hashes of stale_1_all.deb"),
        (f"{A}  {LIBC_FILE}\n" + "\n" * (1 << 20), "has more than 1048576 bytes in /"),
    ],
)
def test_a_list_that_is_wrong_gives_no_hash(text, said):
    packages, complaints = debs.read(text, (GCC, LIBC))
    assert packages == (GCC, LIBC)
    assert len(complaints) == 1
    assert re.search(said, complaints[0])


def test_a_list_of_nothing_but_mistakes_is_not_read_to_its_end():
    _, complaints = debs.read("\n" * (1 << 20), (GCC, LIBC))
    assert len(complaints) == 20


@pytest.mark.parametrize("stale", ["libc6_2.36-10_amd64.deb", "libc6_2.36-9_i386.deb", "gone_1_all.deb"])
def test_a_line_for_what_dpkg_does_not_list_is_stale(stale):
    packages, complaints = debs.read(f"{A}  {stale}\n{B}  {GCC_FILE}\n", (GCC, LIBC))
    assert ([x.sha256 for x in packages], complaints) == ([B, None], ())
