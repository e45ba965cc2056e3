"""verl's own configuration: every rule with a configuration that breaks it and one that does not, on two stacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verldoctor.context import Context
from verldoctor.finding import Finding, rules
from verldoctor.fsdp import check
from verldoctor.versions import applies, has, release, table

CASES = Path(__file__).with_name("cases") / "fsdp"
CU121 = {"torch": "2.3.1+cu121", "transformers": "4.41.2", "verl": "0.2.0.post2"}
VLLM = {"torch": "2.4.0+cu121", "transformers": "4.47.1", "verl": "0.2.0.post2", "vllm": "0.6.3"}
LATER = {"torch": "2.11.0", "transformers": "5.9.0", "verl": "0.9.1", "vllm": "0.24.0"}

RUNS = {  # overrides that ran on the default pins (shared reference), as one configuration
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.model.path": "tiny-llama",
    "actor_rollout_ref.model.use_remove_padding": False,
    "actor_rollout_ref.rollout.name": "hf",
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 1,
    "data.shuffle": False,
    "data.train_batch_size": 4,
    "trainer.n_gpus_per_node": 2,
    "trainer.nnodes": 1,
    "trainer.save_freq": 1,
    "trainer.logger": ["console"],
}
SFT = {
    "data.train_files": "sft.parquet",
    "data.prompt_key": "extra_info",
    "data.prompt_dict_keys": ["question"],
    "data.response_key": "extra_info",
    "data.response_dict_keys": ["answer"],
    "model.partial_pretrain": "tiny-llama",
}
A, R, C, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic", "reward_model"
WRAP = f"{A}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap"
ACTOR_MODEL = "actor_rollout_ref.model"
DEEPSEEK = {f"{ACTOR_MODEL}.path": "a/DeepSeek-V3", f"{ACTOR_MODEL}.trust_remote_code": True}
GPT2 = {"actor_rollout_ref.model.path": "gpt2"}
PAD = {"actor_rollout_ref.model.use_remove_padding": True}
SP = {f"{A}.ulysses_sequence_parallel_size": 2, **PAD}
V = {f"{R}.name": "vllm"}
REWARD = {
    f"{M}.enable": True,
    f"{M}.micro_batch_size_per_gpu": 1,
    f"{M}.model.path": "gpt2",
    "data.return_raw_chat": True,
}

# code: (base, stack, changes that break the rule, changes that do not)
PAIRS = {
    "FSDP-MODEL-TYPE": [
        (RUNS, CU121, {f"{ACTOR_MODEL}.path": "Qwen/Qwen3-8B"}, {f"{ACTOR_MODEL}.path": "Qwen/Qwen2.5-7B"}),
        (RUNS, CU121, {f"{ACTOR_MODEL}.path": "a/DeepSeek-V3"}, DEEPSEEK),
        (SFT, CU121, {"model.partial_pretrain": "google/gemma-2-2b"}, {"model.partial_pretrain": "google/gemma-2b"}),
    ],
    "FSDP-CRITIC": [(RUNS, CU121, {"algorithm.adv_estimator": "gae"}, {"algorithm.adv_estimator": "gae", **GPT2})],
    "FSDP-CRITIC-UNSURE": [
        (
            RUNS,
            CU121,
            {"algorithm.adv_estimator": "gae", "actor_rollout_ref.model.path": "x"},
            {"algorithm.adv_estimator": "gae", **GPT2},
        )
    ],
    "FSDP-REWARD-MODEL": [(RUNS, CU121, {**REWARD, f"{M}.model.path": "FsfairX-LLaMA3-RM"}, REWARD)],
    "FSDP-RM-TOKENIZER": [(RUNS, CU121, {**REWARD, f"{M}.model.input_tokenizer": None}, REWARD)],
    "FSDP-RM-RAW-CHAT": [(RUNS, CU121, {**REWARD, "data.return_raw_chat": False}, REWARD)],
    "FSDP-REMOVE-PADDING": [(RUNS, CU121, PAD, {}), (RUNS, {**CU121, "transformers": "4.43.4"}, PAD, {})],
    "FSDP-PADDING-TYPE": [(RUNS, VLLM, {**PAD, **GPT2}, PAD)],
    "FSDP-ULYSSES": [(RUNS, CU121, SP, PAD)],
    "FSDP-ULYSSES-PADDING": [(RUNS, VLLM, {f"{A}.ulysses_sequence_parallel_size": 2}, SP)],
    "FSDP-ULYSSES-TYPE": [(RUNS, VLLM, {**SP, "actor_rollout_ref.model.path": "mistral-7b"}, SP)],
    "FSDP-SHUFFLE-SAVE": [
        (RUNS, CU121, {"data.shuffle": True}, {"data.shuffle": True, "trainer.save_freq": -1}),
        (RUNS, CU121, {"data.shuffle": "true"}, {}),
    ],
    "FSDP-ROLLOUT-N": [
        (RUNS, CU121, {f"{R}.n": 2, f"{A}.strategy": "fsdp"}, {f"{R}.n": 1}),
        (RUNS, CU121, {f"{R}.n": "4"}, {f"{R}.n": "1"}),
    ],
    "FSDP-ROLLOUT-NAME": [(RUNS, CU121, {f"{R}.name": "sglang"}, {f"{R}.name": "$ROLLOUT"})],
    "FSDP-VLLM-ABSENT": [(RUNS, CU121, V, {})],
    "FSDP-VLLM-VERSION": [(RUNS, {**VLLM, "vllm": "0.6.4"}, V, {})],
    "FSDP-VLLM-EAGER": [(RUNS, VLLM, {**V, f"{R}.enforce_eager": False}, V)],
    "FSDP-ADV-ESTIMATOR": [(RUNS, CU121, {"algorithm.adv_estimator": "rloo"}, {"algorithm.adv_estimator": "remax"})],
    "FSDP-HYBRID-ENGINE": [
        (RUNS, CU121, {"actor_rollout_ref.hybrid_engine": False}, {"actor_rollout_ref.hybrid_engine": True})
    ],
    "FSDP-STRATEGY": [(RUNS, CU121, {f"{A}.strategy": "fsdp2", "critic.strategy": "fsdp2"}, {f"{A}.strategy": "fsdp"})],
    "FSDP-STRATEGY-DIFFERS": [(RUNS, CU121, {"critic.strategy": "megatron"}, {"critic.strategy": "fsdp"})],
    "FSDP-HSDP": [(RUNS, CU121, {f"{A}.fsdp_config.fsdp_size": 1}, {f"{A}.fsdp_config.fsdp_size": 2})],
    "FSDP-TENSOR-PARALLEL": [
        (RUNS, CU121, {"trainer.n_gpus_per_node": 1}, {f"{R}.tensor_model_parallel_size": 1}),
        (RUNS, CU121, {f"{R}.tensor_model_parallel_size": 4}, {}),
    ],
    "FSDP-BATCH": [(RUNS, CU121, {"data.train_batch_size": 5}, {"data.train_batch_size": 6})],
    "FSDP-MICRO-BATCH": [
        (RUNS, CU121, {f"{A}.ppo_micro_batch_size": 4}, {f"{A}.ppo_micro_batch_size": None}),
        (
            RUNS,
            CU121,
            {f"{A}.ppo_micro_batch_size": None, f"{A}.ppo_micro_batch_size_per_gpu": None},
            {f"{A}.ppo_micro_batch_size_per_gpu": None, f"{A}.use_dynamic_bsz": True},
        ),
    ],
    "FSDP-KL": [
        (RUNS, CU121, {"algorithm.kl_ctrl.type": "adaptive"}, {"algorithm.kl_ctrl.type": "fixed"}),
        (
            RUNS,
            CU121,
            {"algorithm.kl_ctrl.type": "none"},
            {
                "algorithm.kl_ctrl.type": "adaptive",
                "algorithm.kl_ctrl.horizon": 1000,
                "algorithm.kl_ctrl.target_kl": 0.1,
            },
        ),
    ],
    "FSDP-HDFS-RESUME": [
        (
            RUNS,
            CU121,
            {"trainer.default_hdfs_dir": "hdfs://x"},
            {"trainer.default_hdfs_dir": "hdfs://x", "trainer.resume_mode": "disable"},
        )
    ],
    "FSDP-RESUME": [
        (RUNS, CU121, {"trainer.resume_mode": "resume_path"}, {"trainer.resume_mode": "ckpt/global_step_20"})
    ],
    "FSDP-PRECISION": [
        (
            RUNS,
            CU121,
            {f"{A}.fsdp_config.mixed_precision.param_dtype": "torch.bfloat16"},
            {f"{A}.fsdp_config.mixed_precision.param_dtype": "bfloat16"},
        ),
        (RUNS, CU121, {f"{A}.fsdp_config.mixed_precision": "bf16"}, {f"{A}.fsdp_config.mixed_precision": None}),
    ],
    "FSDP-MODEL-DTYPE": [
        (
            RUNS,
            CU121,
            {f"{A}.fsdp_config.model_dtype": "bf16"},
            {"actor_rollout_ref.ref.fsdp_config.model_dtype": "bf16"},
        )
    ],
    "FSDP-WRAP-TEXT": [(RUNS, VLLM, {**V, WRAP: "LlamaDecoderLayer"}, {**V, WRAP: ["LlamaDecoderLayer"]})],
    "FSDP-WRAP-IGNORED": [
        (RUNS, CU121, {WRAP: ["LlamaDecoderLayer"]}, {}),
        (
            RUNS,
            VLLM,
            {**V, WRAP: ["LlamaDecoderLayer"], f"{A}.fsdp_config.wrap_policy.min_num_params": 1},
            {**V, WRAP: ["LlamaDecoderLayer"]},
        ),
        (
            RUNS,
            CU121,
            {f"{M}.model.fsdp_config.wrap_policy.min_num_params": 5},
            {f"{M}.model.fsdp_config.min_num_params": 5},
        ),
    ],
    "FSDP-WRAP-CLASS": [(RUNS, VLLM, {**V, WRAP: ["Qwen2DecoderLayer"]}, {**V, WRAP: ["LlamaDecoderLayer"]})],
    "FSDP-KEY-UNKNOWN": [
        (RUNS, CU121, {f"{A}.ppo_minibatch_size": 4}, {f"{R}.seed": 3}),
        (RUNS, CU121, {"algorithm.use_kl_in_reward": True}, {"actor_rollout_ref.model.override_config.a": 1}),
    ],
    "FSDP-KEY-FIXED": [
        (RUNS, CU121, {f"{A}.fsdp_config.use_orig_params": True}, {f"{A}.fsdp_config.param_offload": True})
    ],
    "FSDP-SFT-KEYS": [(SFT, CU121, {"data.prompt_dict_keys": None}, {})],
    "FSDP-SFT-TEMPLATE": [(SFT, CU121, {"data.chat_template": "x"}, {"data.chat_template": None})],
    "FSDP-SFT-TRUNCATION": [(SFT, CU121, {"data.truncation": "middle"}, {"data.truncation": "left"})],
    "FSDP-SFT-BATCH": [
        (
            SFT,
            CU121,
            {"data.train_batch_size": 6, "data.micro_batch_size_per_gpu": 4},
            {"data.train_batch_size": 8, "data.micro_batch_size_per_gpu": 4},
        )
    ],
    "FSDP-SFT-OFFLOAD": [
        (
            SFT,
            CU121,
            {"model.fsdp_config.offload_params": True},
            {"model.fsdp_config.offload_params": True, "model.fsdp_config.cpu_offload": True},
        )
    ],
    "FSDP-LORA-NO-WRAP": [
        (SFT, CU121, {"model.lora_rank": 8, "model.fsdp_config.wrap_policy.disable": True}, {"model.lora_rank": 8})
    ],
}
ROWS = [(code, *row) for code, rows in PAIRS.items() for row in rows]


def judged(tmp_path: Path, settings: dict[str, object], stack: dict[str, str]) -> list[Finding]:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(settings), encoding="utf-8")  # dotted keys; JSON is YAML
    return check([file], Context(env={}, stack=stack))


def codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings}


@pytest.mark.parametrize(("code", "base", "stack", "bad", "good"), ROWS)
def test_each_rule_both_ways(tmp_path: Path, code: str, base: dict, stack: dict, bad: dict, good: dict) -> None:
    assert code in codes(judged(tmp_path, {**base, **bad}, stack))
    assert code not in codes(judged(tmp_path, {**base, **good}, stack))


def test_reported_faults_are_named() -> None:
    (finding,) = check([CASES / "t1.yaml"], Context(env={}, stack=CU121))
    assert finding.severity == "fail"
    assert "adv_estimator" in finding.message
    assert "critic" in finding.message
    assert "4.42" in finding.message


@pytest.mark.parametrize("stack", [CU121, VLLM])
def test_what_ran_gets_no_word(tmp_path: Path, stack: dict[str, str]) -> None:
    assert check([CASES / "t2.yaml"], Context(env={}, stack=stack)) == []
    assert judged(tmp_path, RUNS, stack) == []
    assert judged(tmp_path, SFT, stack) == []


def test_what_the_default_pins_cannot_do_goes_on_the_second_stack(tmp_path: Path) -> None:
    asked = {
        **RUNS, **SP, **V, "algorithm.adv_estimator": "gae", "data.shuffle": True, f"{R}.n": 4,
        "critic.ppo_micro_batch_size_per_gpu": 1,
    }  # fmt: skip
    on_default = codes(judged(tmp_path, asked, CU121))
    due = {"FSDP-CRITIC", "FSDP-REMOVE-PADDING", "FSDP-ULYSSES", "FSDP-SHUFFLE-SAVE", "FSDP-VLLM-ABSENT"}
    assert due <= on_default
    assert judged(tmp_path, asked, VLLM) == []


@pytest.mark.parametrize(
    ("asked", "stack", "right"),
    [
        ({f"{R}.n": 4}, CU121, "reinforce_plus_plus"),  # hf ignores n
        ({f"{R}.n": 1}, CU121, "reinforce_plus_plus"),
        ({**V, f"{R}.n": 1}, {**VLLM, "transformers": "4.41.2"}, "reinforce_plus_plus"),
        ({**V, f"{R}.n": 4}, {**VLLM, "transformers": "4.41.2"}, "grpo"),
    ],
)
@pytest.mark.parametrize("model", ["tiny-llama", "x"])
def test_no_advice_leads_to_groups_of_one(
    tmp_path: Path, asked: dict[str, object], stack: dict[str, str], right: str, model: str
) -> None:
    """Verl takes a lone response's score for its advantage: grpo then has no baseline."""
    run = {**RUNS, **asked, "algorithm.adv_estimator": "gae", "actor_rollout_ref.model.path": model}
    (finding,) = [f for f in judged(tmp_path, run, stack) if f.code.startswith("FSDP-CRITIC")]
    assert finding.right == right
    assert finding.fix.startswith(f"algorithm.adv_estimator: {right}")
    assert ("no baseline" in finding.fix) == (right != "grpo")


@pytest.mark.parametrize("estimator", ["grpo", "remax"])
def test_one_response_each_is_no_advice_for_grpo_alone(tmp_path: Path, estimator: str) -> None:
    asked = {**RUNS, f"{R}.n": 4, "algorithm.adv_estimator": estimator}
    (finding,) = [f for f in judged(tmp_path, asked, CU121) if f.code == "FSDP-ROLLOUT-N"]
    assert finding.fix.startswith(f"{R}.n: 1")
    assert ("algorithm.adv_estimator: reinforce_plus_plus" in finding.fix) == (estimator == "grpo")


def test_rules_about_verl_0_2_are_silent_on_a_verl_that_nobody_read(tmp_path: Path) -> None:
    asked = {
        **RUNS,
        **SP,
        "data.shuffle": True,
        f"{R}.n": 4,
        "algorithm.adv_estimator": "rloo",
        f"{A}.strategy": "fsdp2",
    }
    assert judged(tmp_path, asked, LATER) == []


def test_keys_of_megatron_are_its_own(tmp_path: Path) -> None:
    asked = {
        **RUNS,
        f"{A}.strategy": "megatron",
        f"{A}.megatron.tensor_model_parallel_size": 4,
        f"{A}.load_weight": True,
    }
    assert codes(judged(tmp_path, asked, CU121)) & {"FSDP-STRATEGY", "FSDP-KEY-UNKNOWN"} == {"FSDP-STRATEGY"}


def test_a_type_comes_from_config_json_before_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "looks-like-llama"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    run = {**RUNS, "algorithm.adv_estimator": "gae", "actor_rollout_ref.model.path": str(folder)}
    assert "FSDP-CRITIC" not in codes(judged(tmp_path, run, CU121))


def test_interpolations_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    shuffle = {**RUNS, "data.shuffle": "${data.return_raw_chat}", "data.return_raw_chat": True}
    assert "FSDP-SHUFFLE-SAVE" in codes(judged(tmp_path, shuffle, CU121))
    circle = {**RUNS, f"{R}.name": "${data.a}", "data.a": f"${{{R}.name}}"}
    assert "FSDP-ROLLOUT-NAME" not in codes(judged(tmp_path, circle, CU121))


def test_every_rule_has_both_ways_and_a_source() -> None:
    from test_fsdp_load import CODES as LOAD
    from test_fsdp_plain import PAIRS as PLAIN

    assert set(rules("fsdp")) == {*PAIRS, *PLAIN, *LOAD}
    assert all(rule.source and rule.fix and rule.why for rule in rules("fsdp").values())


def test_versions_are_compared_without_their_local_part() -> None:
    assert str(release("2.3.1+cu121")) == "2.3.1"
    assert release("nightly") is None
    # 4.47.1 itself is inside verl's bounds for Ulysses, whatever is built into it
    assert not applies("FSDP-ULYSSES", {**VLLM, "transformers": "4.47.1+local"})
    assert applies("FSDP-ULYSSES", {**VLLM, "transformers": "4.48.0"})
    assert not applies("FSDP-ULYSSES", {"verl": "0.2.0"})


def test_what_a_table_cannot_tell_is_not_said() -> None:
    assert has("config", "qwen3", CU121) is False
    assert has("config", "qwen3", {"transformers": "4.51.0"}) is True
    assert has("config", "tomorrow", {"transformers": "6.0"}) is None  # newer than what was looked at
    assert has("config", "qwen3", {}) is None


def test_bounds_are_of_rules_that_exist() -> None:
    known = {*rules("fsdp"), *rules("model")}
    assert set(table("limits")["rules"]) <= known
