"""Checkpoints: whole, harmless ones pass; each fault is found without reading tensors or running pickles."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
import time
import zipfile
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor import pickles, safetensors_header, zip_directory
from verldoctor.checkpoint import check
from verldoctor.context import Context

CASES = Path(__file__).with_name("cases") / "checkpoint"
SAVED = Path(__file__).with_name("saved") / "fsdp-torch-2.3.1.pt"
BAD = {"CKPT-DANGEROUS"}
STACK = {"torch": "2.3.1+cu121", "transformers": "4.41.2", "verl": "0.2.0.post2"}


def codes(path, verl="0.2.0.post2"):
    return {f.code for f in check([path], Context(env={}, stack={**STACK, "verl": verl}))}


def text(path):
    return "\n".join(
        f"{f.subject} {f.message} {f.measured} {f.fix}" for f in check([path], Context(env={}, stack=STACK))
    )


def number(value):
    return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)


def word(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def storage_pickle(elements=4, key="0", kind=b"ctorch\nFloatStorage\n"):
    """What torch.save writes for {"w": tensor}: a call of _rebuild_tensor_v2 with a storage by persistent id."""
    place = b"(" + word("storage") + kind + word(key) + word("cpu") + number(elements) + b"tQ"
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + place + number(0) + number(elements) + b"\x85" + number(1) + b"\x85"
    )
    return b"\x80\x02}" + word("w") + tensor + b"\x89ccollections\nOrderedDict\n)RtRs."


def torch_zip(path, main=None, data=b"\0" * 16, key="0", compression=zipfile.ZIP_STORED):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("archive/data.pkl", storage_pickle() if main is None else main)
        file.writestr("archive/byteorder", "little")
        if data is not None:
            file.writestr(f"archive/data/{key}", data)
        file.writestr("archive/version", "3\n")
    return path


def role(folder, world=2, kinds=("model", "optim", "extra_state")):
    for kind in kinds:
        for rank in range(world):
            torch_zip(folder / f"{kind}_world_size_{world}_rank_{rank}.pt")
    (folder / "huggingface").mkdir()
    (folder / "huggingface/config.json").write_text("{}")
    (folder / "huggingface/tokenizer.json").write_text("{}")
    return folder


def run(root, *steps, told=None, critic=False):
    for step in steps:
        role(root / f"global_step_{step}/actor")
        if critic:
            role(root / f"global_step_{step}/critic")
        torch_zip(root / f"global_step_{step}/data.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(str(steps[-1] if told is None else told))
    return root


def test_case_of_one_missing_rank():
    assert "rank_1" in text(CASES / "k1")
    assert {"CKPT-MISSING", "CKPT-CUT"} <= codes(CASES / "k1")


@pytest.mark.parametrize("critic", [False, True])
def test_a_whole_run_passes(tmp_path, critic):
    assert check([run(tmp_path, 10, 20, critic=critic)], Context(env={}, stack=STACK)) == []
    assert codes(tmp_path / "global_step_20") == set()
    assert codes(tmp_path / "global_step_20/actor") == set()


@pytest.mark.parametrize(
    "name", ["model_world_size_2_rank_1", "optim_world_size_2_rank_0", "extra_state_world_size_2_rank_1"]
)
def test_each_missing_shard_is_named_and_the_whole_step_offered(tmp_path, name):
    run(tmp_path, 10, 20)
    (tmp_path / f"global_step_20/actor/{name}.pt").unlink()
    said = text(tmp_path)
    assert name in said
    assert "not safe to resume" in said
    assert "global_step_10" in said


def test_no_step_is_whole(tmp_path):
    run(tmp_path, 10)
    (tmp_path / "global_step_10/actor/model_world_size_2_rank_0.pt").unlink()
    assert "CKPT-UNSAFE-ALL" in codes(tmp_path)


def test_world_sizes_mixed_rank_too_high_and_huge(tmp_path):
    folder = role(tmp_path / "actor")
    torch_zip(folder / "model_world_size_4_rank_0.pt")
    assert "CKPT-MIXED" in codes(folder)
    torch_zip(folder / "model_world_size_2_rank_7.pt")
    assert "CKPT-RANK" in codes(folder)
    torch_zip(folder / "model_world_size_999999999_rank_0.pt")
    assert "999999996 more" in text(folder)


def test_files_that_are_not_whole(tmp_path):
    whole = torch_zip(tmp_path / "a.pt").read_bytes()
    for share in (0.2, 0.6, 0.99):
        (tmp_path / "cut.pt").write_bytes(whole[: int(len(whole) * share)])
        assert codes(tmp_path / "cut.pt") == {"CKPT-CUT"}
    (tmp_path / "empty.pt").write_bytes(b"")
    assert codes(tmp_path / "empty.pt") == {"CKPT-EMPTY"}
    (tmp_path / "page.pt").write_bytes(b"<!DOCTYPE html><html>")
    assert codes(tmp_path / "page.pt") == {"CKPT-FORMAT"}
    assert codes(torch_zip(tmp_path / "other.pt", data=None)) == {"CKPT-CUT"}
    assert codes(torch_zip(tmp_path / "short.pt", data=b"\0" * 12)) == {"CKPT-CUT"}
    assert codes(torch_zip(tmp_path / "half.pt", main=storage_pickle()[:-10])) == {"CKPT-CUT"}
    assert codes(torch_zip(tmp_path / "packed.pt", compression=zipfile.ZIP_DEFLATED)) == set()


def test_what_torch_itself_wrote_passes(tmp_path):
    """Rank 0 of two: the sharded state dict of an FSDP-wrapped Linear(4, 4), by torch.save of torch 2.3.1.

    Two things in it that no hand-made file had: 64-bit end records in a small zip, and getattr, which is how pickle's
    protocol 2 writes a class inside of a class (ShardedTensor.ProcessGroupState).
    """
    assert codes(SAVED) == set()
    whole = SAVED.read_bytes()
    for name, bent in {
        "cut": whole[:-30],
        "record": whole.replace(b"PK\6\6", b"PK\6\0"),
        "table": whole.replace(b"PK\1\2", b"PK\1\0", 1),
    }.items():
        (tmp_path / f"{name}.pt").write_bytes(bent)
        assert codes(tmp_path / f"{name}.pt") == {"CKPT-CUT"}, name


_INNER = b"\x80\x02c__builtin__\ngetattr\n"
_SHARDED = b"ctorch.distributed._shard.sharded_tensor.api\nShardedTensor\n"
_LOADER = b"ctorch.utils.data.dataloader\n"


@pytest.mark.parametrize(
    ("main", "said"),
    {
        "a class in a class": (_INNER + _SHARDED + word("ProcessGroupState") + b"\x86R.", set()),
        "the same by memo": (
            b"\x80\x02" + _SHARDED + b"q\0" + _INNER[2:] + b"h\0" + word("ProcessGroupState") + b"\x86R.",
            set(),
        ),
        "taken and dropped": (_INNER + b"0N.", set()),
        "what every function has": (
            _INNER + b"ctorch._utils\n_rebuild_tensor\n" + word("__globals__") + b"\x86R.",
            BAD,
        ),
        "a module in a module": (_INNER + _LOADER + b"os\n" + word("system") + b"\x86R.", BAD),
        "of what a call gave": (_INNER + _SHARDED + b")R" + word("x") + b"\x86R.", BAD),
        "a computed name": (_INNER + _SHARDED + b"N\x86R.", BAD),
        "kept in a list": (_INNER[:2] + b"]" + _INNER[2:] + b"a.", BAD),
        "made with arguments of INST": (b"\x80\x02(ctorch\nSize\ni__builtin__\ngetattr\n.", BAD),
        "dill's import": (b"\x80\x02cdill._dill\n_import_module\n" + word("os") + b"\x85R.", BAD),
        "dill's import of a computed name": (b"\x80\x02cdill._dill\n_import_module\nN\x85R.", BAD),
        "dill's import of what belongs there": (
            b"\x80\x02cdill._dill\n_import_module\n" + word("torch.utils.data") + b"\x85R.",
            set(),
        ),
    }.values(),
)
def test_getattr_is_harmless_only_between_names_that_are(tmp_path, main, said):
    name = "data.pt" if b"dill" in main or b"dataloader" in main else "a.pt"
    assert codes(torch_zip(tmp_path / name, main=main)) == said


def test_a_zip_whose_table_of_contents_is_nowhere(tmp_path):
    path = torch_zip(tmp_path / "a.pt")
    raw = path.read_bytes()
    for at, value in ((-6, 2**31), (-10, 2**31), (-10, 60_000), (-10, 0), (-6, 0)):
        bent = bytearray(raw)
        struct.pack_into("<I", bent, len(raw) + at, value)
        path.write_bytes(bent)
        assert codes(path) & {"CKPT-CUT", "CKPT-FORMAT"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_with_two_pickles(tmp_path):
    path = torch_zip(tmp_path / "a.pt")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("archive/data.pkl", storage_pickle())
    assert codes(path) == {"CKPT-CUT"}
    path = torch_zip(tmp_path / "b.pt")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("other/data.pkl", b"\x80\x02cos\nsystem\n.")
    assert "CKPT-DANGEROUS" in codes(path)


def test_lfs_pointers(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    for name in ("a.pt", "model.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(pointer)
        assert codes(tmp_path / name) == {"CKPT-LFS"}


def test_tracker(tmp_path):
    run(tmp_path, 10, told=30)
    assert "CKPT-STEP-MISSING" in codes(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("ten")
    assert "CKPT-TRACKER-BAD" in codes(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").unlink()
    assert "CKPT-TRACKER-MISSING" in codes(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10\n")
    assert codes(tmp_path) == set()


def test_the_sft_trainer_writes_no_tracker(tmp_path):
    """Verl v0.2.0.post2, fsdp_sft_trainer.py: save_pretrained into global_step_N, nothing to resume from."""
    for step in (10, 20):
        (tmp_path / f"global_step_{step}").mkdir()
        tensors(tmp_path / f"global_step_{step}/model.safetensors")
        (tmp_path / f"global_step_{step}/config.json").write_text("{}")
    assert codes(tmp_path) == set()
    (tmp_path / "global_step_20/model.safetensors").write_bytes(b"")
    assert codes(tmp_path) == {"CKPT-EMPTY", "CKPT-UNSAFE"}


def test_a_newer_half_written_step_only_warns(tmp_path):
    run(tmp_path, 10, 20, told=10)
    (tmp_path / "global_step_20/actor/model_world_size_2_rank_0.pt").unlink()
    assert codes(tmp_path) == {"CKPT-OTHER-STEP"}


def test_rests_of_a_save(tmp_path):
    folder = role(tmp_path / "actor")
    for name in ("model_world_size_2_rank_0.pt.tmp", ".nfs0001", "tmp_abc", "a.pt.part", "b.incomplete"):
        (folder / name).write_bytes(b"")
        assert codes(folder) == {"CKPT-PARTIAL"}
        (folder / name).unlink()
    (folder / "template.txt").write_bytes(b"")
    assert codes(folder) == set()


def test_what_stands_beside_the_shards(tmp_path):
    run(tmp_path, 10)
    step = tmp_path / "global_step_10"
    (step / "data.pt").unlink()
    assert "CKPT-DATA-MISSING" in codes(step)
    torch_zip(step / "data.pt")
    (step / "actor/huggingface/config.json").unlink()
    assert codes(step) == {"CKPT-HF-MISSING"}
    (step / "actor/huggingface/config.json").write_text("{")
    assert codes(step) == {"CKPT-HF-BROKEN"}
    (step / "actor").rename(step / "critic")
    assert "CKPT-NO-ACTOR" in codes(step)
    (tmp_path / "global_step_11").mkdir()
    assert "CKPT-NO-ACTOR" in codes(tmp_path / "global_step_11")


def test_fsdp_config(tmp_path):
    folder = role(tmp_path / "actor")
    assert codes(folder, verl="0.9.0") == {"CKPT-FSDP-CONFIG"}
    (folder / "fsdp_config.json").write_text('{"FSDP_version": 1, "world_size": 2}')
    assert codes(folder, verl="0.9.0") == set()
    assert codes(folder) == {"CKPT-NEWER"}
    (folder / "fsdp_config.json").write_text('{"FSDP_version": 1, "world_size": 4}')
    assert codes(folder, verl="0.9.0") == {"CKPT-FSDP-CONFIG"}


def test_foreign_and_empty_directories(tmp_path):
    assert codes(tmp_path) == {"CKPT-NONE"}
    torch_zip(tmp_path / "mp_rank_00_model_states.pt")
    assert codes(tmp_path) == {"CKPT-FOREIGN"}


def test_index_names_missing_files(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    assert "CKPT-INDEX" in codes(tmp_path)
    tensors(tmp_path / "model-00001-of-00002.safetensors")
    assert codes(tmp_path) == set()
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert codes(tmp_path) == {"CKPT-HF-BROKEN"}


def test_sizes_of_peers(tmp_path):
    folder = role(tmp_path / "actor", world=4)
    for rank in range(4):
        torch_zip(folder / f"model_world_size_4_rank_{rank}.pt", main=storage_pickle(1 << 19), data=b"\0" * (1 << 21))
    assert codes(folder) == set()
    torch_zip(folder / "model_world_size_4_rank_2.pt", main=storage_pickle(1 << 16), data=b"\0" * (1 << 18))
    assert codes(folder) == {"CKPT-SIZE"}
    assert "rank_2" in text(folder)


class Evil:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.system, (f"touch {self.place}",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_malicious_pickles_are_found_and_never_run(tmp_path, protocol, zipped):
    marker = tmp_path / "executed"
    raw = pickle.dumps({"w": Evil(marker)}, protocol)
    path = tmp_path / "a.pt"
    torch_zip(path, main=raw) if zipped else path.write_bytes(raw if protocol > 1 else b"\x80\x02" + raw)
    assert "CKPT-DANGEROUS" in codes(path)
    assert "system" in text(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "main",
    [
        b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93.",  # STACK_GLOBAL
        b"\x80\x04\x8c\x02os\x94\x8c\x06system\x9400h\x00h\x01\x93.",  # the words out of the memo
        b"\x80\x04]\x8c\x06system\x93.",  # a module that is no word
        b"\x80\x02\x82\x01.",  # the extension registry
        b"\x80\x02(cbuiltins\neval\nX\x01\x00\x00\x001o.",
        b"(S'1'\nibuiltins\nexec\n.",
        b"\x80\x02c__builtin__\ngetattr\n.",
        b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93.",
        b"\x80\x02ctorch.hub\nload\n.",
        b"\x80\x02cnumpy.testing._private.utils\nrunstring\n.",
        b"\x80\x02crunpy\nrun_path\n.",
        b"\x80\x02cos\nsystem\n0000.",  # broken behind the import, which a real reader would have done by then
    ],
)
def test_every_way_to_a_dangerous_name(tmp_path, main):
    assert "CKPT-DANGEROUS" in codes(torch_zip(tmp_path / "a.pt", main=main, data=None))


def test_unexpected_and_expected_names(tmp_path):
    assert codes(torch_zip(tmp_path / "a.pt", main=b"\x80\x02cmylab.things\nThing\n.")) == {"CKPT-GLOBALS"}
    names = [
        "torch._utils _rebuild_tensor_v2", "torch BFloat16Storage", "torch bfloat16", "collections OrderedDict",
        "torch.distributed._shard.sharded_tensor.api ShardedTensor", "torch.distributed._shard.metadata ShardMetadata",
        "torch.distributed.remote_device _remote_device", "torch.serialization _get_layout", "_codecs encode",
        "torch.distributed._tensor.api DTensor", "numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype",
        "__builtin__ set", "torch Size", "torch device",
    ]  # fmt: skip
    main = b"\x80\x02" + b"".join(b"c%s\n0" % name.replace(" ", "\n").encode() for name in names) + b"N."
    assert codes(torch_zip(tmp_path / "b.pt", main=main)) == set()
    loader = (
        b"\x80\x02ctorch.utils.data.dataloader\nDataLoader\n0cdill._dill\n_create_function\n0cverl.utils.dataset\nX\n."
    )
    assert codes(torch_zip(tmp_path / "data.pt", main=loader)) == set()
    assert codes(torch_zip(tmp_path / "c.pt", main=loader)) == {"CKPT-GLOBALS"}


def test_newer_torch(tmp_path):
    main = b"\x80\x02ctorch.distributed.tensor._dtensor_spec\nDTensorSpec\n."
    path = torch_zip(tmp_path / "a.pt", main=main)
    assert codes(path) == {"CKPT-TORCH"}
    assert not check([path], Context(env={}, stack={**STACK, "torch": "2.6.0"}))


def test_legacy_torch_files(tmp_path):
    parts = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    (tmp_path / "a.bin").write_bytes(b"".join(parts) + storage_pickle() + pickle.dumps(["0"], 2) + b"\x04" + b"\0" * 23)
    assert codes(tmp_path / "a.bin") == set()
    (tmp_path / "b.bin").write_bytes(b"".join(parts) + storage_pickle()[:-5])
    assert codes(tmp_path / "b.bin") == {"CKPT-CUT"}


def tensors(path, header=None, size=8):
    table = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}} if header is None else header
    raw = table if isinstance(table, bytes) else json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * size)
    return path


F32 = {"dtype": "F32", "shape": [2]}


@pytest.mark.parametrize(
    ("header", "size", "says"),
    [
        ({"a": {**F32, "data_offsets": [0, 8]}, "b": {**F32, "data_offsets": [4, 12]}}, 12, "overlaps"),
        ({"a": {**F32, "data_offsets": [0, 8]}, "b": {**F32, "data_offsets": [16, 24]}}, 24, "gap"),
        ({"a": {**F32, "data_offsets": [0, 8]}}, 4, "cut off"),
        ({"a": {**F32, "data_offsets": [0, 8]}}, 12, "follow"),
        ({"a": {**F32, "data_offsets": [0, 4]}}, 4, "shape"),
        ({"a": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}}, 8, "unknown type"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, 8, "impossible"),
        ({"a": 1}, 8, "lacks"),
        (b'{"a": {}, "a": {}}', 0, "twice"),
        (b"[1]", 0, "not a JSON object"),
        (b"{nope", 0, "not JSON"),
    ],
)
def test_safetensors_faults(tmp_path, header, size, says):
    path = tensors(tmp_path / "a.safetensors", header, size)
    assert codes(path) == {"CKPT-SAFETENSORS"}
    assert says in text(path)


def test_safetensors_lengths(tmp_path):
    assert codes(tensors(tmp_path / "a.safetensors")) == set()
    header = {"__metadata__": {"format": "pt"}, "e": {"dtype": "BF16", "shape": [0, 4], "data_offsets": [0, 0]}}
    assert codes(tensors(tmp_path / "a.safetensors", header, 0)) == set()
    for length in (1 << 63, 100_000_001, 5000):
        (tmp_path / "b.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
        assert codes(tmp_path / "b.safetensors") == {"CKPT-SAFETENSORS"}
    with (tmp_path / "c.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", 90_000_000) + b"{")
        stream.truncate(91_000_000)
    assert codes(tmp_path / "c.safetensors") == {"CKPT-TOO-LARGE"}


def sparse_shard(path, size):
    """A zip64 as torch writes it, whose tensor data is a hole in the file."""
    main = storage_pickle(size // 8, kind=b"ctorch\nDoubleStorage\n")
    body = io.BytesIO()
    entries = []
    with path.open("wb") as stream:
        for name, data, length in (("archive/data.pkl", main, len(main)), ("archive/data/0", b"", size)):
            offset = stream.tell()
            extra = struct.pack("<2HQQ", 1, 16, length, length)
            stream.write(
                struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 0, 0, 2**32 - 1, 2**32 - 1, len(name), len(extra))
            )
            stream.write(name.encode() + extra + data)
            stream.seek(offset + 30 + len(name) + len(extra) + length)
            entries.append((name, offset, length))
        start = stream.tell()
        for name, offset, length in entries:
            extra = struct.pack("<2H3Q", 1, 24, length, length, offset)
            fixed = struct.pack(
                "<4s6H3I5H2I",
                b"PK\1\2",
                45,
                45,
                0,
                0,
                0,
                0,
                0,
                2**32 - 1,
                2**32 - 1,
                len(name),
                len(extra),
                0,
                0,
                0,
                0,
                2**32 - 1,
            )
            body.write(fixed + name.encode() + extra)
        table = body.getvalue()
        stream.write(table)
        stream.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(table), start))
        stream.write(struct.pack("<4sIQI", b"PK\6\7", 0, start + len(table), 1))
        stream.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1, 0))


def test_a_checkpoint_of_100_gb_is_read_at_its_ends_only(tmp_path):
    folder = tmp_path / "actor"
    folder.mkdir()
    for kind, size in (("model", 4 << 30), ("optim", 8 << 30), ("extra_state", 1 << 20)):
        for rank in range(8):
            sparse_shard(folder / f"{kind}_world_size_8_rank_{rank}.pt", size)
    total = sum(file.stat().st_size for file in folder.iterdir())
    began = time.process_time()
    assert codes(folder) == {"CKPT-HF-MISSING"}
    assert time.process_time() - began < 5  # reading 100 GB would take minutes
    assert total > 100e9
    os.truncate(folder / "optim_world_size_8_rank_3.pt", (8 << 30) - 1)
    assert "CKPT-CUT" in codes(folder)


def test_symlink_loops_and_directories_in_place_of_files(tmp_path):
    folder = role(tmp_path / "actor")
    target = folder / "model_world_size_2_rank_0.pt"
    target.unlink()
    target.symlink_to(target.name)
    assert codes(folder) == {"CKPT-UNREADABLE"}
    target.unlink()
    target.mkdir()
    assert codes(folder) == {"CKPT-UNREADABLE"}
    (tmp_path / "loop").symlink_to("loop")
    assert codes(tmp_path / "loop") == {"CKPT-UNREADABLE"}


def test_nothing_from_a_name_is_echoed_raw(tmp_path):
    main = b"\x80\x02cmy\x1b[31mlab\nThing\x1b]0;x\x07\n."
    path = torch_zip(tmp_path / "a\x1b[2J.pt", main=main)
    assert "\x1b" not in text(path)


@given(st.binary(max_size=300))
def test_readers_raise_only_their_own_errors(data):
    for read, error in (
        (lambda: zip_directory.entries(io.BytesIO(data)), zip_directory.ZipError),
        (lambda: zip_directory.entries(io.BytesIO(b"PK\3\4" + data + b"PK\5\6" + data[:18])), zip_directory.ZipError),
        (lambda: pickles.summary(b"\x80\x04" + data), (pickles.PickleError, pickles.TooLongError)),
        (lambda: safetensors_header.shapes(io.BytesIO(data)), safetensors_header.SafetensorsError),
        (
            lambda: safetensors_header.shapes(io.BytesIO(struct.pack("<Q", len(data) + 1) + b"{" + data)),
            safetensors_header.SafetensorsError,
        ),
    ):
        with contextlib.suppress(error):
            read()


@given(st.binary(min_size=1, max_size=4), st.integers(0, 100_000))
def test_a_damaged_shard_never_raises(tmp_path, patch, place):
    path = torch_zip(tmp_path / "a.pt")
    raw = bytearray(path.read_bytes())
    place %= len(raw)
    raw[place : place + len(patch)] = patch
    path.write_bytes(raw)
    check([path], Context(env={}, stack=STACK))


@given(
    st.lists(
        st.sampled_from(
            [
                b"(",
                b"0",
                b"1",
                b"2",
                b"K\x01",
                b"\x8c\x01a",
                b"\x93",
                b"t",
                b"\x85",
                b"R",
                b"Q",
                b"\x94",
                b"h\x00",
                b"}",
                b"s",
                b"u",
                b"b",
                b"o",
                b"e",
                b"a",
                b".",
            ]
        ),
        max_size=30,
    )
)
def test_pickle_walk_never_raises_anything_else(ops):
    with contextlib.suppress(pickles.PickleError):
        pickles.summary(b"\x80\x04" + b"".join(ops))


def test_walk_agrees_with_pickle_on_what_it_imports():
    value = {
        "a": [1, 2.5, (1, "x"), {3, 4}, b"zz", None, True, -5, 1 << 70],
        "b": Path("x"),
        "c": [list(range(300))] * 3,
    }

    class Spy(pickle.Unpickler):
        seen: ClassVar[set] = set()

        def find_class(self, module, name):
            self.seen.add((module, name))
            return super().find_class(module, name)

    for protocol in range(6):
        raw = pickle.dumps(value, protocol)
        Spy.seen = set()
        Spy(io.BytesIO(raw)).load()
        assert {(n.module, n.name) for n in pickles.summary(raw).names} >= {
            (m, n) for m, n in Spy.seen if m != "builtins"
        }
        assert pickles.summary(raw).end == len(raw)
