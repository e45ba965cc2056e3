"""Model folders: every rule with a folder that breaks it and one that does not."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor.context import Context
from verldoctor.finding import Finding, rules
from verldoctor.model import check

CASES = Path(__file__).with_name("cases") / "model"
CU121 = {"torch": "2.3.1+cu121", "transformers": "4.41.2", "verl": "0.2.0.post2"}
VLLM = {"torch": "2.4.0+cu121", "transformers": "4.47.1", "verl": "0.2.0.post2", "vllm": "0.6.3"}
V5 = {"torch": "2.11.0", "transformers": "5.9.0", "verl": "0.9.1"}
ROWS, WIDTH, LAYERS = 1000, 8, 2

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": ROWS,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
    "pad_token_id": 3,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "LlamaTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "chat_template": "{{ messages }}",
}
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"<s>": 1, "</s>": 2, "<pad>": 3, "a": 4, "b": 5, "ab": 6}, "merges": ["a b"]},
    "added_tokens": [{"id": 7, "content": "<x>"}],
}
GENERATION = {"eos_token_id": [2, 7], "pad_token_id": 3}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
NAMES = [EMBEDDING, HEAD, *(f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(LAYERS))]
NONE = object()  # takes a key or a file away
BIN = {"model.safetensors": NONE}
TORCH_ZIP = (Path(__file__).with_name("saved") / "fsdp-torch-2.3.1.pt").read_bytes()
BARE = {"tokenizer.json": NONE, "model.safetensors": NONE}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"


def safetensors(names: list[str], rows: int = ROWS) -> bytes:
    """A file with bf16 zeros under `names`; the embedding and the head have `rows` rows."""
    header, at = {}, 0
    for name in names:
        shape = [rows if name in (EMBEDDING, HEAD) else 2, WIDTH]
        end = at + shape[0] * WIDTH * 2  # two bytes a number
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * at


def index(files: dict[str, list[str]], **metadata: int) -> dict[str, Any]:
    return {"metadata": metadata, "weight_map": {name: file for file, names in files.items() for name in names}}


SHARD = "model-0000{}-of-00002.safetensors"
HALVES = {SHARD.format(1): NAMES[:2], SHARD.format(2): NAMES[2:]}
SHARDED: dict[str, Any] = {
    "model.safetensors": NONE,
    "model.safetensors.index.json": index(HALVES),
    **{name: safetensors(names) for name, names in HALVES.items()},
}


def config(**changes: Any) -> dict[str, Any]:
    return {"config.json": merged(CONFIG, changes)}


def tokens(**changes: Any) -> dict[str, Any]:
    return {"tokenizer_config.json": merged(TOKENIZER_CONFIG, changes)}


def added(number: int) -> dict[str, Any]:
    return tokens(added_tokens_decoder={str(number): {"content": "<y>"}, "x": {}, "4": 7})


def words(**changes: Any) -> dict[str, Any]:
    model = {**TOKENIZER["model"], **{k: v for k, v in changes.items() if k != "added_tokens"}}
    return {"tokenizer.json": {"model": model, "added_tokens": changes.get("added_tokens", [])}}


def generation(**changes: Any) -> dict[str, Any]:
    return {"generation_config.json": merged(GENERATION, changes)}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**base, **changes}.items() if value is not NONE}


def folder(tmp_path: Path, files: dict[str, Any], name: str = "m") -> Path:
    """A complete good folder, with `files` put over it."""
    base = {
        "config.json": CONFIG,
        "tokenizer_config.json": TOKENIZER_CONFIG,
        "tokenizer.json": TOKENIZER,
        "generation_config.json": GENERATION,
        "model.safetensors": safetensors(NAMES),
    }
    path = tmp_path / name
    path.mkdir()
    for file, content in {**base, **files}.items():
        if content is not NONE:
            (path / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LINEAR = {"type": "linear", "factor": 2.0}
JINJA = {"chat_template.jinja": b"x", **tokens(chat_template=NONE)}
QWEN = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}

# code: (stack, files that break the rule, files that do not)
PAIRS: dict[str, list[tuple[dict[str, str], dict[str, Any], dict[str, Any]]]] = {
    "MODEL-BROKEN": [
        (CU121, {"config.json": b"{"}, {}),
        (CU121, {"tokenizer.json": b"[]"}, {}),
        (CU121, {"config.json": b"\xef\xbb\xbf{}"}, {}),
        (CU121, {"model.safetensors.index.json": {"weight_map": {}}}, {}),
    ],
    "MODEL-LFS": [
        (CU121, {"tokenizer.json": POINTER}, {}),
        (CU121, {"model.safetensors": POINTER}, {}),
        (CU121, {"config.json": POINTER}, {}),
    ],
    "MODEL-NO-CONFIG": [(CU121, {"config.json": NONE}, {})],
    "MODEL-ADAPTER": [(CU121, {"config.json": NONE, "adapter_config.json": {}}, {"adapter_config.json": {}})],
    "MODEL-TYPE-MISSING": [(CU121, config(model_type=NONE), {}), (CU121, config(model_type=5), {})],
    "MODEL-TYPE": [
        (CU121, config(model_type="qwen3"), config(model_type="qwen2")),
        (CU121, config(model_type="lama"), {}),
        (VLLM, config(model_type="gemma3_text"), config(model_type="gemma2")),
    ],
    "MODEL-HEAD": [
        (CU121, config(architectures=["LlamaForTokenClassification"]), {}),
        (VLLM, config(model_type="clip"), config(architectures=["LlamaForSequenceClassification"])),
    ],
    "MODEL-REMOTE-CODE": [
        (CU121, config(model_type="mine", auto_map={"AutoConfig": "a.B"}), {}),
        (CU121, tokens(auto_map={"AutoTokenizer": ["a.B", None]}), tokens(auto_map={"AutoConfig": "a.B"})),
    ],
    "MODEL-HEADS": [
        (CU121, config(num_attention_heads=5), {}),
        (CU121, config(num_key_value_heads=3), config(num_key_value_heads=1)),
    ],
    "MODEL-HEAD-DIM": [
        (CU121, config(head_dim=32), config(head_dim=16)),
        (CU121, config(head_dim=32, model_type="mistral"), {}),
    ],
    "MODEL-ROPE": [
        (CU121, config(rope_scaling=LLAMA3), config(rope_scaling=LINEAR)),
        (CU121, config(rope_scaling={"type": "linear", "factor": 2}), config(rope_scaling=None)),
        (CU121, config(rope_scaling={"rope_type": "linear", "factor": 2.0}), config(rope_scaling={})),
    ],
    "MODEL-ROPE-IGNORED": [
        (CU121, config(**QWEN, rope_scaling={"type": "yarn", "factor": 4.0}), config(**QWEN)),
        (
            VLLM,
            config(model_type="mistral", rope_scaling=LINEAR),
            config(**QWEN, rope_scaling={"type": "yarn", "factor": 4.0}),
        ),
    ],
    "MODEL-ROPE-UNKNOWN": [
        (VLLM, config(rope_scaling={"rope_type": "lama3", "factor": 8.0}), config(rope_scaling=LLAMA3))
    ],
    "MODEL-ROPE-PARAMETERS": [
        (
            CU121,
            config(rope_theta=NONE, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
            config(rope_theta=1e6, rope_parameters={"rope_theta": 1e6}),
        ),
        (
            CU121,
            config(rope_theta=NONE, rope_parameters={"rope_theta": 10000.0, "rope_type": "yarn"}),
            config(rope_theta=NONE, rope_parameters={"rope_theta": 10000.0}),
        ),
    ],
    "MODEL-FLASH2": [(CU121, config(model_type="bloom"), {})],
    "MODEL-ATTENTION": [(CU121, config(attn_implementation="eager"), config(attn_implementation="flash_attention_2"))],
    "MODEL-DTYPE-WORD": [(CU121, config(torch_dtype="bf16"), config(torch_dtype="float32"))],
    "MODEL-QUANTIZED": [(CU121, config(quantization_config={"quant_method": "awq"}), config(quantization_config=None))],
    "MODEL-CONFIG-ONLY": [(CU121, BARE, {"tokenizer.json": NONE})],
    "MODEL-SOURCE": [
        (
            CU121,
            {**config(_name_or_path="meta-llama/Llama-2-7b-hf"), **tokens(name_or_path="Qwen/Qwen2-7B")},
            {
                **config(_name_or_path="meta-llama/Llama-2-7b-hf"),
                **tokens(name_or_path="meta-llama/Llama-2-7b-chat-hf"),
            },
        ),
        (
            CU121,
            {**config(_name_or_path="Qwen/Qwen2-7B"), **tokens(name_or_path="google/gemma-2b")},
            {**config(_name_or_path="Qwen/Qwen2-7B"), **tokens(name_or_path="./out/step-100")},
        ),
    ],
    "MODEL-NO-TOKENIZER": [(CU121, {"tokenizer.json": NONE}, {"tokenizer.json": NONE, "tokenizer.model": b"x"})],
    "MODEL-MERGES": [(CU121, words(merges=[["a", "b"]]), words(merges=[])), (CU121, words(merges=[["a", "b"]]), {})],
    "MODEL-TOKENIZER-CLASS": [
        (CU121, tokens(tokenizer_class="TokenizersBackend"), tokens(tokenizer_class="PreTrainedTokenizerFast")),
        (VLLM, tokens(tokenizer_class="MyTokenizer"), tokens(tokenizer_class="LlamaTokenizer")),
    ],
    "MODEL-TOKENIZER-OTHER": [
        (
            CU121,
            {**tokens(tokenizer_class="Qwen2Tokenizer"), "tokenizer.json": NONE},
            tokens(tokenizer_class="Qwen2Tokenizer"),
        )
    ],
    "MODEL-CHAT-TEMPLATE": [
        (CU121, tokens(chat_template=NONE), {}),
        (CU121, tokens(chat_template=" "), tokens(chat_template=[{"name": "default", "template": "x"}])),
    ],
    "MODEL-CHAT-TEMPLATE-GONE": [(VLLM, tokens(chat_template=NONE), JINJA)],
    "MODEL-TEMPLATE-FILE": [(CU121, JINJA, {"chat_template.jinja": b"x"})],
    "MODEL-TEMPLATE-DEFAULT": [
        (
            CU121,
            tokens(chat_template=[{"name": "rag", "template": "x"}]),
            tokens(chat_template=[{"name": "default", "template": "x"}]),
        )
    ],
    "MODEL-EXTRA-TOKENS": [(VLLM, tokens(extra_special_tokens=["<x>"]), tokens(extra_special_tokens={}))],
    "MODEL-VOCABULARY": [
        (CU121, added(ROWS), added(ROWS - 1)),
        (CU121, {"added_tokens.json": {"<y>": ROWS}}, {"added_tokens.json": {"<y>": ROWS - 1}}),
        (CU121, {**added(ROWS), "tokenizer.json": NONE}, {**added(ROWS - 1), "tokenizer.json": NONE}),
        (
            CU121,
            words(added_tokens=[{"id": ROWS, "content": "<y>"}]),
            words(added_tokens=[{"id": ROWS - 1, "content": "<y>"}]),
        ),
    ],
    "MODEL-VOCABULARY-SMALL": [
        (CU121, {**config(vocab_size=32000), "model.safetensors": NONE}, config(vocab_size=1030))
    ],
    "MODEL-SPECIAL-ID": [
        (CU121, config(eos_token_id=ROWS), {}),
        (CU121, generation(bos_token_id=-5), config(pad_token_id=-1)),
    ],
    "MODEL-PAD": [(CU121, tokens(pad_token=NONE), {}), (CU121, tokens(pad_token=None), {})],
    "MODEL-PAD-EOS": [(CU121, tokens(pad_token="</s>"), {})],
    "MODEL-NO-EOS": [
        (CU121, tokens(pad_token=None, eos_token=None), tokens(pad_token=None, eos_token={"content": "</s>"}))
    ],
    "MODEL-PAD-GENERATION": [
        (CU121, generation(pad_token_id=NONE), {}),
        (CU121, {"generation_config.json": NONE, **config(pad_token_id=NONE)}, {"generation_config.json": NONE}),
        (
            CU121,
            {**BARE, **generation(pad_token_id=NONE)},
            {**BARE, "generation_config.json": NONE, **config(pad_token_id=NONE)},
        ),
    ],
    "MODEL-EOS-GENERATION": [(CU121, generation(eos_token_id=NONE), generation(eos_token_id=2))],
    "MODEL-EOS": [(CU121, generation(eos_token_id=7), generation(eos_token_id=[7, 2]))],
    "MODEL-TOKEN-UNKNOWN": [
        (CU121, tokens(eos_token="<end>"), tokens(eos_token="<end>", added_tokens_decoder={"8": {"content": "<end>"}}))
    ],
    "MODEL-NO-WEIGHTS": [(CU121, {"model.safetensors": NONE}, {})],
    "MODEL-NO-INDEX": [(CU121, {**SHARDED, "model.safetensors.index.json": NONE}, SHARDED)],
    "MODEL-SHARDS": [(CU121, {**SHARDED, SHARD.format(2): NONE}, SHARDED)],
    "MODEL-TENSORS": [
        (CU121, {**SHARDED, SHARD.format(2): safetensors(NAMES[3:])}, SHARDED),
        (CU121, {**SHARDED, SHARD.format(1): safetensors(NAMES[2:])}, {**SHARDED, SHARD.format(1): safetensors(NAMES)}),
    ],
    "MODEL-SHARD-BROKEN": [
        (CU121, {"model.safetensors": safetensors(NAMES)[:-10]}, {}),
        (CU121, {"model.safetensors": b"123"}, {}),
        (CU121, {"model.safetensors": b"\xff" * 100}, {}),
        (CU121, {"model.safetensors": struct.pack("<Q", 4) + b"nope"}, {}),
        (CU121, {**BIN, "pytorch_model.bin": b""}, {**BIN, "pytorch_model.bin": TORCH_ZIP}),
        (CU121, {**BIN, "pytorch_model.bin": TORCH_ZIP[:-30]}, {**BIN, "pytorch_model.bin": b"\x80\x02l."}),
        (CU121, {**BIN, "pytorch_model.bin": b"<html>"}, {**BIN, "pytorch_model.bin": TORCH_ZIP}),
    ],
    "MODEL-NOT-EXAMINED": [
        (CU121, {"model.safetensors": struct.pack("<Q", 9_000_000) + b"{".ljust(8_999_999) + b"}"}, {}),
    ],
    "MODEL-SIZE": [
        (
            CU121,
            {**SHARDED, "model.safetensors.index.json": index(HALVES, total_size=10**9)},
            {**SHARDED, "model.safetensors.index.json": index(HALVES, total_size=32000)},
        )
    ],
    "MODEL-BIN": [(CU121, {"model.safetensors": NONE, "pytorch_model.bin": b"PK"}, {"pytorch_model.bin": b"PK"})],
    "MODEL-EMBEDDING": [(CU121, config(vocab_size=ROWS + 8), {})],
    "MODEL-LAYERS": [(CU121, config(num_hidden_layers=3), {})],
    "MODEL-NO-HEAD": [
        (
            CU121,
            {"model.safetensors": safetensors([n for n in NAMES if n != HEAD])},
            {"model.safetensors": safetensors([n for n in NAMES if n != HEAD]), **config(tie_word_embeddings=True)},
        )
    ],
}
ALL = [(code, *row) for code, rows in PAIRS.items() for row in rows]


def judged(stack: dict[str, str], *paths: Path) -> list[Finding]:
    return check(paths, Context(env={}, stack=stack))


def codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings}


@pytest.mark.parametrize(("code", "stack", "bad", "good"), ALL)
def test_each_rule_both_ways(tmp_path: Path, code: str, stack: dict, bad: dict, good: dict) -> None:
    assert code in codes(judged(stack, folder(tmp_path, bad, "bad")))
    assert code not in codes(judged(stack, folder(tmp_path, good, "good")))


@pytest.mark.parametrize("files", [{}, SHARDED])
@pytest.mark.parametrize("stack", [CU121, VLLM, V5])
def test_a_good_folder_gets_no_word(tmp_path: Path, stack: dict[str, str], files: dict[str, Any]) -> None:
    assert judged(stack, folder(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("name", "severity", "must"),
    [
        ("m1", "fail", ["rope", "4.43"]),
        ("m2", "fail", ["qwen3", "4.51"]),
        ("m3", "fail", ["TokenizersBackend"]),
        ("m4", "warn", ["pad", "chat template"]),
    ],
)
def test_reported_faults_are_named(name: str, severity: str, must: list[str]) -> None:
    findings = [f for f in judged(CU121, CASES / name) if f.severity == severity]
    said = " ".join(f"{f.message} {f.right} {f.fix}" for f in findings).lower()
    assert [word for word in must if word.lower() not in said] == []
    if severity == "warn":
        assert "fail" not in {f.severity for f in judged(CU121, CASES / name)}


def test_what_a_newer_release_brings_is_no_fault_there(tmp_path: Path) -> None:
    files = {**config(rope_scaling=LLAMA3), **words(merges=[["a", "b"]])}
    path = folder(tmp_path, files)
    assert {"MODEL-ROPE", "MODEL-MERGES"} <= codes(judged(CU121, path))
    assert judged(VLLM, path) == []


def test_a_pad_token_of_the_class_counts(tmp_path: Path) -> None:
    # Qwen2Tokenizer's default pad token is <|endoftext|>: nothing is missing where the file is silent
    files = {**config(**QWEN), **tokens(tokenizer_class="Qwen2Tokenizer", pad_token=NONE)}
    assert "MODEL-PAD" not in codes(judged(CU121, folder(tmp_path, files)))


def test_actor_and_reward_model_are_compared(tmp_path: Path) -> None:
    actor = folder(tmp_path, {}, "actor")
    scoring = {"architectures": ["LlamaForSequenceClassification"], "tie_word_embeddings": True}
    same = folder(tmp_path, config(**scoring), "same")
    other = folder(
        tmp_path, {**config(**scoring, torch_dtype="float16"), **words(vocab={"<s>": 1, "</s>": 2, "<pad>": 3})}, "rm"
    )
    compared = {"MODEL-DTYPE", "MODEL-TOKENIZERS"}
    assert codes(judged(VLLM, actor, other)) & compared == compared
    found = [f for f in judged(VLLM, other, actor) if f.code in compared]
    assert {f.subject.partition("/")[0] for f in found} == {"rm"}  # whichever comes first, the reward model differs
    assert codes(judged(VLLM, actor, folder(tmp_path, {}, "twin"), same)) & compared == set()


def test_files_stand_for_their_folder(tmp_path: Path) -> None:
    path = folder(tmp_path, config(model_type="qwen3"))
    assert codes(judged(CU121, path / "config.json", path / "tokenizer.json", path)) == {"MODEL-TYPE"}


def test_what_cannot_be_opened_is_a_finding(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    file = tmp_path / "x.bin"
    file.write_bytes(b"x")
    for path in (loop, file, tmp_path / "none", Path("/proc/self/mem"), Path("a\0b")):
        assert codes(judged(CU121, path)) == {"MODEL-UNREADABLE"}, path


def test_dangling_links_and_pipes_in_a_folder(tmp_path: Path) -> None:
    path = folder(tmp_path, {"model.safetensors": NONE, "tokenizer.json": NONE})
    (path / "model.safetensors").symlink_to(tmp_path / "blob")  # a Hugging Face cache whose blobs are gone
    os.mkfifo(path / "tokenizer.json")
    assert {"MODEL-SHARDS", "MODEL-BROKEN"} <= codes(judged(CU121, path))


def test_escape_codes_are_never_echoed(tmp_path: Path) -> None:
    evil = "\x1b[2Jx"
    files = {**config(model_type=evil, architectures=[evil]), **tokens(tokenizer_class=evil, eos_token=evil)}
    path = folder(tmp_path, files, "m\x1b[31m")
    for finding in judged(CU121, path):
        assert "\x1b" not in f"{finding.subject}{finding.message}{finding.measured}{finding.right}{finding.fix}"


def test_every_rule_has_both_ways_and_a_source() -> None:
    assert set(rules("model")) == {*PAIRS, "MODEL-UNREADABLE", "MODEL-DTYPE", "MODEL-TOKENIZERS"}
    assert all(rule.source and rule.fix and rule.why for rule in rules("model").values())


JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["llama", "qwen3", "default"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        *CONFIG,
        *TOKENIZER_CONFIG,
        "rope_scaling",
        "rope_parameters",
        "auto_map",
        "head_dim",
        "quantization_config",
        "text_config",
        "added_tokens_decoder",
        "extra_special_tokens",
        "model",
        "vocab",
        "merges",
        "added_tokens",
        "weight_map",
        "metadata",
    ]
)
FILES = (
    "config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "generation_config.json",
    "model.safetensors.index.json",
)


@given(file=st.sampled_from(FILES), tree=st.dictionaries(KEYS, JSONS, max_size=6))
def test_any_json_is_judged_without_an_error(tmp_path_factory: pytest.TempPathFactory, file: str, tree: dict) -> None:
    path = folder(tmp_path_factory.mktemp("f"), {file: tree})
    for stack in (CU121, VLLM, V5, {}):
        judged(stack, path)


@given(file=st.sampled_from([*FILES, "model.safetensors"]), data=st.binary(max_size=200))
def test_any_bytes_are_judged_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, file: str, data: bytes
) -> None:
    judged(CU121, folder(tmp_path_factory.mktemp("f"), {file: data}))


@given(header=st.dictionaries(st.sampled_from([*NAMES, "__metadata__"]), JSONS, max_size=4))
def test_any_safetensors_header_is_judged_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, header: dict
) -> None:
    text = json.dumps(header).encode()
    files = {"model.safetensors": struct.pack("<Q", len(text)) + text}
    judged(CU121, folder(tmp_path_factory.mktemp("f"), files))


@pytest.mark.parametrize("file", FILES)
def test_deep_nesting_is_a_finding(tmp_path: Path, file: str) -> None:
    path = folder(tmp_path, {file: b'{"model": ' + b"[" * 100_000})
    assert "MODEL-BROKEN" in codes(judged(CU121, path))
