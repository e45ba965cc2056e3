"""What training needs of the host and the container: a C compiler, Triton, NCCL's speed, shared memory, limits."""

import os
import resource
import shutil
import subprocess
import time

import pytest
import torch
import torch.distributed as dist


def test_a_c_compiler_makes_a_library_that_loads(tmp_path):
    # Triton compiles the launcher of each kernel at run time, with $CC, gcc or clang
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "no C compiler: Triton cannot launch a kernel"
    source, library = tmp_path / "one.c", tmp_path / "one.so"
    source.write_text("#include <stdlib.h>\nint one(void) { return abs(-1); }\n", encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    import ctypes

    assert ctypes.CDLL(str(library)).one() == 1


def test_shared_memory_and_limits(figure):
    free = shutil.disk_usage("/dev/shm")
    limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in ("MEMLOCK", "STACK", "NOFILE")}
    figure("/dev/shm, bytes", free.total)
    figure("limits, soft and hard; -1 is none", limits)
    # an engine's default; NCCL and data loaders stop with "No space left on device" on less than some hundred MB
    if free.total <= 64 << 20:
        pytest.skip(
            "/dev/shm has an engine's default of 64 MB: too little for NCCL; start with --shm-size or --ipc=host"
        )
    assert limits["NOFILE"][0] == resource.RLIM_INFINITY or limits["NOFILE"][0] >= 1024


@pytest.mark.gpu
def test_triton_compiles_and_runs_a_kernel(world):
    # Not run on a GPU yet.
    import triton
    import triton.language as tl

    @triton.jit
    def double(source, target, size: tl.constexpr):
        at = tl.arange(0, size)
        tl.store(target + at, 2 * tl.load(source + at))

    source = torch.arange(128, device=world.device, dtype=torch.float32)
    target = torch.empty_like(source)
    double[(1,)](source, target, size=128)
    assert torch.equal(target, 2 * source)


@pytest.mark.gpu
@pytest.mark.ranks(2)
def test_all_reduce_is_right_and_how_fast(world, figure):
    # Not run on a GPU yet. The figure is a figure: no bound, for links differ.
    size, times = 64 << 20, 5  # 256 MB of fp32
    data = torch.full((size,), float(world.rank + 1), device=world.device)
    dist.all_reduce(data)  # NCCL opens its connections with the first one
    assert data[0].item() == data[-1].item() == world.size * (world.size + 1) / 2
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / times
    # bus bandwidth as nccl-tests defines it: each rank sends and receives 2 (N - 1) / N of the data
    figure("all-reduce, GB/s of bus bandwidth", 4 * size * 2 * (world.size - 1) / world.size / seconds / 1e9)
