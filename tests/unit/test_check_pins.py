"""Pins in files: how they are read, what the resolver's answer means, and what is said where the index is silent."""

import json
import os

import pytest
from packaging.version import Version

from support.fake_uv import FakeUv
from verlstack import verltags
from verlstack.cache import Cache
from verlstack.check import asked, finding, pinned, releases, target
from verlstack.check.against import Against
from verlstack.check.answers import Asker
from verlstack.errors import UsageError

STACK = {"torch": "2.3.1", "transformers": "4.41.2", "verl": "0.2.0.post2", "flash-attn": "2.5.9.post1"}
AGAINST = Against(
    name="demo",
    python="3.10",
    platform="x86_64-manylinux_2_35",
    cuda="12.1",
    cxx11_abi=False,
    versions={name: Version(version) for name, version in STACK.items()},
)


def written(tmp_path, text, name="pins.in"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def check(tmp_path, text, uv=None, *, offline=False, now=0.0, name="pins.in"):
    path = written(tmp_path, text, name)
    uv = uv or FakeUv()
    asker = Asker(cache=Cache(tmp_path / "cache"), env={}, offline=offline, run=uv, now=lambda: now)
    read = asked.short(asked.document(path), path)[0] if name.endswith(".toml") else asked.requirements(path)
    return pinned.check(read, AGAINST, asker)


def codes(found):
    return [(one.code, one.severity) for one in found]


def fine(*lines, **how):
    """A resolver that takes every exact pin as it is."""
    rows = [(line.partition("==")[0], line.partition("==")[2], "2024-06-05") for line in lines]
    return FakeUv(answers={frozenset(lines): rows}, **how)


# -- reading


def test_lines_are_read_as_pip_reads_them(tmp_path):
    written(tmp_path, "numpy==1.26.4\n", "more.txt")
    text = (
        "\ufeff# a comment\n"
        "Ray[default]==2.60.0 ; python_version >= '3.8'  # why\n"
        "six==1.17.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "-r more.txt\n--index-url https://index.invalid/simple\n"
    )
    read = asked.requirements(written(tmp_path, text))
    assert [(line.name, line.where.rpartition("/")[2]) for line in read.lines] == [
        ("ray", "pins.in:2"),
        ("six", "pins.in:3"),
        ("numpy", "more.txt:1"),
    ]
    assert read.exact == {"ray": Version("2.60.0"), "six": Version("1.17.0"), "numpy": Version("1.26.4")}
    assert read.findings == []


def test_a_file_that_includes_itself_is_read_once(tmp_path):
    read = asked.requirements(written(tmp_path, "-r pins.in\nsix==1\n"))
    assert [line.name for line in read.lines] == ["six"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("this is bad", "PINS-INVALID"),
        ("torch=2.3.1", "PINS-INVALID"),
        ("torch==", "PINS-INVALID"),
        ("-r nowhere.txt", "PINS-INVALID"),
        ("./wheels/x.whl", "PINS-INVALID"),
        ("x @ https://files.invalid/x-1-py3-none-any.whl", "PINS-ADDRESS"),
        ("-e .", "PINS-ADDRESS"),
        ("--extra-index-url https://user:secret@index.invalid/simple", "INDEX-EXTRA"),
        ("--extra-index-url=https://index.invalid/simple", "INDEX-EXTRA"),
        ("--index other=https://index.invalid/simple", "INDEX-EXTRA"),
        ("verl @ git+https://git.invalid/verl-project/verl@main", "PINS-ADDRESS"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, code):
    found = asked.requirements(written(tmp_path, f"# first\n{line}\n")).findings
    assert [(one.code, one.where.rpartition(":")[2]) for one in found] == [(code, "2")]
    assert "secret" not in repr(found)


@pytest.mark.parametrize("line", ["--index-url https://index.invalid/simple", "--pre", "--no-binary :none:"])
def test_what_is_no_fault(tmp_path, line):
    assert asked.requirements(written(tmp_path, line)).findings == []


def test_verl_by_commit_is_fixed(tmp_path):
    read = asked.requirements(written(tmp_path, f"verl @ git+https://git.invalid/verl-project/verl@{'a' * 40}"))
    assert (read.findings, read.verl_tag) == ([], None)


def test_a_table_takes_pins_as_stacks_toml_writes_them_and_short_ones(tmp_path):
    text = (
        '[stack.demo]\npython = "3.10"\nverl = { tag = "v0.2.0.post2" }\ntorch = "2.3.1"\n'
        'peft = { bound = "<0.14", why = "x" }\nbad = 3\n'
    )
    path = written(tmp_path, text, "x.toml")
    (read,) = asked.short(asked.document(path), path)
    assert [str(line.requirement) for line in read.lines] == ["torch==2.3.1", "peft<0.14"]
    assert read.verl_tag[0] == "v0.2.0.post2"
    assert [one.subject for one in read.findings] == ["'bad = 3'"]


# -- what kind of thing it is


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("Dockerfile", "FROM x\n", "dockerfile"),
        ("Dockerfile.gpu", "# none\n", "dockerfile"),
        ("train.Dockerfile", "", "dockerfile"),
        ("Containerfile", "", "dockerfile"),
        ("build", "# syntax=x\nARG A=1\n\nFROM x\n", "dockerfile"),
        ("requirements.txt", "six\n", "pins"),
        ("pins.in", "", "pins"),
        ("names.txt", "# two\na-1-py3-none-any.whl\nb-1-py3-none-any.whl\n", "wheels"),
        ("mixed.txt", "six\nb-1-py3-none-any.whl\n", "pins"),
        ("short.toml", '[stack.x]\nverl = "v0.2"\n', "pins"),
        ("stacks.toml", "[image]\n[stack.x]\n", "stacks"),
        ("a-1-py3-none-any.whl", "", "wheel"),
    ],
)
def test_a_files_kind_is_found(tmp_path, name, text, kind):
    assert target.kind(str(written(tmp_path, text, name))) == kind


def test_a_wheel_need_not_be_there_and_a_word_is_a_stack():
    assert target.kind("a-1-py3-none-any.whl") == "wheel"
    assert target.kind("cu121") == "stack"


@pytest.mark.parametrize(
    ("name", "text"),
    [("x.toml", "a = 1\n"), ("x.toml", "[stack\n"), ("notes.md", "# hello\nworld\n"), ("cu121.lock.toml", "")],
)
def test_what_is_of_no_kind(tmp_path, name, text):
    with pytest.raises(UsageError) as caught:
        target.kind(str(written(tmp_path, text, name)))
    assert caught.value.todo


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.toml", f"[stack.x]\na = {'[' * 100_000}", "nested too deep"),
        ("x.in", "#" * ((1 << 23) + 1), "too long"),
    ],
)
def test_more_than_anybody_writes(tmp_path, name, text, says):
    with pytest.raises(UsageError, match=says):
        target.kind(str(written(tmp_path, text, name)))


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "pins.in"
    path.write_bytes(b"caf\xe9==1\n")
    with pytest.raises(UsageError, match="UTF-8"):
        target.kind(str(path))


def test_a_wheels_address_is_its_name_but_a_path_is_a_path(tmp_path):
    assert target.kind("https://files.invalid/a-1-py3-none-any.whl") == "wheel"
    with pytest.raises(UsageError, match="no such file"):
        target.kind(str(tmp_path / "a-1-py3-none-any.whl"))


@pytest.mark.parametrize("name", ["pins.in", "a-1-py3-none-any.whl", "Dockerfile"])
def test_what_is_no_plain_file_is_not_opened(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match="no plain file"):
        target.kind(str(tmp_path / name))
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match="folder"):
        target.kind(str(tmp_path / name))


@pytest.mark.parametrize("name", ["nowhere/pins.in", "nowhere.txt", "Dockerfile.none", "none.toml", "."])
def test_what_is_not_there(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        target.kind(name)


# -- what the resolver says


def test_a_conflict_names_both_sides_and_the_last_of_their_lines(tmp_path):
    words = "warning: no Python 3.10\nerror: No solution\n  cause: Because b==2 depends on a<1 and you require a==1"
    found = check(tmp_path, "a==1\nb==2\nc==3\n", FakeUv(conflicts={frozenset({"a==1", "b==2", "c==3"}): words}))
    (one,) = found
    assert (one.code, one.severity, one.subject) == ("PINS-CONFLICT", "fail", "a, b")
    assert one.where.endswith(":2")
    assert "depends on a<1 and you require a==1" in one.measured
    assert "warning" not in one.measured


def test_a_name_inside_another_is_not_a_side(tmp_path):
    words = "error: Because ray-extra==1 depends on six<1"
    lines = frozenset({"ray==2", "ray-extra==1", "six==1"})
    (one,) = check(tmp_path, "ray==2\nray-extra==1\nsix==1\n", FakeUv(conflicts={lines: words}))
    assert one.subject == "ray-extra, six"


def test_yanked_and_source_only(tmp_path):
    key = frozenset({"click==8.2.2", "antlr==4.9"})
    uv = fine("click==8.2.2", "antlr==4.9", sdists=frozenset({"antlr"}))
    uv.warnings[key] = 'warning: `click==8.2.2` is yanked (reason: "Unintended change")'
    yanked, sdist = check(tmp_path, "click==8.2.2\nantlr==4.9\n", uv)
    assert (yanked.code, yanked.severity, yanked.measured) == ("PINS-YANKED", "fail", "yanked: Unintended change")
    assert yanked.where.endswith(":1")
    assert (sdist.code, sdist.severity, sdist.subject) == ("PINS-SDIST", "warn", "antlr 4.9")


ANCHOR = ("torch", "2.3.1", "2024-06-05")


@pytest.mark.parametrize(
    ("bound", "chosen", "alone", "severity"),
    [
        ("<=0.6.3", ("0.2.2", "2023-11-19"), ("0.6.3", "2024-10-14"), "fail"),  # far below its own bound
        ("", ("0.1.0", "2023-01-01"), ("9.0", "2026-10-14"), "fail"),  # far older than its neighbours
        ("", ("0.4.0", "2024-04-20"), ("0.14.0", "2026-10-14"), None),  # of the neighbours' time
        ("<=0.6.3", ("0.6.2", "2024-09-01"), ("0.6.3", "2024-10-14"), None),  # a little older
        ("<=0.6.3", ("0.6.3", "2020-10-14"), ("0.6.3", "2020-10-14"), None),  # the newest there is
        ("<=0.6.3", ("0.2.2", ""), ("0.6.3", ""), "warn"),  # an index that tells no dates
        ("", ("0.2.2", ""), ("0.6.3", ""), None),
    ],
)
def test_backtracking(tmp_path, bound, chosen, alone, severity):
    line = f"tool{bound}"
    uv = FakeUv(
        answers={
            frozenset({"torch==2.3.1", line}): [ANCHOR, ("tool", *chosen)],
            frozenset({line}): [("tool", *alone)],
        }
    )
    found = check(tmp_path, f"torch==2.3.1\n{line}\n", uv)
    assert codes(found) == ([("PINS-BACKTRACK", severity)] if severity else [])
    if severity:
        assert chosen[0] in found[0].measured
        assert alone[0] in found[0].right


def test_what_only_exists_as_source_that_wants_torch_is_not_asked_for(tmp_path):
    uv = FakeUv()
    found = check(tmp_path, "flash-attn==2.7.4.post1\n", uv)
    assert uv.asked == []
    assert {one.code for one in found} == {"RELEASE-PAIR"}  # beside the stack's transformers and verl
    assert all("unpad_input" in one.measured for one in found)


def test_a_local_version_is_asked_for_without_it(tmp_path):
    uv = fine("torch==2.3.1")
    assert check(tmp_path, "torch==2.3.1+cu121\n", uv) == []
    assert uv.asked == [("torch==2.3.1",)]


@pytest.mark.parametrize("local", ["cu118", "cpu", "rocm6.0"])
def test_torch_of_another_cuda(tmp_path, local):
    found = check(tmp_path, f"torch==2.3.1+{local}\n", fine("torch==2.3.1"))
    assert codes(found) == [("TORCH-CUDA", "fail")]


def test_a_table_may_name_its_python_and_its_cuda(tmp_path):
    uv = fine("torch==2.3.1")
    found = check(tmp_path, '[stack.demo]\ntorch = "2.3.1"\ncuda = "11.8"\npython = "3.12"\n', uv, name="x.toml")
    assert codes(found) == [("TORCH-CUDA", "fail")]
    (command,) = uv.commands
    assert command[command.index("--python-version") + 1] == "3.12"
    same = check(tmp_path, '[stack.demo]\ntorch = "2.3.1"\ncuda = "12.1"\n', fine("torch==2.3.1"), name="x.toml")
    assert same == []
    wrong = check(tmp_path, '[stack.demo]\npython = "three"\n', name="x.toml")
    assert codes(wrong) == [("PINS-INVALID", "fail")]


def test_a_release_of_verl_that_no_tag_has(tmp_path):
    words = "error: Because there is no version of verl==0.2.3"
    found = check(tmp_path, "verl==0.2.3\n", FakeUv(conflicts={frozenset({"verl==0.2.3"}): words}))
    assert {"PINS-CONFLICT", "VERL-TAG"} <= {one.code for one in found}


def test_the_stacks_limits_are_told_only_where_verl_is_named(tmp_path):
    lines = ("torch==2.3.1", "transformers==4.41.2")
    assert check(tmp_path, "\n".join(lines), fine(*lines)) == []
    text = "[stack.demo]\n" + "\n".join(f'{n} = "{v}"' for n, v in STACK.items() if n != "flash-attn")
    found = check(tmp_path, text.replace('"0.2.0', '"v0.2.0'), fine(*lines), name="x.toml")
    assert {one.code for one in found} == {"RELEASE-LIMIT"}
    assert {one.severity for one in found} == {"warn"}


def test_pins_of_another_torch_are_not_held_against_this_stack(tmp_path):
    uv = fine("torch==2.11.0")
    assert check(tmp_path, "torch==2.11.0\nflash-attn==2.8.3\n", uv) == []


def test_what_a_resolver_adds_is_told_where_it_breaks_and_only_there(tmp_path):
    rows = [ANCHOR, ("vllm", "0.2.2", "2023-11-19"), ("nvidia-nvjitlink-cu12", "12.9.86", "2025-01-01")]
    found = check(tmp_path, "torch==2.3.1\n", FakeUv(answers={frozenset({"torch==2.3.1"}): rows}))
    assert codes(found) == [("RELEASE-OLD", "fail")]  # nothing of nvjitlink, of which a warning is known


def test_uv_is_asked_loudly_and_for_one_line_alone_where_that_is_the_question(tmp_path):
    uv = FakeUv(
        answers={frozenset({"a", "b==1"}): [("a", "1", ""), ("b", "1", "")], frozenset({"a"}): [("a", "1", "")]}
    )
    check(tmp_path, "a\nb==1\n", uv)
    deep, alone = uv.commands
    assert "--no-deps" not in deep
    assert "--no-deps" in alone
    assert "--quiet" not in deep  # or uv does not tell of yanked releases


def test_what_a_marker_keeps_out_is_not_installed(tmp_path):
    text = "torch==2.3.1\nvllm==0.6.3; python_version < '3.9'\npeft==0.21.2; sys_platform == 'win32'\n"
    uv = fine("torch==2.3.1")
    assert check(tmp_path, text, uv) == []
    assert uv.asked == [("torch==2.3.1",)]
    held = check(tmp_path, "flash-attn==2.8.3; python_version >= '3.9'\n", FakeUv())
    assert ("RELEASE-PAIR", "fail") in codes(held)


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("flash-attn", "2.8.3"),
        ("flash_attn>=2.7", "2.8.3"),
        ("flash-attn>=2.5,<2.8", "2.7.4"),
        ("flash-attn<2.7", None),
    ],
)
def test_an_open_bound_takes_the_newest_release_of_what_no_resolver_is_asked_for(tmp_path, line, taken):
    found = check(tmp_path, f"{line}\n")
    assert {one.code for one in found} == ({"RELEASE-PAIR"} if taken else set())
    assert all(one.subject.startswith(f"flash-attn {taken}") for one in found)


# -- the index


@pytest.mark.parametrize("option", ["-i ", "--index-url ", "--index-url=", "--default-index "])
@pytest.mark.parametrize(("build", "fails"), [("cu118", True), ("cpu", True), ("rocm6.1", True), ("cu121", False)])
def test_an_index_of_another_cuda(tmp_path, option, build, fails):
    found = check(
        tmp_path, f"{option}https://user:secret@torch.invalid/whl/{build}\ntorch==2.3.1\n", fine("torch==2.3.1")
    )
    assert codes(found) == ([("INDEX-CUDA", "fail")] if fails else [])
    assert "secret" not in repr(found)


def test_an_index_that_does_not_answer_is_not_known_and_no_pass(tmp_path):
    words = "error: error sending request for url"
    found = check(tmp_path, "peft==0.21.2\n", FakeUv(conflicts={frozenset({"peft==0.21.2"}): words}))
    assert codes(found) == [("INDEX-UNASKED", "unknown"), ("RELEASE-PAIR", "fail")]
    assert not (tmp_path / "cache" / "answers").exists()  # nothing was learned


def test_offline_nobody_is_asked_and_kept_answers_of_any_age_count(tmp_path):
    assert codes(check(tmp_path, "six==1\n", offline=True)) == [("INDEX-UNASKED", "unknown")]
    assert check(tmp_path, "six==1\n", fine("six==1"), now=0.0) == []
    assert check(tmp_path, "six==1\n", offline=True, now=1e9) == []


def test_a_kept_answer_holds_for_a_day(tmp_path):
    for now, questions in ((0.0, 1), (86_000.0, 0), (87_000.0, 1)):
        uv = fine("six==1")
        check(tmp_path, "six==1\n", uv, now=now)
        assert len(uv.asked) == questions, now


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"at": 0}', '{"at": 0, "answer": {"x": 1}}', '{"at": 0, "answer": 3}']
)
def test_a_damaged_answer_is_asked_for_again(tmp_path, text):
    check(tmp_path, "six==1\n", fine("six==1"))
    (note,) = (tmp_path / "cache" / "answers").iterdir()
    assert json.loads(note.read_bytes())["answer"]["versions"] == {"six": "1"}
    note.write_text(text)
    uv = fine("six==1")
    assert check(tmp_path, "six==1\n", uv) == []
    assert len(uv.asked) == 1


# -- verl's tags


@pytest.mark.parametrize("tag", verltags.known())
def test_every_tag_that_exists_is_known(tag):
    version, wrong = releases.verl(tag, "")
    assert (version, wrong) == (Version(tag), [])


@pytest.mark.parametrize(
    ("tag", "near"), [("v0.2.3", "v0.2.0.post2 and v0.3.0.rc0"), ("main", "v0.9.0"), ("v99", "v0.9")]
)
def test_a_tag_that_does_not_exist_is_answered_with_the_nearest(tag, near):
    (one,) = releases.verl(tag, "x:1")[1]
    assert (one.code, one.where) == ("VERL-TAG", "x:1")
    assert near in one.right


def test_a_release_number_is_taken_for_its_tag():
    assert releases.verl("0.2.0.post2", "") == (Version("0.2.0.post2"), [])


# -- the verdict


@pytest.mark.parametrize(
    ("severities", "code"), [([], 0), (["warn"], 0), (["unknown", "warn"], 2), (["warn", "unknown", "fail"], 1)]
)
def test_exit_codes(severities, code):
    shared = {"code": "X", "subject": "", "measured": "", "right": "", "why": "", "source": "", "fix": ""}
    found = [finding.Finding(severity=word, **shared) for word in severities]
    report = finding.Report(target="x", kind="pins", stack="demo", findings=finding.ordered([*found, *found]))
    assert report.exit_code == code
    assert [one.severity for one in report.findings] == sorted(set(severities), key=finding.SEVERITIES.index)


def test_an_empty_file_has_no_faults(tmp_path):
    assert check(tmp_path, "") == []
