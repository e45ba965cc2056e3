"""The report of the smoke tests: the page, the plot, the XML and the text, from made-up documents."""

import dataclasses
import html.parser
import json
import re
import types
import xml.etree.ElementTree as ET

import pytest

from support.smoke_report import dead, memory, result, run

# The import above makes those below possible.
# isort: split
from launch import Member
from smoke import documents, page, plot, report
from smoke.doctor import Finding
from smoke.junit import junit
from smoke.markup import fit

HOSTILE = "</script></style><img src=x onerror=alert(1)>\"'&\x00\x08\x1b[31mred\x1b[0m\x9b\ud800\u202e\ufffe"
IMAGE = "cu121-sdpa@sha256:" + "0a" * 32
ALONE = Member(node=0, host="a", gpus=0)


class Elements(html.parser.HTMLParser):
    """Names and attributes of a page's elements; refuses one that is not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.names, self.attributes, self.open = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "wbr"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def whole(*runs, image=IMAGE, members=(ALONE,)):
    return report.whole(members, runs, image=image)


def finding(code="ENV-PIN", severity="fail", message="numpy is 2.0; the stack is proved with 1.26.4", fix="go back"):
    words = {"subject": "numpy", "measured": "2.0", "right": "1.26.4"}
    return Finding(code=code, severity=severity, message=message, fix=fix, **words)


def members(*findings, hosts=("a",)):
    return [Member(node=number, host=host, gpus=0, findings=findings) for number, host in enumerate(hosts)]


def badges(text):
    return re.findall(r'<span class="badge ([a-z-]+)">([^<]*)</span>', text)


# -- the verdict


def test_the_first_words_are_the_headline():
    everything = whole(run(1), run(2))
    said = "CPU, ranks 1, 2: passed; this says nothing about GPUs"
    assert everything["headline"] == said
    assert page.page(everything).split("<body>")[1].startswith(f"<h1>{said}</h1>")
    assert report.summary(everything).splitlines()[0] == said


def test_a_selection_of_the_tests_reads_as_one():
    everything = whole(run(1), run(2, selected=True))
    assert everything["headline"] == "CPU, ranks 1, 2: passed, a selection of the tests; this says nothing about GPUs"
    on_gpus = whole(run(2, device="cuda", selected=True))
    assert on_gpus["headline"] == "GPU, ranks 2: passed, a selection of the tests"


@pytest.mark.parametrize(
    ("results", "ranks", "caution"),
    [
        ([result(figures={"patches": ["flash_attn"]})], 2, "verl was patched"),
        ([result(), result(outcome="not run", reason=documents.NO_VERL)], 2, "without verl"),
        ([result()], 1, "one rank shards nothing"),
    ],
)
def test_a_gpu_run_that_cannot_have_proved_all_says_so_and_is_no_gpu_pass(results, ranks, caution):
    everything = whole(run(ranks, results, device="cuda"))
    assert everything["headline"] == f"GPU, ranks {ranks}: passed; {caution}"
    assert everything["ok"] is True
    assert everything["gpu_pass"] is False
    assert badges(page.page(everything))[0][0] == "part"


def test_patches_on_the_cpu_are_usual():
    everything = whole(run(2, [result(figures={"patches": ["flash_attn"]})]))
    assert everything["headline"] == "CPU, ranks 2: passed; this says nothing about GPUs"


def test_the_headline_is_escaped():
    text = page.page({**whole(run()), "headline": "<b>GPU & all</b>"})
    assert "<h1>&lt;b&gt;GPU &amp; all&lt;/b&gt;</h1>" in text
    assert "<b>" not in text


@pytest.mark.parametrize(
    ("runs", "state"),
    [
        ([run(1), run(2)], "cpu-pass"),
        ([run(1, device="cuda"), run(2)], "mixed"),
        ([run(1, device="cuda"), run(2, device="cuda")], "gpu-pass"),
        ([run(1, device="cuda"), run(2, device="cuda", ok=False)], "failed"),
        ([run(1, device="cuda"), dead()], "failed"),
        ([run(1, device="cuda"), run(2, device="cuda", selected=True)], "part"),
        ([], "failed"),
    ],
    ids=["cpu", "mixed", "gpu", "gpu failed", "gpu and dead", "a part on gpu", "nothing"],
)
def test_only_a_gpu_pass_looks_and_reads_like_one(runs, state):
    everything = whole(*runs)
    [(found, words)] = badges(page.page(everything))
    assert found == state
    assert (words == "passed on GPUs") == (state == "gpu-pass")
    on_gpus_alone = {x["device"] for x in runs} == {"cuda"}
    assert ("says nothing about GPUs" in everything["headline"]) == (not on_gpus_alone)
    assert everything["gpu_pass"] == (state == "gpu-pass")
    assert everything["ok"] == (state != "failed")


def test_the_gpu_badge_alone_is_filled_with_green():
    style = page.page(whole(run())).split("<style>")[1].split("</style>")[0]
    filled = re.findall(r"^\.([a-z-]+) \{[^}]*background: var\(--good\)", style, re.MULTILINE)
    assert filled == ["gpu-pass"]


# -- what comes from tests or the environment


def hostile_run():
    results = [
        result(f"a.py::{HOSTILE}", "failed", reason=HOSTILE, last_lines=[HOSTILE]),
        result("d.py::test", figures={HOSTILE: {HOSTILE: HOSTILE}}),
        result("b.py::test", "not run", reason=HOSTILE),
        result("c.py::test", figures={"patches": [HOSTILE]}),
        memory(HOSTILE, 1),
    ]
    made = run(1, results, ok=False)
    made["versions"] = {HOSTILE: HOSTILE}
    made["nodes"] = [{"host": HOSTILE}, {"host": "b"}]
    made["headline"] = HOSTILE
    return made


def test_a_page_of_hostile_text_has_no_other_elements_than_a_harmless_one():
    text = page.page(whole(hostile_run(), dead(2, **{HOSTILE: [HOSTILE]}), image=HOSTILE))
    seen = Elements(text)
    assert {"script", "img", "b", "link", "iframe"}.isdisjoint(seen.names)
    assert not [name for name, _ in seen.attributes if name.startswith("on") or name in {"src", "href", "style"}]
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    text.encode("utf-8")
    assert fit(text, limit=len(text)) == text
    assert "&amp;\ufffd\ufffdred\ufffd\ufffd\ufffd\ufffd</pre>" in text  # neither the colour nor its digits


def test_the_page_asks_for_nothing_from_outside():
    text = page.page(whole(run(1), dead()))
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert not re.search(r"https?:|url\(|@import|src=|href=", text)


def test_xml_of_hostile_text_parses_and_keeps_what_is_legal():
    root = ET.fromstring(junit(whole(hostile_run(), dead(2, **{HOSTILE: [HOSTILE]}), image=HOSTILE)))  # noqa: S314
    failure = root.find(".//failure")
    assert failure.get("message").startswith("</script></style><img src=x onerror=alert(1)>\"'&\ufffd\ufffdred\ufffd")
    assert "\x1b" not in "".join(root.itertext())


def test_a_terminal_gets_no_control_characters():
    said = report.summary(whole(hostile_run(), dead(2, **{HOSTILE: [HOSTILE]}), image=HOSTILE))
    assert not set(said) & set("\x00\x08\x1b\x9b\u202e")
    assert not set(report.text(hostile_run())) & set("\x00\x08\x1b\x9b\u202e")


def test_a_message_of_a_megabyte_is_cut_and_says_so():
    long = "A" * 500_000 + "\n" + "B" * 500_000
    everything = whole(run(1, [result("a.py::test", "failed", reason=long, last_lines=[long] * 50)], ok=False))
    for made in (page.page(everything), junit(everything).decode(), report.summary(everything)):
        assert len(made) < 40_000
        assert "cut; 1000001 characters in all" in made


# -- what is there and what is not


def test_no_run_at_all_is_no_pass():
    everything = whole()
    assert not everything["ok"]
    Elements(page.page(everything))
    assert ET.fromstring(junit(everything)).get("tests") == "0"  # noqa: S314
    assert report.summary(everything).startswith("incomplete or mixed, ranks none: FAILED")


def test_a_run_without_results_has_every_section():
    text = page.page(whole(run(1, [], ok=False), image=""))
    Elements(text)
    assert "No test of memory left figures" in text
    assert "<td>image</td><td><code>not known</code></td>" in text
    assert "Nothing that was asked for was left out." in text
    assert "No test of verl&#x27;s own training ran." in text


def test_a_run_without_report_is_first_among_the_failures_with_what_its_ranks_wrote():
    everything = whole(run(1), dead(2, **{"rank 1, stderr": ["Killed & gone"]}))
    text = page.page(everything)
    assert text.index("Failures (1)") < text.index("<h2>Runs</h2>")
    assert "no report from 2 ranks: ended with status 1" in text
    assert "rank 1, stderr: Killed &amp; gone" in text
    assert "rank 1, stderr: Killed & gone" in report.summary(everything)
    suites = ET.fromstring(junit(everything))  # noqa: S314
    assert [(suite.get("errors"), suite.get("tests")) for suite in suites] == [("0", "2"), ("1", "1")]
    assert "Killed & gone" in suites[1].find("testcase/error").text


def test_of_many_ranks_the_first_to_end_is_shown():
    lost = dead(64, **{f"rank {rank}, stderr": [f"line {number}" for number in range(12)] for rank in (7, *range(7))})
    for made in (page.page(whole(lost)), junit(whole(lost)).decode(), report.summary(whole(lost))):
        assert "rank 7, stderr: line 0" in made
        assert "… and 56 lines of other ranks" in made
        assert "rank 6, stderr" not in made


def test_a_rank_that_died_after_a_failed_test_is_told_beside_it():
    broken = {**run(2, [result("a.py::t", "failed", reason="no")], ok=False), "last_lines": {"rank 1": ["gone"]}}
    assert "Failures (2)" in page.page(whole(broken))
    assert "CPU, gloo, FAILED as a whole" in page.page(whole(broken))
    assert "CPU, gloo, FAILED as a whole" in report.summary(whole(broken))
    [suite] = ET.fromstring(junit(whole(broken)))  # noqa: S314
    assert (suite.get("errors"), suite.get("failures"), suite.get("tests")) == ("1", "1", "2")


def test_a_failed_test_has_its_reason_and_last_lines():
    one = result("a.py::test_sum", "failed", reason="assert 1 == 2\nmore", last_lines=["E  assert 1 == 2", "a.py:7"])
    everything = whole(run(1, [one], ok=False))
    assert "<pre>assert 1 == 2\nmore</pre>" in page.page(everything)
    assert "<pre>E  assert 1 == 2\na.py:7</pre>" in page.page(everything)
    assert "FAILED on 1 rank: a.py::test_sum\n  assert 1 == 2\n" in report.summary(everything)


def test_what_was_not_run_is_told_by_reason_and_apart_from_what_ran_on_other_ranks():
    two = "needs 2 ranks, this run has 1"
    first = run(1, [result("a.py::t", "not run", reason=two), result("b.py::t", "not run", reason="needs a GPU")])
    second = run(2, [result("a.py::t"), result("b.py::t", "not run", reason="needs a GPU")])
    text = page.page(whole(first, second)).split("<h2>Not run</h2>")[1]
    never, sometimes = text.split("Left out on some numbers of ranks")
    assert "needs a GPU (1 test)" in never
    assert "<td>1, 2</td>" in never
    assert f"{two} (1 test)" in sometimes


def test_versions_that_differ_between_runs_are_all_shown():
    other = run(2)
    other["versions"] = {**other["versions"], "torch": "2.4.0"}
    text = page.page(whole(run(1), other))
    assert "<code>2.3.1; 2.4.0</code>" in text
    assert "<td>flash-attn</td><td><code>not installed</code></td>" in text


def test_the_end_of_the_last_run_is_told():
    text = page.page(whole(run(1), {**run(2), "ended": "2025-01-02T04:00:00Z"}, dead(4)))
    assert "<td>ended</td><td><code>2025-01-02T04:00:00Z</code></td>" in text


def test_patches_are_listed_once_and_not_among_the_figures():
    first = result("t.py::a", figures={"patches": ["gloo for nccl"], "loss": 0.5})
    second = result("t.py::b", figures={"patches": []})
    text = page.page(whole(run(1, [first, second]), run(2, [first, second])))
    assert text.count("gloo for nccl") == 1
    figures = text.split("<h2>Figures</h2>")[1]
    assert figures.count("<li>loss: 0.5</li>") == 2
    assert "patches" not in figures
    assert "b</span>" not in figures
    assert "verl ran as it is" in page.page(whole(run(1, [second])))


def test_the_slowest_tests_come_in_order_and_those_not_run_do_not():
    results = [result(f"a.py::t{n}", seconds=n / 10) for n in range(20)]
    skipped = result("a.py::skipped", "not run", seconds=99.0)
    text = page.page(whole(run(1, [*results, skipped]))).split("<h2>Slowest tests</h2>")[1].split("<h2>")[0]
    assert re.findall(r">([\d.]+)</td><td class=\"number\">1</td>", text) == [f"{n / 10:.1f}" for n in range(19, 9, -1)]


# -- the plot


def test_marks_lie_where_the_figures_say():
    runs = [run(1), run(2), run(4)]
    drawn = plot.panels(runs)
    assert [(panel.strategy, len(panel.points)) for panel in drawn] == [("FULL_SHARD", 12), ("NO_SHARD", 12)]
    scale = plot.scale_of(drawn)
    # from 4 * 64 KiB on one rank down to 64 KiB / 4 on four: 2^18 to 2^14
    assert (scale.ranks, scale.low, scale.high) == ((1, 2, 4), 14, 18)
    # two ranks are the middle of the axis; 2^15 bytes a quarter of the height above its foot
    assert scale.x(2) == (plot.LEFT + plot.RIGHT) / 2
    assert scale.y(2**15) == plot.BOTTOM - (plot.BOTTOM - plot.TOP) / 4
    x, y = scale.x(2), scale.y(2**15)
    assert f'd="M{x - 7} {y}a7' in plot.draw(drawn[0], scale)
    assert "wrap, 2 ranks: 32,768 bytes" in plot.draw(drawn[0], scale)


def test_the_ideal_line_begins_at_the_fewest_ranks():
    [full, flat] = plot.panels([run(2), run(4)])
    assert plot.ideal(full.of("wrap")) == [(2, 32768.0), (4, 16384.0)]
    assert plot.ideal(flat.of("wrap")) == [(2, 65536.0), (4, 32768.0)]


def test_a_single_number_of_ranks_lies_in_the_middle():
    drawn = plot.panels([run(1, [memory("FULL_SHARD", 1)])])
    assert plot.scale_of(drawn).x(1) == (plot.LEFT + plot.RIGHT) / 2
    assert "polyline" in plot.draw(drawn[0], plot.scale_of(drawn))


def test_bounds_are_drawn_where_the_test_gives_them():
    some = memory("FULL_SHARD", 1, **{plot.BOUNDS: {"wrap": [32768, 131072]}})
    text = page.page(whole(run(1, [some])))
    assert "least and most that the test allows" in text
    [panel] = plot.panels([run(1, [some])])
    scale = plot.scale_of([panel])
    assert f"V{scale.y(131072)}" in plot.draw(panel, scale)
    assert "least and most" not in page.page(whole(run(1)))


def test_a_figure_that_the_test_did_not_accept_is_marked():
    text = page.page(whole(run(1), run(2, [memory("FULL_SHARD", 2, shards=65536, outcome="failed")], ok=False)))
    assert "not what the test demands on 2 ranks" in text
    assert text.count('class="mark wrong"') == 4
    assert "wrap, 2 ranks: 65,536 bytes; the test FAILED" in text


def test_senseless_figures_are_left_out_of_the_plot():
    broken = memory("FULL_SHARD", 1)
    broken["figures"]["bytes per rank by phase"] = {"wrap": 0, "forward": float("inf"), "backward": "x", "step": 8}
    [panel] = plot.panels([run(1, [broken])])
    assert [point.phase for point in panel.points] == ["step"]
    Elements(page.page(whole(run(1, [broken]))))


def test_memory_of_a_gpu_has_a_plot_of_its_own():
    gpu = run(1, [memory("FULL_SHARD", 1, figure="allocated bytes per rank by phase")], device="cuda")
    assert "allocated by torch on the GPU" in page.page(whole(gpu))
    assert "no memory of a GPU was measured" not in page.page(whole(gpu))
    assert "no memory of a GPU was measured" in page.page(whole(run(1)))


@pytest.mark.parametrize(
    ("size", "said"), [(0, "0 B"), (1023, "1023 B"), (65536, "64 KiB"), (3 << 29, "1.5 GiB"), (1 << 51, "2048 TiB")]
)
def test_bytes_are_told_in_binary_units(size, said):
    assert plot.human(size) == said


# -- XML


def test_a_suite_for_each_number_of_ranks_with_cases_and_properties():
    results = [
        result("sharded/test_memory.py::test_bytes[NO_SHARD]", seconds=1.25),
        result("a.py::t", "failed", reason="no\nmore"),
        result("b.py::t", "not run", reason="needs a GPU"),
    ]
    several = {**run(2, results, ok=False), "nodes": [{"host": "n1"}, {"host": "n2"}]}
    everything = whole(run(1), several)
    root = ET.fromstring(junit(everything))  # noqa: S314
    assert (root.tag, root.get("tests"), root.get("failures"), root.get("errors")) == ("testsuites", "5", "1", "0")
    suite = root[1]
    counts = ("tests", "failures", "errors", "skipped")
    assert [suite.get(name) for name in counts] == ["3", "1", "0", "1"]
    assert [suite.get(name) for name in ("name", "hostname", "time")] == ["2 ranks", "n1, n2", "12.300"]
    properties = {p.get("name"): p.get("value") for p in suite.findall("properties/property")}
    assert properties["headline"] == everything["headline"]
    assert properties["image"] == IMAGE
    assert properties["flash-attn"] == "not installed"
    case, failed, skipped = suite.findall("testcase")
    assert case.attrib == {
        "classname": "ranks-2.sharded.test_memory",
        "name": "test_bytes[NO_SHARD]",
        "time": "1.250",
    }
    assert failed.find("failure").get("message") == "no"
    assert skipped.find("skipped").get("message") == "needs a GPU"


def test_no_suite_is_green_when_its_run_failed():
    [suite] = ET.fromstring(junit(whole(run(1, [], ok=False))))  # noqa: S314
    assert suite.get("errors") == "1"


# -- what verldoctor found


def test_what_verldoctor_found_is_in_every_form_and_breaks_no_pass():
    found = (finding("HOST-SHM"), finding("ENV-FLASH-LEFT-OUT", "warn", "this image was made without flash-attn"))
    everything = whole(run(1), run(2), members=members(*found))
    assert everything["ok"] is True
    (node,) = everything["doctor"]
    assert (node["node"], node["host"]) == (0, "a")
    assert [(f["code"], f["stops"]) for f in node["findings"]] == [("HOST-SHM", False), ("ENV-FLASH-LEFT-OUT", False)]
    assert "\nverldoctor: 1 fail (HOST-SHM), 1 warn (ENV-FLASH-LEFT-OUT)\n" in report.summary(everything)
    text = page.page(everything)
    assert text.count("this image was made without flash-attn") == 1
    assert "Failures" not in text
    assert ET.fromstring(junit(everything)).get("errors") == "0"  # noqa: S314


def test_an_environment_for_which_no_test_was_run():
    everything = whole(members=members(finding(), finding("HOST-SHM")))
    assert everything["ok"] is False
    assert everything["headline"] == "FAILED before any test: node 0 (a): numpy is 2.0; the stack is proved with 1.26.4"
    assert report.summary(everything).splitlines()[3:] == [
        "",
        "FAILED on node 0 (a), verldoctor's ENV-PIN: numpy is 2.0; the stack is proved with 1.26.4",
        "  fix: go back",
    ]
    text = page.page(everything)
    assert "<h2>Failures (1)</h2>" in text
    assert [state for state, _ in badges(text)] == ["failed"]
    root = ET.fromstring(junit(everything))  # noqa: S314
    assert (root.get("tests"), root.get("errors")) == ("1", "1")
    assert "fix: go back" in root.find(".//error").text


def test_what_several_nodes_have_alike_stands_once():
    text = page.page(whole(run(2), members=members(finding("HOST-MEMLOCK", "warn"), hosts=("first", "second"))))
    assert text.count("HOST-MEMLOCK") == 1
    assert "<td>first, second</td>" in text


def test_nothing_found_is_said():
    assert "verldoctor found nothing." in page.page(whole(run(1)))
    assert "verldoctor" not in report.summary(whole(run(1)))


def test_what_verldoctor_says_is_escaped():
    everything = whole(members=members(finding(message=HOSTILE, fix=HOSTILE), hosts=(HOSTILE,)))
    text = page.page(everything)
    Elements(text)
    assert "<img" not in text
    ET.fromstring(junit(everything))  # noqa: S314
    assert not set("\x00\x08\x1b\x9b\u202e") & set(report.summary(everything) + text)


# -- text and what is measured


def test_the_text_is_a_table():
    results = [result("a.py::t"), result("b.py::t", "not run", reason="no GPU")]
    lines = report.summary(whole(run(1, results), dead(16))).splitlines()
    assert lines[3:6] == [
        "ranks         on  passed  failed  not run  seconds",
        "    1  CPU, gloo       1       0        1     12.3",
        "   16  no report       -       -        -        -",
    ]


def test_all_four_files_are_written(tmp_path):
    report.write_whole(tmp_path, members(), [run(1)], image=IMAGE)
    assert json.loads((tmp_path / "smoke.json").read_text())["image"] == IMAGE
    assert (tmp_path / "smoke.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "smoke-junit.xml").read_bytes().startswith(b"<?xml")
    assert "CPU" in (tmp_path / "smoke.txt").read_text()


def test_nvidia_smi_is_understood():
    said = "NVIDIA H100 80GB HBM3, 550.54.15\nNVIDIA H100 80GB HBM3, 550.54.15\nTesla T4, 550.54.15\n"
    assert report.gpus_of(said) == ("2 x NVIDIA H100 80GB HBM3, 1 x Tesla T4", "550.54.15")
    assert report.gpus_of("") == ("none seen", "none seen")


def test_a_missing_package_is_said_to_be_missing(monkeypatch):
    monkeypatch.setattr(report, "PACKAGES", ("pytest", "no-such-package-here"))
    monkeypatch.setattr(report, "_gpus", lambda: ("none seen", "no nvidia-smi here"))
    found = report.versions()
    assert found["pytest"] == pytest.__version__
    assert found["no-such-package-here"] == "not installed"
    assert (found["GPUs"], found["NVIDIA driver"]) == ("none seen", "no nvidia-smi here")


def said(**more):
    """As much of a pytest.TestReport as result_of reads."""
    given = {"skipped": False, "failed": False, "nodeid": "a.py::t", "duration": 0.1}
    return types.SimpleNamespace(**{**given, "user_properties": [], "sections": [], **more})


def test_a_failure_keeps_the_end_of_its_traceback_and_of_its_output():
    told = "\n".join(f"line {number}" for number in range(100))
    crash = types.SimpleNamespace(reprcrash=types.SimpleNamespace(message="assert 1 == 2"))
    sections = [("Captured stdout call", told)]
    made = report.result_of(said(failed=True, outcome="failed", longrepr=crash, longreprtext=told, sections=sections))
    assert made.reason == "assert 1 == 2"
    assert made.last_lines[0] == "line 70"
    assert made.last_lines[29:31] == ("line 99", "-- Captured stdout call")
    assert made.last_lines[31:] == tuple(f"line {number}" for number in range(85, 100))


def test_figures_are_always_fit_for_json():
    odd = [("a", float("nan")), ("b", (1, float("inf"))), ("c", {1: {2}}), ("d", None), ("e", True)]
    made = report.result_of(said(outcome="passed", user_properties=odd))
    text = json.dumps(dataclasses.asdict(made), allow_nan=False)
    assert json.loads(text)["figures"] == {"a": "nan", "b": [1, "inf"], "c": {"1": "{2}"}, "d": None, "e": True}
