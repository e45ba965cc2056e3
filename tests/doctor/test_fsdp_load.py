"""Reading configurations: overrides, launch scripts, hostile YAML; nothing raises."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor.bounded import Unreadable
from verldoctor.cli import main
from verldoctor.context import Context
from verldoctor.fsdp import check
from verldoctor.fsdp_load import load, override_value
from verldoctor.overrides import certain

if TYPE_CHECKING:
    from verldoctor.finding import Finding

CODES = {"FSDP-UNREADABLE", "FSDP-UNKNOWN", "FSDP-NO-TRAINING", "FSDP-HYDRA-PLUS", "FSDP-HYDRA-EXISTS"}
STACK = {"torch": "2.3.1+cu121", "transformers": "4.41.2", "verl": "0.2.0.post2"}
RAN = """
set -x
MODEL=tiny-llama
export ROLLOUT="hf"
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.rollout.name=${ROLLOUT} \\
    actor_rollout_ref.rollout.n=1 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 \\
    data.shuffle=False data.train_batch_size=4 actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    data.train_files=$HOME/data/train.parquet \\
    trainer.logger=['console'] +trainer.val_before_train=False trainer.n_gpus_per_node=2 trainer.save_freq=1 $@
"""


def judged(*paths: Path | str) -> list[Finding]:
    return check([Path(path) for path in paths], Context(env={}, stack=STACK))


def codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def script(tmp_path: Path, text: str = RAN, **changes: str) -> Path:
    for old, new in changes.items():
        text = text.replace(old, new)
    file = tmp_path / "run.sh"
    file.write_text(text)
    return file


def test_a_launch_script_that_ran_gets_no_word(tmp_path: Path) -> None:
    assert judged(script(tmp_path)) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"n=1 ": "n=2 "}, "FSDP-ROLLOUT-N"),
        ({'"hf"': '"vllm"'}, "FSDP-VLLM-ABSENT"),
        ({"data.shuffle=False ": ""}, "FSDP-SHUFFLE-SAVE"),
        ({"+trainer.val": "trainer.val"}, "FSDP-HYDRA-PLUS"),
        ({"data.shuffle=": "+data.shuffle="}, "FSDP-HYDRA-EXISTS"),
        ({"algorithm.adv_estimator=grpo": ""}, "FSDP-CRITIC"),
        ({"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1": ""}, "FSDP-MICRO-BATCH"),
    ],
)
def test_faults_in_a_launch_script_are_found(tmp_path: Path, changes: dict[str, str], code: str) -> None:
    assert code in codes(judged(script(tmp_path, **changes)))


def test_a_script_with_its_own_configuration_is_not_held_to_verls_keys(tmp_path: Path) -> None:
    file = script(tmp_path, main_ppo="main_ppo --config-name=mine", **{"+trainer.val": "trainer.val"})
    assert codes(judged(file)) & {"FSDP-HYDRA-PLUS", "FSDP-MICRO-BATCH"} == set()


def test_arguments_change_files_and_stand_alone(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("algorithm: {adv_estimator: gae}\nactor_rollout_ref: {model: {path: llama}, rollout: {name: hf}}")
    assert codes(judged(file)) == {"FSDP-CRITIC"}
    assert judged(file, "algorithm.adv_estimator=grpo") == []
    assert "FSDP-ROLLOUT-N" in codes(judged(file, "algorithm.adv_estimator=grpo", "++actor_rollout_ref.rollout.n=2"))
    assert "FSDP-ADV-ESTIMATOR" in codes(judged("algorithm.adv_estimator=rloo"))


def test_arguments_of_the_command_itself_change_what_fsdp_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("algorithm: {adv_estimator: gae}\nactor_rollout_ref: {model: {path: llama}, rollout: {name: hf}}")
    for kind in ("fsdp", "all"):
        assert main([kind, str(file)]) == 1
        assert "FSDP-CRITIC" in capsys.readouterr().out
        main([kind, str(file), "algorithm.adv_estimator=grpo", "~trainer.save_freq", "+trainer.val_before_train=False"])
        assert "fsdp" not in capsys.readouterr().out.lower().replace("verldoctor", "")
    assert main(["fsdp", str(file), "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2"]) == 1
    said = capsys.readouterr().out
    assert "FSDP-ROLLOUT-N  arguments actor_rollout_ref.rollout.n\n" in said
    assert main(["fsdp", str(tmp_path / "none.yaml")]) == 2


SFT = """#!/bin/bash
set -euo pipefail
nproc_per_node=${1:-4}
torchrun --standalone --nnodes=1 --nproc_per_node=$nproc_per_node \\
    -m verl.trainer.fsdp_sft_trainer \\
    data.prompt_key=extra_info data.response_key=extra_info \\
    +data.prompt_dict_keys=['question'] +data.response_dict_keys=['answer'] \\
    data.train_batch_size=64 \\
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct \\
    ulysses_sequence_parallel_size=1 \\
    use_remove_padding=false $@ 2>&1 | tee sft.log
"""


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, set()),
        ({"parallel_size=1": "parallel_size=2"}, {"FSDP-ULYSSES", "FSDP-ULYSSES-PADDING"}),
        ({"batch_size=64": "batch_size=72"}, {"FSDP-SFT-BATCH"}),
        ({"batch_size=64": "batch_size=72", "1:-4": "1:-6"}, set()),
        ({"batch_size=64": "batch_size=72", "1:-4": "1"}, set()),  # not told over how many ranks
        ({"batch_size=64": "batch_size=66", "1:-4": "1"}, {"FSDP-SFT-BATCH"}),  # micro batch 4 divides it over no ranks
        ({"use_remove_padding=false": "use_rm_padding=true"}, {"FSDP-HYDRA-PLUS"}),
        ({"+data.prompt_dict_keys=['question'] ": ""}, {"FSDP-SFT-KEYS"}),
    ],
)
def test_a_torchrun_script_is_read_with_its_ranks(tmp_path: Path, changes: dict[str, str], found: set[str]) -> None:
    assert codes(judged(script(tmp_path, SFT, **changes))) == found


WAYS = {  # every one sets rollout.n to 2 over RAN's words
    "a variable that other lines are in": ("$@", "$EXTRA", 'EXTRA="actor_rollout_ref.rollout.n=2 trainer.nnodes=1"'),
    "braces": ("n=1 ", "n=${N} ", "export N=2"),
    "a default": ("n=1 ", "n=${N:-2} ", ""),
    "an array": ("$@", '"${ARGS[@]}"', "ARGS=(\n  trainer.nnodes=1 # it's one\n  actor_rollout_ref.rollout.n=2\n)"),
    "an array that grows": ("$@", "${ARGS[*]}", "ARGS=()\nARGS+=(actor_rollout_ref.rollout.n=2)"),
    "quotes over lines": ("$@", "$EXTRA", 'EXTRA="\n  trainer.nnodes=1\n  actor_rollout_ref.rollout.n=2\n"'),
    "a file for its module": ("-m verl.trainer.main_ppo", "verl/trainer/main_ppo.py", "N=2\nset -- ; :"),
}


@pytest.mark.parametrize("way", WAYS)
def test_words_are_found_however_a_shell_would(tmp_path: Path, way: str) -> None:
    old, new, before = WAYS[way]
    text = before + "\n" + RAN.replace(old, new)
    text = text.replace("rollout.n=1 ", "rollout.n=2 ") if way == "a file for its module" else text
    assert codes(judged(script(tmp_path, text))) == {"FSDP-ROLLOUT-N"}


def test_a_command_in_quotes_is_read_and_a_comment_is_not(tmp_path: Path) -> None:
    inner = RAN.replace("n=1 ", "n=2 ").split("python3", 1)[1].replace("\\\n", " ").replace("'", "").strip()
    quoted = f"MODEL=tiny-llama\nROLLOUT=hf\nsrun --nodes=2 bash -c 'set -x; python3 {inner}' 2>&1 | tee log\n"
    assert codes(judged(script(tmp_path, quoted))) == {"FSDP-ROLLOUT-N"}
    comment = "# don't: python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=2\n" + RAN
    assert judged(script(tmp_path, comment)) == []


def test_each_command_of_a_script_is_judged_by_its_own_words(tmp_path: Path) -> None:
    two = SFT.replace("$@", "$@ &&") + RAN.replace("n=1 ", "n=2 ")
    found = judged(script(tmp_path, two))
    assert codes(found) == {"FSDP-ROLLOUT-N"}
    line = 1 + two[: two.index("rollout.n=2")].count("\n")
    assert found[0].subject == f"run.sh:{line} actor_rollout_ref.rollout.n"


def test_words_behind_a_pipe_and_variables_nobody_sets_are_no_overrides(tmp_path: Path) -> None:
    assert judged(script(tmp_path, RAN.replace("$@", "| tee actor_rollout_ref.rollout.n=2"))) == []
    bare = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=hf "
    assert "FSDP-MICRO-BATCH" in codes(judged(script(tmp_path, bare + "$@")))
    assert judged(script(tmp_path, bare + "$EXTRA")) == []  # it may hold the micro batch sizes


def test_mini_batches_of_a_configuration_are_held_to_its_gpus(tmp_path: Path) -> None:
    text = RAN.replace("ppo_mini_batch_size=4", "ppo_mini_batch_size=3")
    assert codes(judged(script(tmp_path, text))) == {"DEVICES-MINI"}
    text = RAN.replace("gpu=1 a", "gpu=3 a", 2)
    assert codes(judged(script(tmp_path, text))) == {"DEVICES-MICRO"}


@pytest.mark.parametrize(
    "line",
    [
        "# a comment that ends in a backslash \\",
        "pkill -f verl.trainer.main_ppo",
        "echo python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=2",
        "tar cf verl.tar verl/trainer/main_ppo",
        "if ! pgrep -f verl.trainer.main_ppo; then sleep 1; fi",
    ],
)
def test_what_starts_nothing_is_no_command(tmp_path: Path, line: str) -> None:
    assert judged(script(tmp_path, f"{line}\n{RAN}")) == []
    assert codes(judged(script(tmp_path, f"{line}\n{RAN.replace('n=1 ', 'n=2 ')}"))) == {"FSDP-ROLLOUT-N"}


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    judged(script(tmp_path, RAN.replace("tiny-llama", f"$(touch {mark})`touch {mark}`") + f"\ntouch {mark}"))
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        '"' * 3000,
        "'\n" * 3001,
        "A=x\n" + 'A="$A $A"\n' * 2000 + "echo $A\n" * 100,
        "B=(" * 2000,
        "B=()\n" + 'B+=("${B[@]}" x)\n' * 3000,
        "${" * 20_000,
        "\\\n" * 50_000,
        "verl.trainer.main_eval " + " \\\n".join(f"a.b{n}={n}" for n in range(15_000)),
        'bash -c "' + "bash -c '" * 100 + "verl.trainer.main_eval",
    ],
    ids=[
        "quotes",
        "lines of quotes",
        "doubling",
        "open arrays",
        "growing arrays",
        "braces",
        "joined lines",
        "many",
        "nested",
    ],
)
def test_scripts_that_would_never_end_do_end(tmp_path: Path, text: str) -> None:
    file = script(tmp_path, text)
    assert codes(judged(file)) <= CODES


def test_an_override_may_be_a_mapping(tmp_path: Path) -> None:
    good = "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: bf16, reduce_dtype: fp32}"
    file = script(tmp_path, **{"$@": f"'{good}'"})
    assert judged(file) == []
    assert codes(judged(script(tmp_path, **{"$@": f"'{good.replace('bf16', 'bf8')}'"}))) == {"FSDP-PRECISION"}


def test_hydras_own_record_is_read(tmp_path: Path) -> None:
    file = tmp_path / "overrides.yaml"
    file.write_text("- algorithm.adv_estimator=gae\n- actor_rollout_ref.model.path=llama\n")
    assert "FSDP-CRITIC" in codes(judged(file))


def test_a_folder_is_judged_file_by_file_and_others_in_it_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("fsdp: {sharding_strategy: ZERO3}")
    (tmp_path / "b.yaml").write_text("services: {web: {image: x}}")
    (tmp_path / "c.md").write_text("text")
    assert codes(judged(tmp_path)) == {"FSDP-SHARDING"}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1", 1),
        ("1e-6", 1e-6),
        ("hf", "hf"),
        ("True", True),
        ("no", False),
        ("010", 8),
        ("/data/x.parquet", "/data/x.parquet"),
        ("12345678901234567890", 12345678901234567890),
        ("[a,b]", ["a", "b"]),
        ("null", None),
        ("a b", "a b"),
        ("'x'", "x"),
        ("[", "["),
        ("", None),
    ],
)
def test_override_values_are_read_as_hydra_reads_them(word: str, value: object) -> None:
    assert override_value(word) == value


@given(st.text(alphabet="aeEnoNyYtrufls_/.-019", min_size=1, max_size=8))
def test_the_short_way_reads_what_the_parser_reads(text: str) -> None:
    assert override_value(text) == override_value(f"[{text}]")[0]


def test_paths_are_not_overrides() -> None:
    assert [w for w in ("a.b=1", "+x=1", "++x.y=", "run.yaml", "a=b", "/tmp/a.b=c/d", "x y=1") if certain(w)] == [
        "a.b=1", "+x=1", "++x.y=",
    ]  # fmt: skip


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"\xff\xfe",
        bytes(range(256)) * 8,
        b"a: [" * 3000,
        b"[" * 100_000,
        b"{a: " * 60 + b"1" + b"}" * 60,
        b"- " * 50_000,
        BOMB.encode(),
        b"a: *nowhere",
        b"x" * 200_000,
        b"!!python/object/apply:os.system [echo]",
        b"a: !!python/name:os.system",
        b"? [a]\n: b",
        b"a: 1\n---\nb: 2",
        b"fsdp: {? {a: 1} : 2}",
        b"a: !!int x",
        b"\x1b[2J: 1",
        b"&a [*a]",
        b"fsdp: &f {x: *f}",
        b"0x: 1",
        b"1: 2",
        b"a: 2024-99-99",
        b"<<: 1",
        b"fsdp: {<<: [1]}",
        b"a: !!float .",
    ],
)
def test_hostile_files_are_findings(tmp_path: Path, data: bytes) -> None:
    for name in ("x.yaml", "x.sh", "x.json"):
        file = tmp_path / name
        file.write_bytes(data)
        for finding in judged(file):
            assert "\x1b" not in f"{finding.subject}{finding.message}{finding.measured}{finding.fix}"


def test_what_cannot_be_opened_is_a_finding(tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"a: 1\n" * 100_000)
    for path in (loop, pipe, large, tmp_path / "none.yaml", Path("/proc/self/mem"), Path("/dev/zero")):
        assert codes(judged(path)) == {"FSDP-UNREADABLE"}, path


def test_what_is_something_else_is_said_to_be(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text("services: {web: {image: x}}")
    assert codes(judged(file)) == {"FSDP-UNKNOWN"}
    data = "data: {path: t.parquet, prompt_key: prompt, "
    file.write_text(data + "response_key: responses, data_source_key: data_source, reward_model_key: reward_model}")
    assert codes(judged(file)) == {"FSDP-NO-TRAINING"}
    file.write_text(data + "n_samples: 5, output_path: o.parquet}\nmodel: {path: m}\nrollout: {name: vllm}")
    assert codes(judged(file)) == {"FSDP-NO-TRAINING"}
    file.write_text("fsdp: {}")
    assert judged(file) == []


def test_python_objects_are_never_made(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"fsdp: {{a: !!python/object/apply:os.mkdir [{tmp_path}/made]}}")
    judged(file)
    assert not (tmp_path / "made").exists()


def test_tags_and_dates_stay_text(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: !env HOME\nb: 2024-01-31\nc: !!python/name:os.system x\n")
    assert [setting.value for setting in load(file)[0].settings.values()] == ["HOME", "2024-01-31", "x"]


def test_a_key_twice_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("data: {seed: 1, seed: 2}\n")
    assert load(file)[0].repeated == ["x.yaml:1 data.seed"]


WORDS = st.sampled_from(
    [
        "fsdp",
        "order",
        "wrap",
        "load",
        "optimizer",
        "use_orig_params",
        "true",
        "null",
        "mixed",
        "bf16",
        "algorithm",
        "gae",
        "1",
        "actor_rollout_ref.rollout.n",
        "data.shuffle",
        "model.lora_rank",
        "param_dtypes",
        "requires_grad",
        "[]",
        "{}",
        "${a}",
        "-1",
    ]
)
TREES = st.recursive(
    WORDS | st.none() | st.integers() | st.booleans() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(tree=st.dictionaries(WORDS, TREES, max_size=6))
def test_any_tree_is_judged_without_an_error(tmp_path: Path, tree: dict[str, object]) -> None:
    import yaml

    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(tree))
    judged(file)


@given(data=st.binary(max_size=300))
def test_any_bytes_are_judged_without_an_error(tmp_path: Path, data: bytes) -> None:
    for name in ("t.yaml", "t.sh"):
        file = tmp_path / name
        file.write_bytes(data)
        judged(file)


@given(text=st.text(max_size=80))
def test_any_argument_is_judged_without_an_error(text: str) -> None:
    judged(f"a.b={text}", f"algorithm.adv_estimator={text}", text)


def test_unreadable_says_why(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="No such file"):
        load(tmp_path / "none.yaml")
