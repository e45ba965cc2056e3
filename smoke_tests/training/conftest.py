"""Skip where there is no verl; patch what hard-codes CUDA while these tests run, and say in the report what was."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

from smoke import models, patches
from smoke.documents import NO_VERL
from smoke.world import World

IMAGE = "/opt/verlstack"  # the suite lies there in an image of ours, each of which has verl


@pytest.fixture(autouse=True)
def patched(world: World, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[str]:
    """The names of the patches in force."""
    if importlib.util.find_spec("verl") is None:
        if Path(__file__).is_relative_to(IMAGE):
            pytest.fail("this image has no verl: it is not what it claims to be")
        pytest.skip(NO_VERL)
    needed = patches.applicable(on_gpu=world.on_gpu)
    # A stand-in that an earlier test left in sys.modules is still a stand-in.
    patches.apply(needed, monkeypatch.setattr)
    names = [patch.name for patch in needed]
    request.node.user_properties.append(("patches", names))
    return names


@pytest.fixture
def as_verl_wraps(world: World):
    """A function from a model to the FSDP module that verl's actor trains (fsdp_workers.py:249), but in fp32."""
    from verl.utils.fsdp_utils import get_fsdp_wrap_policy

    def wrap(model: torch.nn.Module, *, blocks: bool = True) -> FullyShardedDataParallel:
        policy = get_fsdp_wrap_policy(model, config=None) if blocks else None
        return FullyShardedDataParallel(
            model, auto_wrap_policy=policy, use_orig_params=False, device_id=world.device, sync_module_states=True
        )

    return wrap


@pytest.fixture
def shared_folder(tmp_path):
    """One folder for all ranks: rank 0's; on nodes without a common file system, a folder of that name on each."""
    name = [str(tmp_path)]
    dist.broadcast_object_list(name)
    folder = Path(name[0])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def responses(world: World):
    """Eight prompts with responses as verl's trainer hands them to the actor, and this rank's part of them."""
    from verl import DataProto

    prompt, answer, rows = 6, 5, 8
    ids = models.tokens(rows=rows, length=prompt + answer, seed=3)
    mask = torch.ones_like(ids)
    mask[0, :2] = mask[5, :3] = 0  # left padding, as in verl's prompts
    mask[1, -2:] = mask[6, -1:] = 0  # and responses that end early
    ids = ids * mask  # PAD is 0
    tensors = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp_min(0),
        "responses": ids[:, prompt:],
        "advantages": torch.randn(rows, 1, generator=torch.Generator().manual_seed(1)).expand(rows, answer).clone(),
    }
    everything = DataProto.from_dict(tensors)
    everything.meta_info = {"temperature": 0.7, "micro_batch_size": 2, "use_dynamic_bsz": False}
    return everything, everything.chunk(world.size)[world.rank]
