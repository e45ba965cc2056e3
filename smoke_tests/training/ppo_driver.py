"""verl's own main_ppo in a Ray cluster of this machine; test_main_ppo.py starts it with hydra overrides."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import hydra
import ray

# find_spec imports nothing: verl must be imported in Ray's workers and here only after the patches are in place
CONFIG = Path(importlib.util.find_spec("verl").submodule_search_locations[0]) / "trainer" / "config"


def digits(solution_str: str, **_: Any) -> float:
    """A reward that a random model gets differently for each answer: the share of digits in it."""
    return sum(c.isdigit() for c in solution_str) / max(1, len(solution_str))


@hydra.main(config_path=str(CONFIG), config_name="ppo_trainer", version_base=None)
def main(config: Any) -> None:
    """Run the trainer; on the CPU Ray is told of GPUs that are not there, because verl asks for one per worker."""
    from verl.trainer.main_ppo import run_ppo

    from smoke.watch import end_with_parent

    end_with_parent()  # and Ray's processes end with this one
    pretend = int(os.environ.get("SMOKE_PRETEND_GPUS", "0"))
    resources = {"num_cpus": 6, "num_gpus": pretend} if pretend else {}
    # 100 MB for objects: an engine gives a container 64 MB of /dev/shm unless told otherwise; Ray then takes /tmp
    ray.init(include_dashboard=False, object_store_memory=100 << 20, **resources)
    run_ppo(config, compute_score=digits)


if __name__ == "__main__":
    main()
