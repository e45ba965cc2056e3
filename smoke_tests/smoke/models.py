"""Tiny random Llama and Qwen2 models, their batches, a character tokenizer; nothing is downloaded."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config

KINDS = ("llama", "qwen2")
BLOCKS = 3
VOCABULARY = 131  # a prime, so that no layer's size is a round number
PAD, EOS = 0, 1
_CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config}
# hidden = 54 = 2 * 27: sizes are even (rotary embedding halves a head) but not divisible by 4, so 4 ranks need padding.
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 54,
    "intermediate_size": 77,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": EOS,
}


def tiny(kind: str, *, seed: int = 0, **changes: object) -> PreTrainedModel:
    """A random model on the CPU in fp32, the same on each rank for the same seed.

    Args:
        kind: `llama` or `qwen2` (which has biases).
        seed: of the weights.
        changes: of the configuration, such as `num_hidden_layers`.
    """
    torch.manual_seed(seed)
    config = _CONFIGS[kind](**{**_SIZES, **changes})
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def tokens(*, rows: int, length: int = 12, seed: int = 0) -> torch.Tensor:
    """Token ids, shape (rows, length), int64, without PAD and EOS."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (rows, length), generator=generator)


def loss_of(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The mean next-token loss over `ids`, shape (rows, length); every row counts the same, there is no padding."""
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, with a chat template; its vocabulary fits the models here."""
    words = ["<pad>", "<eos>", "<unk>", *map(chr, range(32, 127)), "\n"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    made.chat_template = (
        "{% for m in messages %}{{ m['role'][0] + ':' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
    )
    return made


def save(folder: Path, kind: str = "llama") -> Path:
    """Write a tiny model and its tokenizer as `from_pretrained` wants them."""
    tiny(kind).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
