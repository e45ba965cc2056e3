"""A small CUDA extension through the stage `flash-attn` with real nvcc and torch: compiled, gated, pinned, imported."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from support import engines
from verlstack import buildkit, compiling, shell
from verlstack.cache import Cache
from verlstack.cli import common
from verlstack.progress import Silent

pytestmark = [pytest.mark.full, pytest.mark.engine]

ROOT = Path(__file__).parents[2]
SDIST = "flash_attn-2.5.9.post1.tar.gz"  # the name of the real one, whose compile takes hours
FILES = {
    "setup.py": """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
flags = {"cxx": ["-O2"], "nvcc": ["-O2", "-gencode", "arch=compute_90,code=sm_90"]}
setup(
    name="flash_attn", version="2.5.9.post1", packages=["flash_attn"], cmdclass={"build_ext": BuildExtension},
    ext_modules=[CUDAExtension("flash_attn_2_cuda", ["csrc/api.cpp", "csrc/add.cu"], extra_compile_args=flags)],
)
""",
    "flash_attn/__init__.py": "from flash_attn_2_cuda import add\n",
    "csrc/api.cpp": """
#include <torch/extension.h>
#include <string>
void add_one(at::Tensor x);
std::string add(at::Tensor x) { if (x.is_cuda()) add_one(x); else x.add_(1); return "added"; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("add", &add); }
""",
    "csrc/add.cu": """
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void kernel(float *x, long n) { long i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] += 1; }
void add_one(at::Tensor x) {
  kernel<<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), x.numel());
}
""",
}
USE = """
import torch, flash_attn, flash_attn_2_cuda
x = torch.ones(3)
print(flash_attn.add(x), x.tolist(), flash_attn_2_cuda.__file__)
"""


def sdist() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in FILES.items():
            info = tarfile.TarInfo(f"{SDIST.removesuffix('.tar.gz')}/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive, tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        for member in tar:
            archive.addfile(member, tar.extractfile(member))
    return packed.getvalue()


class Checkout:
    """A checkout of its own whose flash-attn is the small extension, for one architecture."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env = folder, env
        for name in ("constraints", "docker", "smoke_tests"):
            shutil.copytree(ROOT / name, folder / name)
        for name in ("Dockerfile", ".dockerignore", "src/verlstack/pyc_worker.py"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        self.source = sdist()
        sha256 = hashlib.sha256(self.source).hexdigest()
        path = folder / "constraints" / "stacks.toml"
        text = path.read_text()
        text = re.sub(r'^sdist_sha256 = "a92db.*$', f'sdist_sha256 = "{sha256}"', text, flags=re.MULTILINE)
        text = re.sub(r'^"9\.0" = .*\n', "", text, flags=re.MULTILINE)
        text = re.sub(r"^wheel(_\w+)? = .*\n", "", text, flags=re.MULTILINE)
        path.write_text(text)
        cache = Cache.from_environment(os.environ)
        with cache.use():
            kept = cache.file(sha256, SDIST)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(self.source)

    def __call__(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "verlstack", *words]
        done = subprocess.run(command, cwd=self.folder, env=self.env, text=True, capture_output=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    engine = engines.docker(start=True)
    made = Checkout(tmp_path_factory.mktemp("compile"), os.environ | engine)
    made("lock")
    yield made
    shutil.rmtree(made.folder)
    engines.forget(engine)


@pytest.fixture(scope="module")
def wheel(checkout):
    """What `flash-attn compile` puts into the cache."""
    return json.loads(checkout("flash-attn", "compile", "--base", "debian", "--json").stdout)


def test_it_is_compiled_for_the_locks_architecture_and_passes_the_gate(wheel):
    """setup.py asks for 9.0; docker/nvcc.py puts 8.0 in its place, and the gate would name what is missing."""
    assert wheel["facts"]["cuda_archs"] == ["8.0"]
    assert wheel["facts"]["compiler"].startswith("nvcc 12.4.")
    assert wheel["wheel"] == "flash_attn-2.5.9.post1-cp310-cp310-linux_x86_64.whl"
    assert wheel["cost"]["peak_mib"] > 0


def test_it_is_imported_in_the_composed_image(checkout, wheel):
    assert "WITHOUT FLASH-ATTN" in checkout("build", "--base", "debian", "--fast").stderr
    checkout("flash-attn", "pin", wheel["sha256"])
    done = checkout("build", "--base", "debian", "--fast", "--output", "docker-archive")
    assert "WITHOUT" not in done.stderr
    engine = {k: v for k, v in checkout.env.items() if k.startswith("DOCKER_") or k == "PATH"}
    archive = next((checkout.folder / "dist").glob("*.docker-archive.tar"))
    run = ["docker", "run", "--rm", "--network", "none", "--user", "54321", "verlstack:cu121-fast", "python", "-c", USE]
    subprocess.run(["docker", "load", "--input", archive], env=engine, check=True, capture_output=True)
    try:
        printed = subprocess.run(run, env=engine, check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run(["docker", "image", "rm", "verlstack:cu121-fast"], env=engine, capture_output=True, check=False)
    assert printed.startswith("added [2.0, 2.0, 2.0] /opt/verl/lib/python3.10/site-packages/flash_attn_2_cuda")


LOOK = """
FROM devel AS look
RUN (dpkg -S /usr/bin/g++; dpkg-query --show --showformat '${db:Status-Status}\\n' g++ gcc; \\
    update-alternatives --query c++ | sed -n 's/^Value: //p'; readlink -e /etc/alternatives/c++; dpkg --audit; \\
    printf 'int main() { return 0; }' | c++ -x c++ - -o /tmp/made && /tmp/made && echo runs) >/told 2>&1
FROM scratch AS told
COPY --from=look /told /
"""


def test_devel_tells_the_truth_about_its_compiler(checkout, tmp_path):
    """On the bare base instead of `runtime`: what is asked does not depend on the wheels."""
    for name in ("docker", "smoke_tests", "src"):
        shutil.copytree(checkout.folder / name, tmp_path / name)
    (tmp_path / "Dockerfile").write_text((ROOT / "Dockerfile").read_text() + LOOK)
    (tmp_path / "told.json").write_text('{"target": {"told": {"inherits": ["_all"], "target": "told"}}}')
    constraints = checkout.folder / "constraints"
    (tmp_path / "scratch").mkdir()
    given = argparse.Namespace(
        constraints=constraints, stack="cu121", jobs=None, offline=False, python_tree=None
    )  # fmt: skip
    with common.workshop(given) as (stack, shop):
        contexts = compiling._from_debian(stack, shop, "debian", tmp_path, shell.run)
        order = buildkit.Request(
            folder=tmp_path, target="told", output=tmp_path / "out", form="local", cached=True,
            files=(tmp_path / "docker" / "docker-bake.hcl", constraints / "cu121.bake.json", tmp_path / "told.json"),
            contexts=contexts | {"runtime": contexts["os"], "verl-source": str(tmp_path / "docker")},
            network=buildkit.check(checkout.env).network,
        )  # fmt: skip
        buildkit.bake(order, env=checkout.env, scratch=tmp_path / "scratch", progress=Silent())
    lines = (tmp_path / "out" / "told").read_text().splitlines()
    assert lines[:4] == ["g++: /usr/bin/g++", "installed", "installed", "/usr/bin/g++"]
    assert lines[4].startswith("/usr/bin/x86_64-linux-gnu-g++-")
    assert lines[5:] == ["runs"], "dpkg --audit says nothing"


def test_an_architecture_that_torch_does_not_know_stops_the_compile(checkout):
    stacks = checkout.folder / "constraints" / "stacks.toml"
    text = re.sub(r"^wheel(_\w+)? = .*\n", "", stacks.read_text(), flags=re.MULTILINE)
    stacks.write_text(text.replace('"8.0" = ', '"12.0" = '))
    checkout("lock", code=0)
    done = checkout("flash-attn", "compile", "--base", "debian", code=8)
    assert "torch itself has no code for architecture 12.0" in done.stderr
