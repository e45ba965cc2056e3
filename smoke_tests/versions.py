"""Import what verl's FSDP training path imports, then print the versions of torch, transformers and verl."""

import importlib
import importlib.util

# Every module that a training run loads before it touches a GPU. verl.workers.actor and the critic are not among them:
# they import flash_attn at the top, which an `-sdpa` image does not have.
MODULES = (
    "torch",
    "torch.distributed.fsdp",
    "transformers",
    "tensordict",
    "datasets",
    "peft",
    "accelerate",
    "ray",
    "hydra",
    "wandb",
    "verl",
    "verl.protocol",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.ray_trainer",
    "verl.utils.fsdp_utils",
    "verl.utils.checkpoint.fsdp_checkpoint_manager",
)
WORKERS = ("verl.workers.fsdp_workers", "verl.workers.engine_workers")  # of verl v0.2, and of v0.9


def main() -> None:
    """Print `TORCH TRANSFORMERS VERL`; an import that fails is the traceback one wants to see."""
    for name in (*MODULES, WORKERS[0] if importlib.util.find_spec(WORKERS[0]) else WORKERS[1]):
        importlib.import_module(name)
    versions = (importlib.import_module(name).__version__ for name in ("torch", "transformers", "verl"))
    print(*versions)


if __name__ == "__main__":
    main()
