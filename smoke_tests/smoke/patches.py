"""What verl v0.2 hard-codes for CUDA, NCCL and flash-attn, replaced by name where this machine or image lacks it.

Each patch names the place that needs it; the report lists those that were applied. On a GPU with flash-attn there are
none. A patch changes what verl finds when it looks a name up, so all must be applied before verl is imported.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as meshes
import torch.distributed.fsdp._init_utils as fsdp_init

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One replacement.

    Attributes:
        name: what the report calls it.
        where: the lines of verl (v0.2.0.post2) or torch that need it.
        needs: `cpu` when it stands in for CUDA, `flash-attn` when it stands in for that package.
        change: does it through the setter it is given.
    """

    name: str
    where: str
    needs: str
    change: Callable[[Callable[[Any, str, Any], None]], None]


def applicable(*, on_gpu: bool) -> list[Patch]:
    """The patches that this machine and this image make necessary."""
    lacking = set() if on_gpu else {"cpu"}
    try:
        metadata.version("flash-attn")  # not find_spec: it finds the stand-in below once that was put in place
    except metadata.PackageNotFoundError:
        lacking.add("flash-attn")
    return [patch for patch in PATCHES if patch.needs in lacking]


def apply(patches: list[Patch], setter: Callable[[Any, str, Any], None] = setattr) -> None:
    """Make the changes; a test passes `monkeypatch.setattr`, so that they end with it."""
    for patch in patches:
        patch.change(setter)


def _cuda_calls(put: Callable[[Any, str, Any], None]) -> None:
    put(torch.cuda, "current_device", lambda: torch.device("cpu"))
    put(torch.cuda, "set_device", lambda *_: None)
    put(torch.cuda, "get_device_name", lambda *_: "cpu")
    put(torch.cuda, "get_rng_state", lambda *_: torch.zeros(1, dtype=torch.uint8))
    put(torch.cuda, "set_rng_state", lambda *_: None)


def _tensors_stay(put: Callable[[Any, str, Any], None]) -> None:
    import tensordict

    put(torch.Tensor, "cuda", lambda self, *_, **__: self)
    put(torch.Tensor, "pin_memory", lambda self, *_, **__: self)
    put(tensordict.TensorDict, "cuda", lambda self, *_, **__: self)
    move = tensordict.TensorDict.to

    def to(self: Any, *places: Any, **more: Any) -> Any:
        return move(self, *("cpu" if str(place).startswith("cuda") else place for place in places), **more)

    put(tensordict.TensorDict, "to", to)


def _meshes_of_cpus(put: Callable[[Any, str, Any], None]) -> None:
    make = meshes.init_device_mesh
    put(meshes, "init_device_mesh", lambda kind, *a, **k: make("cpu" if kind == "cuda" else kind, *a, **k))


def _gloo_for_nccl(put: Callable[[Any, str, Any], None]) -> None:
    start = dist.init_process_group

    def init_process_group(backend: str | None = None, *a: Any, **k: Any) -> None:
        start("gloo" if backend == "nccl" else backend, *a, **k)

    put(dist, "init_process_group", init_process_group)


def _average_over_gloo(put: Callable[[Any, str, Any], None]) -> None:
    reduce = dist.all_reduce

    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, *a: Any, **k: Any) -> Any:
        if op != dist.ReduceOp.AVG:
            return reduce(tensor, op, *a, **k)
        done = reduce(tensor, dist.ReduceOp.SUM, *a, **k)
        tensor /= dist.get_world_size()
        return done

    put(dist, "all_reduce", all_reduce)


def _sync_on_cpu(put: Callable[[Any, str, Any], None]) -> None:
    put(fsdp_init, "_check_module_states_for_sync_module_states", lambda *_: None)


def _sdpa(put: Callable[[Any, str, Any], None]) -> None:
    import transformers

    for loader in (transformers.AutoModelForCausalLM, transformers.AutoModelForTokenClassification):
        put(loader, "from_pretrained", staticmethod(_without_flash_attention(loader.from_pretrained)))


def _without_flash_attention(load: Callable[..., Any]) -> Callable[..., Any]:
    def from_pretrained(*a: Any, **k: Any) -> Any:
        if k.get("attn_implementation") == "flash_attention_2":
            k["attn_implementation"] = "sdpa"
        return load(*a, **k)

    return from_pretrained


def _padding_functions(put: Callable[[Any, str, Any], None]) -> None:
    """Names only: without remove-padding, verl imports these four and calls none of them."""
    del put  # sys.modules keeps them; nothing else in the suite imports flash_attn
    package, inner = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.bert_padding")
    for module in (package, inner):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=module is package)
        sys.modules[module.__name__] = module
    package.__path__ = []
    for name in ("pad_input", "unpad_input", "rearrange", "index_first_axis"):
        setattr(inner, name, _absent(name))


def _absent(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"flash_attn.bert_padding.{name}: flash-attn is not in this image")

    return refuse


PATCHES = (
    Patch(
        name="torch.cuda's current device, name and random state answer for the CPU",
        where="fsdp_workers.py:255, utils/distributed.py:27, flops_counter.py:33, checkpoint_manager.py:99",
        needs="cpu",
        change=_cuda_calls,
    ),
    Patch(
        name="tensors asked to go to CUDA or to pinned memory stay",
        where="dp_actor.py:236 (data.cuda()), fsdp_workers.py:410, torch's CPUOffload of the reference policy",
        needs="cpu",
        change=_tensors_stay,
    ),
    Patch(
        name="a device mesh of 'cuda' is one of 'cpu'", where="fsdp_workers.py:50", needs="cpu", change=_meshes_of_cpus
    ),
    Patch(
        name="a process group over nccl is one over gloo",
        where="fsdp_workers.py:83",
        needs="cpu",
        change=_gloo_for_nccl,
    ),
    Patch(
        name="ReduceOp.AVG is a sum, divided",
        where="fsdp_sft_trainer.py:401; gloo has no AVG",
        needs="cpu",
        change=_average_over_gloo,
    ),
    Patch(
        name="FSDP's demand that sync_module_states has parameters on a GPU is lifted",
        where="torch/distributed/fsdp/_init_utils.py; the broadcast itself works over gloo",
        needs="cpu",
        change=_sync_on_cpu,
    ),
    Patch(
        name="attn_implementation='flash_attention_2' becomes 'sdpa'",
        where="fsdp_workers.py:202, fsdp_sft_trainer.py:213",
        needs="flash-attn",
        change=_sdpa,
    ),
    Patch(
        name="flash_attn.bert_padding holds four names that refuse to be called",
        where="dp_actor.py:34 and fsdp_sft_trainer.py:39 import them at the top",
        needs="flash-attn",
        change=_padding_functions,
    ),
)
