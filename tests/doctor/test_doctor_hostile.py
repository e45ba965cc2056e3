"""Hostile files and folders through the command, each under every kind: findings or a clear word, never a traceback."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor.cli import main
from verldoctor.run import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

ESCAPES = b"\x1b[2J\x1b]0;owned\x07\x9b31m\xe2\x80\xae\r"
ALL = ("all", *KINDS)


class Attack:
    """What a malicious pickle does when it is loaded: it writes a file."""

    mark = ""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (self.mark,)


def attack(path: Path) -> bytes:
    Attack.mark = str(path.parent / "mark")
    return pickle.dumps(Attack(), protocol=2)


FILES: dict[str, Callable[[Path], bytes]] = {
    "empty": lambda path: b"",
    "blanks": lambda path: b" \n" * 1000,
    "garbage": lambda path: bytes(range(256)) * 100,
    "zeros": lambda path: b"\0" * 100_000,
    "one line": lambda path: b"a" * 4_200_000,
    "one number": lambda path: b"9" * 50_000,
    "deep lists": lambda path: b"[" * 20_000,
    "deep objects": lambda path: b'{"a":' * 20_000,
    "deep yaml": lambda path: b"- " * 10_000 + b"x",
    "escape codes": lambda path: ESCAPES * 50 + b"\n" + ESCAPES + b": x\n",
    "escape codes in json": lambda path: json.dumps({"model_type": ESCAPES.decode("latin-1"), "gpus": [1]}).encode(),
    "surrogates": lambda path: b'{"a": "\\ud800", "prompt": "\\udc00"}\n',
    "a malicious pickle": attack,
    "a cut zip": lambda path: b"PK\3\4" + b"\0" * 50 + b"PK\5\6" + b"\xff" * 18,
    "parquet": lambda path: b"PAR1" + b"\xff" * 100 + b"\xff\xff\xff\x7fPAR1",
    "elf": lambda path: b"\x7fELF\2\1\1" + b"\xff" * 200,
    "pointer": lambda path: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
}
NAMES = ("x", "x.json", "x.yaml", "x.sh", "x.jsonl", "x.pt")


def said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says; held to be a verdict that is fit for a terminal."""
    code = main(argv)
    captured = capsys.readouterr()
    assert code in (0, 1, 2)
    assert captured.err == ""
    assert "DOCTOR-BUG" not in captured.out
    assert all(char.isprintable() or char == "\n" for char in captured.out)
    return captured.out


@pytest.mark.parametrize("content", FILES)
@pytest.mark.parametrize("kind", ALL)
def test_a_hostile_file_is_judged(kind: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        path = tmp_path / name
        path.write_bytes(FILES[content](path))
        assert "verldoctor: " in said([kind, str(path)], capsys)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("kind", ALL)
def test_a_hostile_folder_is_judged(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "folder\x1b[2J\n"
    folder.mkdir()
    (folder / "loop").symlink_to(folder)
    (folder / "itself").symlink_to("itself")
    (folder / "gone.safetensors").symlink_to("nowhere")
    for number, name in enumerate(
        ("config.json", "tokenizer.json", "model.safetensors", "a.parquet", "a.log", "a.yaml")
    ):
        (folder / name).write_bytes(list(FILES.values())[number + 5](folder / name))
    os.mkfifo(folder / "model_world_size_1_rank_0.pt")
    os.mkfifo(folder / "b.jsonl")
    os.mkfifo(folder / "c.yaml")
    (folder / "d.parquet").mkdir()
    assert "verldoctor: " in said([kind, str(folder)], capsys)
    assert "verldoctor: " in said([kind, str(folder / "itself")], capsys)
    assert "verldoctor: " in said([kind, str(folder / "itself" / "more")], capsys)


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "explain"])  # a log may be long, and is read
def test_a_file_of_terabytes_is_judged(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x.json", "x.yaml", "x.sh", "x.pt", "x.safetensors", "x.parquet"):
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(1 << 40)
        assert "verldoctor: " in said([kind, str(tmp_path / name)], capsys)


@given(content=st.binary(max_size=300), kind=st.sampled_from(ALL), name=st.sampled_from(NAMES))
def test_any_bytes_are_judged(content: bytes, kind: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(content)
    assert main([kind, str(path)]) in (0, 1, 2)
