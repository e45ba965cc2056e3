"""smoke.json as JUnit XML, the form in which CI systems show tests: one suite for each number of ranks.

It agrees with the page: where a run failed although no test did, the suite has an error, so that no CI shows it green.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from smoke.documents import NOT_KNOWN, broken, cut_lines, patches_of, ranks_of, said_last, stopped_by
from smoke.markup import first_line, fit


def junit(whole: dict[str, Any]) -> bytes:
    """The XML for the document that `report.whole` makes; as UTF-8, with its declaration."""
    root = ET.Element("testsuites", name=fit(whole["headline"]))
    if found := stopped_by(whole):
        root.append(_stopped(found))
    for run in whole["runs"]:
        root.append(_suite(whole, run))
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _stopped(found: list[dict[str, Any]]) -> ET.Element:
    """A suite of what made verldoctor stop the run: an error each."""
    suite = ET.Element("testsuite", name="before the tests", tests=str(len(found)), errors=str(len(found)))
    suite.set("failures", "0")
    for finding in found:
        case = ET.SubElement(suite, "testcase", classname="verldoctor", name=fit(finding["code"]), time="0")
        told = ET.SubElement(case, "error", message=first_line(finding["message"]))
        told.text = f"{finding['where']}: {fit(finding['message'])}\nfix: {fit(finding['fix'])}"
    return suite


def _suite(whole: dict[str, Any], run: dict[str, Any]) -> ET.Element:
    suite = ET.Element("testsuite", name=ranks_of(run))
    properties = ET.SubElement(suite, "properties")
    known = {"headline": whole["headline"], "run": run["headline"], "image": whole["image"] or NOT_KNOWN}
    patches = {f"patch {number}": name for number, name in enumerate(patches_of(run), 1)}
    for name, value in {**known, **run.get("versions", {}), **patches}.items():
        ET.SubElement(properties, "property", name=fit(name), value=fit(value))
    cases = [_case(run, result) for result in run["results"]]
    if broken(run):
        cases.insert(0, _broken(run))
    suite.extend(cases)
    found = {"tests": None, "failures": "failure", "errors": "error", "skipped": "skipped"}
    for count, child in found.items():
        suite.set(count, str(sum(child is None or case.find(child) is not None for case in cases)))
    suite.set("time", f"{run.get('seconds', 0):.3f}")
    if "nodes" in run:
        suite.set("hostname", fit(", ".join(node["host"] for node in run["nodes"])))
    return suite


def _case(run: dict[str, Any], result: dict[str, Any]) -> ET.Element:
    """One test. CI systems tell tests apart by class and name, so the class begins with the number of ranks."""
    path, _, name = result["name"].partition("::")
    group = f"ranks-{run['ranks']}.{path.removesuffix('.py').replace('/', '.')}"
    case = ET.Element("testcase", classname=fit(group), name=fit(name or path), time=f"{result['seconds']:.3f}")
    if result["outcome"] == "failed":
        told = ET.SubElement(case, "failure", message=first_line(result["reason"]))
        told.text = f"{fit(result['reason'], limit=2000)}\n{cut_lines(result['last_lines'])}"
    if result["outcome"] == "not run":
        ET.SubElement(case, "skipped", message=first_line(result["reason"]))
    return case


def _broken(run: dict[str, Any]) -> ET.Element:
    case = ET.Element("testcase", classname=f"ranks-{run['ranks']}", name="the run as a whole", time="0")
    told = ET.SubElement(case, "error", message=first_line(run["headline"]))
    told.text = cut_lines(said_last(run))
    return case
