"""End to end: main_ppo trains three GRPO steps, is killed after two, resumes, and ends with the very same weights."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from smoke import api, models

HERE = Path(__file__).resolve().parent
RANKS = 2
# The first optimizer step has learning rate 0 (verl/utils/torch_functional.py: min(1, 0 / max(1, warm-up))), so a run
# that is resumed after it would not show whether Adam's state came back.
STEPS = 3
PATIENCE = 240  # seconds for each of three runs; about 25 on a quiet two-core machine


def overrides(folder, out, steps, *more):
    """What differs from verl's defaults: tiny sizes, GRPO (no critic exists for llama here), no shuffling."""
    rollout, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
    return [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder}/rl.parquet",
        f"data.val_files={folder}/rl.parquet",
        "data.shuffle=False",  # True cannot be checkpointed on torch 2.3.1
        "data.train_batch_size=4",
        "data.val_batch_size=4",
        "data.max_prompt_length=24",
        "data.max_response_length=8",
        f"actor_rollout_ref.model.path={folder}/model",
        "actor_rollout_ref.model.use_remove_padding=False",
        f"{rollout}.name=hf",
        f"{rollout}.n=1",
        f"{rollout}.prompt_length=24",
        f"{rollout}.response_length=8",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=1",
        f"{actor}.ppo_mini_batch_size=4",
        f"{actor}.ppo_micro_batch_size_per_gpu=1",
        f"{actor}.optim.lr=1e-3",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1",
        "trainer.logger=[console]",
        f"trainer.n_gpus_per_node={RANKS}",
        "trainer.nnodes=1",
        "trainer.save_freq=1",
        "+trainer.val_before_train=False",  # read by the trainer, but absent from its yaml
        f"trainer.total_training_steps={steps + 1}",  # verl stops before the last: ray_trainer.py:966-968
        f"trainer.default_local_dir={out}",
        *(f"trainer.{word}" for word in more),
    ]


def environment(world):
    """Patches and the seed reach Ray's workers through a sitecustomize on PYTHONPATH; verl v0.2 seeds nothing."""
    paths = [str(HERE.parent / "site"), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": ":".join(filter(None, paths)), "HYDRA_FULL_ERROR": "1", "SMOKE_SEED": "1"}
    if not world.on_gpu:
        env |= {"SMOKE_DEVICE": "cpu", "SMOKE_PRETEND_GPUS": str(RANKS)}
    return env


def run(world, folder, arguments, *, kill_at=None):
    """Run the driver in a session of its own; end it with SIGKILL when a line of its output holds `kill_at`."""
    command = [sys.executable, str(HERE / "ppo_driver.py"), *arguments, f"hydra.run.dir={folder}/hydra"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment(world),
        start_new_session=True,
    )
    lines = []
    end = threading.Timer(PATIENCE, os.killpg, (process.pid, signal.SIGKILL))  # a run that hangs
    end.start()
    try:
        for line in process.stdout:
            lines.append(line.rstrip())
            if kill_at and kill_at in line:
                break
        else:
            process.wait()
    finally:
        end.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # Ray's own processes die with their driver
        process.wait()
        process.stdout.close()
    tail = "\n".join(lines[-30:])
    if kill_at:
        assert process.returncode == -signal.SIGKILL, f"ended by itself before {kill_at!r}:\n{tail}"
    else:
        assert process.returncode == 0, f"main_ppo ended with {process.returncode}:\n{tail}"
    return lines


def weights(folder):
    """The bytes of each tensor in the actor's shards, by rank and name."""
    import torch

    found = {}
    for rank in range(RANKS):
        state = torch.load(folder / "actor" / f"model_world_size_{RANKS}_rank_{rank}.pt", map_location="cpu")
        for name, tensor in state.items():
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            found[rank, name] = local.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return found


def metrics(lines):
    """What the trainer says of the last step's losses, rewards and gradient; times and memory are left out."""
    line = next(line for line in lines if f"step:{STEPS} - " in line)
    pairs = (part.rpartition(":")[::2] for part in line.partition(" - ")[2].split(" - "))
    return {name: float(value) for name, value in pairs if name.startswith(("actor/", "critic/"))}


def prepare(folder):
    """A tiny model and four questions: an epoch is one batch.

    verl v0.2 begins the epoch anew when it resumes (ray_trainer.py:734 pickles the data loader without its position),
    so in a longer epoch a resumed run trains on other rows than an uninterrupted one.
    """
    import pandas as pd

    models.save(folder / "model")
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"{i}+{i}="}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
            "extra_info": {"split": "train", "index": i},
        }
        for i in range(4)
    ]
    pd.DataFrame(rows).to_parquet(folder / "rl.parquet")


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.patience(3 * PATIENCE + 60)
def test_killed_and_resumed_training_ends_with_the_same_weights(world, tmp_path, figure):
    api.needs("verl.workers.fsdp_workers")  # the options above are those of its time
    if world.on_gpu:
        import torch

        if torch.cuda.device_count() < RANKS:
            pytest.skip(f"needs {RANKS} GPUs")
    prepare(tmp_path)
    whole = run(world, tmp_path, overrides(tmp_path, tmp_path / "whole", STEPS))
    run(world, tmp_path, overrides(tmp_path, tmp_path / "killed", STEPS), kill_at=f"step:{STEPS - 1} - ")
    left = tmp_path / "killed" / f"global_step_{STEPS - 1}"
    resumed = run(world, tmp_path, overrides(tmp_path, tmp_path / "resumed", STEPS, f"resume_mode={left}"))
    figure("metrics of the last step, uninterrupted", metrics(whole))
    figure("metrics of the last step, resumed", metrics(resumed))

    one, two, end = (weights(tmp_path / "whole" / f"global_step_{n + 1}") for n in range(STEPS))
    assert one.keys() == end.keys()
    assert one != two, "the second step changed nothing"
    assert two != end, "the third step changed nothing"
    assert weights(left) == two
    assert metrics(resumed) == metrics(whole)
    assert weights(tmp_path / "resumed" / f"global_step_{STEPS}") == end
