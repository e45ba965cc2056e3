"""Attention on the GPU, forward and backward, against the formula in fp32: SDPA's flash kernel, and flash-attn."""

import importlib.util

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# Inputs of size 1 in bf16 (eps = 7.8e-3); outputs are averages of values, so their error stays near eps / 2 of the
# largest; gradients add some dozens of terms. 2e-2 of the largest element is what flash-attn's own tests allow.
BF16 = 2e-2

# Not run on a GPU yet.
pytestmark = pytest.mark.gpu


def inputs(world):
    """Query, key, value of shape (batch, heads, length, head size), in fp32 with bf16's values."""
    made = torch.randn(3, 2, 4, 128, 64, generator=torch.Generator().manual_seed(0))
    return made.bfloat16().float().to(world.device)


def by_formula(q, k, v):
    """Causal attention in fp32, nothing fused."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    ahead = torch.ones(scores.shape[-2:], device=q.device, dtype=torch.bool).triu(1)
    return scores.masked_fill(ahead, float("-inf")).softmax(-1) @ v


def sdpa(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # the math backend is excluded: it would raise, not fall back
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def flash_attn(q, k, v):
    from flash_attn import flash_attn_func

    return flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=True).transpose(1, 2)


@pytest.mark.parametrize("kernel", [sdpa, flash_attn], ids=["sdpa", "flash-attn"])
def test_forward_and_backward_agree_with_the_formula(kernel, world, figure):
    if kernel is flash_attn and importlib.util.find_spec("flash_attn") is None:
        pytest.skip("flash-attn is not in this image")
    raw = inputs(world)
    exact, low = (raw.clone().to(t).requires_grad_() for t in (torch.float32, torch.bfloat16))
    weights = torch.randn_like(raw[0])
    wanted, found = by_formula(*exact), kernel(*low)
    (wanted * weights).sum().backward()
    (found.float() * weights).sum().backward()
    for name, a, b in (("output", found, wanted), ("gradients", low.grad, exact.grad)):
        off = ((a.float() - b).abs().max() / b.abs().max()).item()
        figure(f"{name}, largest difference relative to the largest element", off)
        assert off <= BF16, name
