"""The table of stacks: what is declared, what was measured and for which lock, the matrix for CI, and building all."""

import argparse
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from support import stacks as document
from support.stacks import bent
from verlstack import capabilities, lockfile, pins, stacks
from verlstack.cli import main
from verlstack.cli import stacks as verb
from verlstack.errors import LockError, PinsError, ProofError, UsageError
from verlstack.lockfile import Layer

ROOT = Path(__file__).parents[2]
REAL = ROOT / "constraints"


def lock(name="demo", **diff_ids):
    layers = {"torch": "a", "verl": "b", "smoke": "c"} | diff_ids
    return SimpleNamespace(
        stack=name,
        digest="d" * 64,
        wheels=(SimpleNamespace(project="torch", version="2.3.1", size=5_000_000),),
        layers=tuple(Layer(name=key, packages=(), diff_id=value) for key, value in layers.items()),
    )


def report(folder, without=(), **figures):
    results = [
        {
            "name": f"stack/test_capabilities.py::test_capability[{name}]",
            "figures": {"can": name not in figures, "said": figures.get(name, "")},
        }
        for name in capabilities.known()
        if name not in without
    ]
    (folder / "ranks-1.json").write_text(json.dumps({"results": results}))
    return folder


# -- declared and probed


def test_every_capability_has_a_probe_and_every_probe_a_sentence():
    source = (ROOT / "smoke_tests/smoke/probes.py").read_text()
    listed = re.search(r"for probe in \(([^)]*)\)", source)[1]
    assert re.findall(r"\w+", listed) == list(capabilities.known())


def test_the_real_stacks_declare_only_what_there_is():
    names = pins.names(REAL / "stacks.toml")
    assert {"cu121", "cu121-vllm", "cu130"} <= set(names)
    for name in names:
        assert set(capabilities.declared(REAL / "stacks.toml", name)) <= set(capabilities.known())


def test_every_real_stack_has_a_lock_of_its_pins():
    for name in pins.names(REAL / "stacks.toml"):
        assert lockfile.load(REAL, pins.load(REAL / "stacks.toml", name)).wheels


def test_a_capability_that_there_is_not(tmp_path):
    path = document.write(tmp_path, bent(stack__demo__cannot={"fly": "too heavy"}))
    with pytest.raises(PinsError, match=r"cannot\.fly is no capability; there are critic_llama") as e:
        capabilities.declared(path, "demo")
    assert "[stack.demo.cannot]" in e.value.where


def test_a_cannot_without_its_reason(tmp_path):
    path = document.write(tmp_path, bent(stack__demo__cannot={"vllm": ""}))
    with pytest.raises(PinsError, match=r"cannot\.vllm must be"):
        capabilities.declared(path, "demo")


# -- measured


def test_a_record_holds_for_its_layers_and_not_for_others(tmp_path):
    made = capabilities.record(tmp_path, lock(), report(tmp_path, vllm="no module"), date="2026-11-30")
    assert made.name == "demo.measured.json"
    found = capabilities.measured(tmp_path, lock())
    assert (found.date, found.found["vllm"], found.found["ulysses"]) == ("2026-11-30", "no module", "")
    assert list(found.found) == list(capabilities.known())
    assert capabilities.measured(tmp_path, lock(torch="other")) is None
    assert capabilities.measured(tmp_path, lock(smoke="other tests")) == found


def test_without_a_record_nothing_was_measured(tmp_path):
    assert capabilities.measured(tmp_path, lock()) is None


def test_half_a_report_is_not_recorded(tmp_path):
    with pytest.raises(ProofError, match="says nothing of ulysses"):
        capabilities.record(tmp_path, lock(), report(tmp_path, without=("ulysses",)), date="2026-11-30")
    assert not capabilities.path(tmp_path, "demo").exists()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"image": "x", "date": "y", "found": []}', "\xff"])
def test_a_damaged_record_is_told(text, tmp_path):
    capabilities.path(tmp_path, "demo").write_bytes(text.encode("latin-1"))
    with pytest.raises(ProofError) as e:
        capabilities.measured(tmp_path, lock())
    assert e.value.todo


# -- the table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    document.write(tmp_path, bent(stack__demo__cannot={"vllm": "no release fits"}))
    monkeypatch.setattr(lockfile, "load", lambda *_: lock())
    capabilities.record(tmp_path, lock(), report(tmp_path, vllm="no module"), date="2026-11-30")
    return tmp_path


def test_the_matrix_for_ci(folder, capsys):
    assert main(["stacks", "--json", "--constraints", str(folder)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    kinds = {"stack": str, "title": str, "tag": str, "bases": list, "python": str, "cuda": str, "torch": str}
    kinds |= {"verl": str, "flash_attn": str, "compiled": bool, "lock": str, "bytes": int, "measured": str}
    kinds |= {"can": dict, "cannot": dict, "transformers": type(None), "vllm": type(None)}
    assert {key: type(value) for key, value in row.items()} == kinds
    assert (row["stack"], row["tag"], row["torch"], row["python"]) == ("demo", "demo-sdpa", "2.3.1", "3.10")
    assert row["bases"] == ["debian", "registry:registry.invalid/python:3.10@sha256:" + "a" * 64]
    assert (row["can"]["vllm"], row["can"]["ulysses"]) == (False, True)
    assert row["cannot"] == {"vllm": "no release fits"}


def test_the_table_for_people(folder, capsys):
    assert main(["stacks", "--constraints", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = {line.partition("  ")[0]: line.split("  ")[-1].strip() for line in lines if "  " in line}
    assert (cells["torch"], cells["ulysses"], cells["vllm"]) == ("2.3.1", "can", "cannot") or cells["measured"]
    assert "measured            2026-11-30" in lines
    assert "flash-attn          2.5.9.post1, not compiled" in lines
    assert "  not demo: no release fits" in lines


def test_a_stack_without_a_lock_is_in_the_table_too(tmp_path, capsys):
    document.write(tmp_path)
    (row,) = stacks.rows(tmp_path)
    assert (row.lock, row.bytes, row.torch, row.measured, row.can) == (None, None, None, None, {})
    assert main(["stacks", "--constraints", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "no lock" in said
    assert "not measured" in said
    assert "not for this lock" in said


# -- building all


def all_of(folder, *, failing, as_json=False):
    document.write(folder, bent(stack__b={"extends": "demo", "title": "b"}, stack__c={"extends": "demo", "title": "c"}))
    arguments = argparse.Namespace(constraints=folder, json=as_json)
    built = []

    def one(name):
        built.append(name)
        if name in failing:
            raise LockError(f"the lock of {name} is stale", todo=f"run `verlstack lock {name}`")
        return {"tag": name, "digest": "sha256:1"} if as_json else SimpleNamespace(tag=name, digest="sha256:1")

    shown = []
    return verb.build_all(arguments, one, lambda made: shown.append(made.tag)), built, shown


def test_one_that_fails_does_not_stop_the_rest(tmp_path, capsys):
    status, built, shown = all_of(tmp_path, failing=("b",))
    assert (status, built, shown) == (1, ["b", "c", "demo"], ["c", "demo"])
    said = capsys.readouterr()
    assert said.out.splitlines()[-3:] == ["b  failed: the lock of b is stale", "c  c  sha256:1", "demo  demo  sha256:1"]
    assert "do:    run `verlstack lock b`" in said.err


def test_all_built(tmp_path):
    assert all_of(tmp_path, failing=())[0] == 0


def test_all_for_machines(tmp_path, capsys):
    assert all_of(tmp_path, failing=("c",), as_json=True)[0] == 1
    rows = {row["stack"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["b"] == {"stack": "b", "report": {"tag": "b", "digest": "sha256:1"}, "error": None}
    assert rows["c"]["report"] is None
    assert "the lock of c is stale" in rows["c"]["error"]


def test_all_and_one_contradict_each_other(capsys):
    with pytest.raises(SystemExit):
        main(["build", "cu121-vllm", "--all"])
    assert "not allowed with argument" in capsys.readouterr().err


# -- what the smoke verb is told


def test_only_a_stack_has_a_record(tmp_path):
    from verlstack.cli import smoke

    document.write(tmp_path, bent(stack__demo__cannot={"vllm": "no release fits"}))
    asked = argparse.Namespace(constraints=tmp_path, image="demo", record=True)
    assert smoke._cannot(asked) == ("vllm",)
    asked.image = "r.invalid/verl:1"
    with pytest.raises(UsageError, match="is no stack"):
        smoke._cannot(asked)
    asked.record = False
    assert smoke._cannot(asked) is None
