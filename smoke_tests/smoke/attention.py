"""Flash-attn's two functions computed by torch on the CPU, in the place where old transformers look for them.

Until 4.47 transformers packs rows for flash-attn alone (classes `…FlashAttention2`); what it hands over can be seen
without flash-attn, because only the arithmetic behind the two functions is replaced.
"""

# ruff: noqa: SLF001  transformers has no public way to say it

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **options: Any) -> torch.Tensor:
    """Attention of (rows, length, heads, width), with fewer heads of keys than of queries where they share them."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
    how = {"is_causal": options.get("causal", False), "scale": options.get("softmax_scale")}
    return torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, **how).transpose(1, 2)


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, *_: Any, **options: Any
) -> torch.Tensor:
    ends = cu_seqlens_q.tolist()
    rows = [slice(start, end) for start, end in itertools.pairwise(ends)]
    return torch.cat([flash_attn_func(q[None, r], k[None, r], v[None, r], **options)[0] for r in rows])


def use_in(model: torch.nn.Module, put: Callable[[Any, str, Any], None]) -> bool:
    """Make a model attend through these functions as it would through flash-attn; False where it has no such class.

    Args:
        model: of transformers, made with another attention.
        put: `setattr`, or one that is undone.
    """
    module = sys.modules[type(model).__module__]
    flash = getattr(module, type(model).__name__.removesuffix("ForCausalLM") + "FlashAttention2", None)
    if flash is None:
        return False
    places = [module]
    if importlib.util.find_spec("transformers.modeling_flash_attention_utils"):  # from 4.43
        common = importlib.import_module("transformers.modeling_flash_attention_utils")
        places.append(common)
        put(module, "_flash_attention_forward", common._flash_attention_forward)
    for place in places:
        put(place, "flash_attn_func", flash_attn_func)
        put(place, "flash_attn_varlen_func", flash_attn_varlen_func)
        put(place, "_flash_supports_window_size", False)  # noqa: FBT003
        put(place, "flash_241", False)  # noqa: FBT003
    for layer in model.model.layers:
        layer.self_attn.__class__ = flash
        layer.self_attn._flash_attn_uses_top_left_mask = False
    model.config._attn_implementation = "flash_attention_2"
    for part in (model.model, *model.model.layers):
        if hasattr(part, "_attn_implementation"):
            part._attn_implementation = "flash_attention_2"
    model.model._use_flash_attention_2, model.model._use_sdpa = True, False
    return True
