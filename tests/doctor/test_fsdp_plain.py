"""Plain descriptions of FSDP: every rule with one that breaks it and one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from verldoctor.context import Context
from verldoctor.fsdp import check

if TYPE_CHECKING:
    from verldoctor.finding import Finding

CASES = Path(__file__).with_name("cases") / "fsdp"
GOOD = "order: [load, wrap, move, optimizer]\n"
MODULES = "model_modules: [LlamaDecoderLayer]\nfsdp: {wrap_policy: "
FSDP = "fsdp: {sharding_strategy: FULL_SHARD, "

# code: (text that breaks the rule, text that does not)
PAIRS = {
    "FSDP-OPTIMIZER-EARLY": [
        ("order: [load, optimizer, wrap]\nfsdp: {}", "order: [load, optimizer, wrap]\nfsdp: {use_orig_params: true}"),
        ("steps: load -> optim -> fsdp\nfsdp: {}", "steps: load -> fsdp -> optim\nfsdp: {}"),
        ("order: [load, AdamW, fully_shard]\nfsdp: {}", "order: [load, fully_shard, optimiser, to_gpu]\nfsdp: {}"),
    ],
    "FSDP-OFFLOAD-MOVE": [
        (GOOD + FSDP + "cpu_offload: true}", "order: [load, wrap, optimizer]\n" + FSDP + "cpu_offload: true}"),
        (GOOD + "fsdp: {cpu_offload: {offload_params: true}}", GOOD + "fsdp: {cpu_offload: {offload_params: false}}"),
    ],
    "FSDP-LOAD-LATE": [("order: [wrap, load, optimizer]\nfsdp: {}", GOOD + "fsdp: {}")],
    "FSDP-COMPILE": [
        ("order: [load, wrap, compile]\nfsdp: {}", "order: [load, wrap, compile]\nfsdp: {use_orig_params: true}"),
        ("compile: true\nfsdp: {}", 'compile: true\nfsdp: {}\nenv: {TORCH_COMPILE_DISABLE: "0"}'),
    ],
    "FSDP-COMPILE-EARLY": [
        (
            "order: [load, compile_submodules, wrap]\nfsdp: {use_orig_params: true}",
            "order: [load, wrap, compile]\nfsdp: {use_orig_params: true}",
        )
    ],
    "FSDP-REQUIRES-GRAD": [
        ("requires_grad: mixed\nfsdp: {}", "requires_grad: mixed\nfsdp: {use_orig_params: true}"),
        ("lora: {r: 8}\nfsdp: {}", "lora: {r: 8}\nfsdp: {wrap_policy: {is_lora: true}}"),
        ("requires_grad: {base: false, lora: true}\nfsdp: {}", "requires_grad: {base: true, lora: true}\nfsdp: {}"),
        ("order: [load, lora, wrap]\nfsdp: {}", "order: [load, lora, wrap]\nfsdp: {use_orig_params: true}"),
        ("lora: {r: 8, alpha: 16}\nfsdp: {}", "lora: {r: 0, alpha: 16}\nfsdp: {}"),
        ("lora_rank: 8\nfsdp: {}", "lora_rank: 0\nfsdp: {}"),
        ("frozen: [embed_tokens]\nfsdp: {}", "frozen: []\nfsdp: {}"),
        ("freeze: vision\nfsdp: {}", "freeze: none\nfsdp: {}"),
        ("requires_grad: [true, false]\nfsdp: {}", "requires_grad: [true, true]\nfsdp: {}"),
    ],
    "FSDP-PARAM-DTYPES": [
        ("param_dtypes: [bf16, fp32]\nfsdp: {}", "param_dtypes: [bf16, torch.bfloat16]\nfsdp: {}"),
        (
            "param_dtypes: {lm_head: fp32, layers: bf16}\nfsdp: {}",
            "param_dtypes: {head: fp32, body: float32}\nfsdp: {}",
        ),
        ("param_dtypes: mixed\nfsdp: {}", "param_dtypes: fp32\nfsdp: {}"),
        ("param_dtypes: bf16, fp16\nfsdp: {}", "param_dtypes: bf16\nfsdp: {}"),
    ],
    "FSDP-WRAP-CLASS": [
        (
            MODULES + "{transformer_layer_cls_to_wrap: [MistralDecoderLayer]}}",
            MODULES + "{transformer_layer_cls_to_wrap: [LlamaDecoderLayer]}}",
        ),
        (
            "model: tiny-llama\nfsdp: {transformer_layer_cls_to_wrap: LLaMADecoderLayer}",
            "model: tiny-llama\nfsdp: {transformer_layer_cls_to_wrap: LlamaDecoderLayer}",
        ),
        (
            "model: {model_type: qwen2}\nfsdp_config: {fsdp_transformer_layer_cls_to_wrap: GPT2Block}",
            "model: {model_type: gpt2}\nfsdp_config: {fsdp_transformer_layer_cls_to_wrap: 'GPT2Block,Embedding'}",
        ),
    ],
    "FSDP-SHARDING": [
        ("fsdp: {sharding_strategy: ZERO3}", "fsdp: {sharding_strategy: SHARD_GRAD_OP}"),
        ("fsdp: {sharding_strategy: full_shard}", "fsdp: {sharding_strategy: ShardingStrategy.FULL_SHARD}"),
        ("fsdp_config: {fsdp_sharding_strategy: 9}", "fsdp_config: {fsdp_sharding_strategy: 1}"),
    ],
    "FSDP-NO-SHARD": [("fsdp: {sharding_strategy: NO_SHARD}", "fsdp: {sharding_strategy: HYBRID_SHARD}")],
    "FSDP-ENUM": [
        ("fsdp: {backward_prefetch: PRE}", "fsdp: {backward_prefetch: BACKWARD_PRE}"),
        ("fsdp: {state_dict_type: SHARDED}", "fsdp: {state_dict_type: SHARDED_STATE_DICT}"),
    ],
    "FSDP-BACKEND": [("backend: ncc\nfsdp: {}", "backend: cpu:gloo,cuda:nccl\nfsdp: {}")],
    "FSDP-BACKEND-CPU": [("backend: nccl\ndevice: cpu\nfsdp: {}", "backend: gloo\ndevice: cpu\nfsdp: {}")],
    "FSDP-DTYPE": [
        (
            "fsdp: {mixed_precision: {param_dtype: bf32, reduce_dtype: fp32}}",
            "fsdp: {mixed_precision: {param_dtype: torch.bfloat16, reduce_dtype: fp32}}",
        )
    ],
    "FSDP-FP16": [
        (
            "fsdp: {mixed_precision: {param_dtype: fp16, reduce_dtype: fp32}}",
            "grad_scaler: ShardedGradScaler\nfsdp: {mixed_precision: {param_dtype: fp16, reduce_dtype: fp32}}",
        )
    ],
    "FSDP-REDUCE": [
        ("fsdp: {mixed_precision: {param_dtype: bf16}}", "fsdp: {mixed_precision: {param_dtype: fp32}}"),
        (
            "fsdp: {mixed_precision: {param_dtype: bf16, reduce_dtype: bf16}}",
            "fsdp: {mixed_precision: {param_dtype: bf16, reduce_dtype: fp32}}",
        ),
    ],
    "FSDP-SYNC": [
        (GOOD + "fsdp: {sync_module_states: true}", GOOD + "fsdp: {sync_module_states: true, device_id: 0}"),
        (
            "device: cpu\nfsdp: {sync_module_states: true}",
            "order: [load, move, wrap]\nfsdp: {sync_module_states: true}",
        ),
    ],
    "FSDP-CLIP": [("grad_clip: torch.nn.utils.clip_grad_norm_\nfsdp: {}", "grad_clip: 1.0\nfsdp: {}")],
    "FSDP-SUMMON-GRADS": [
        (
            "summon_full_params: {with_grads: true}\nfsdp: {}",
            "summon_full_params: {with_grads: true}\nfsdp: {use_orig_params: true}",
        )
    ],
    "FSDP-STATE-DICT-CPU": [
        (
            "device: cpu\noffload_to_cpu: true\nfsdp: {state_dict_type: FULL_STATE_DICT}",
            "device: cuda\noffload_to_cpu: true\nfsdp: {state_dict_type: FULL_STATE_DICT}",
        )
    ],
    "FSDP-NOT-BOOLEAN": [("fsdp: {use_orig_params: maybe}", "fsdp: {use_orig_params: 'true'}")],
    "FSDP-ARGUMENT": [("fsdp: {use_original_params: true}", "fsdp: {limit_all_gathers: true}")],
    "FSDP-NAME": [
        ("fsdp: {}\ntrainer: verl.trainer.fsdp_trainer", "fsdp: {}\ntrainer: verl.trainer.fsdp_sft_trainer"),
        ("fsdp: {}\nclass: verl.FSDPConfig", "fsdp: {}\nclass: verl.FSDPEngineConfig"),
    ],
    "FSDP-REPEATED": [("fsdp: {}\nfsdp: {}", "fsdp: {}\n")],
}


def context(**stack: str) -> Context:
    return Context(env={}, stack={"torch": "2.3.1+cu121", "transformers": "4.41.2", "verl": "0.2.0.post2", **stack})


def judged(tmp_path: Path, text: str, name: str = "plain.yaml") -> list[Finding]:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return check([file], context())


def codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings}


@pytest.mark.parametrize(("code", "bad", "good"), [(code, *pair) for code, pairs in PAIRS.items() for pair in pairs])
def test_each_rule_both_ways(tmp_path: Path, code: str, bad: str, good: str) -> None:
    assert code in codes(judged(tmp_path, bad))
    assert code not in codes(judged(tmp_path, good))


@pytest.mark.parametrize(
    ("name", "must"),
    [
        ("f1", ["optimizer", "use_orig_params"]),
        ("f2", ["requires_grad", "use_orig_params"]),
        ("f3", ["dtype"]),
        ("f4", ["Qwen2DecoderLayer"]),
    ],
)
def test_reported_faults_are_named(name: str, must: list[str]) -> None:
    findings = check([CASES / f"{name}.yaml"], context())
    said = " ".join(f"{f.code} {f.subject} {f.message} {f.measured} {f.fix}" for f in findings).lower()
    assert [f for f in findings if f.severity == "fail"]
    assert [word for word in must if word.lower() not in said] == []


def test_a_good_description_gets_no_word() -> None:
    assert check([CASES / "f5.yaml"], context()) == []


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"])
@pytest.mark.parametrize("original", ["true", "false"])
def test_what_guides_refute_is_not_repeated(tmp_path: Path, strategy: str, original: str) -> None:
    # SHARD_GRAD_OP with mixed precision does not hang, and use_orig_params may be either: FACTS
    text = f"{GOOD}fsdp: {{sharding_strategy: {strategy}, use_orig_params: {original}, "
    assert judged(tmp_path, text + "mixed_precision: {param_dtype: bf16, reduce_dtype: fp32}}") == []


def test_compile_is_not_blamed_where_the_process_disables_it(tmp_path: Path) -> None:
    file = tmp_path / "plain.yaml"
    file.write_text("compile: true\nfsdp: {}")
    image = Context(env={"TORCH_COMPILE_DISABLE": "1"}, stack=context().stack)
    assert "FSDP-COMPILE" in codes(check([file], context()))
    assert check([file], image) == []


def test_the_place_is_file_and_line(tmp_path: Path) -> None:
    (finding,) = judged(tmp_path, "# first\nfsdp:\n  sharding_strategy: ZERO3\n")
    assert finding.subject == "plain.yaml:3 fsdp.sharding_strategy"
    assert finding.right == "FULL_SHARD"
