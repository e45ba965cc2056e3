"""Layers and locks of images with a few packages, and what can be wrong in them."""

from __future__ import annotations

import base64
import hashlib
from types import SimpleNamespace

from support import layouts
from support.layouts import tarball
from verlstack.download import Artifact
from verlstack.layer import Compression
from verlstack.lockfile import Built, Layer, Lock

SITE = "opt/verl/lib/python3.10/site-packages"
APACHE = "Classifier: License :: OSI Approved :: Apache Software License\n"
STATUS = layouts.STATUS


def row(path, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def package(name, version="1.0", *, files=None, extra="", carried=()):
    """Files of an installed package by path; `carried` are dist-infos that it brings along."""
    own = {f"{name}/__init__.py": f"# {name}\n".encode(), **(files or {})}
    info = f"{name}-{version}.dist-info"
    own[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}\n".encode()
    for other in carried:
        own[f"{name}/_vendor/{other}-2.0.dist-info/METADATA"] = f"Name: {other}\nVersion: 2.0\n".encode()
    record = "".join(row(path, data) for path, data in own.items()) + f"{info}/RECORD,,\n"
    own[f"{info}/RECORD"] = record.encode()
    return {f"{SITE}/{path}": data for path, data in own.items()}


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def artifact(name, version, file):
    return Artifact(project=name, version=version, filename=file, size=1, sha256=sha(file))


BASE = {
    "usr/lib/os-release": b'ID=debian\nVERSION_ID="12"\n',
    "etc/os-release": "-> ../usr/lib/os-release",
    "var/lib/dpkg/status": STATUS.encode(),
    "usr/share/doc/libc6/copyright": b"LGPL",
}
DEBS = "usr/share/verlstack/debs.sha256"
GCC = "gcc_4%3a12.2.0-3_amd64.deb"
HASHED = BASE | {DEBS: f"{sha(GCC)}  {GCC}\n".encode()}  # of one of two packages
INTERPRETER = {"usr/local/include/python3.10/patchlevel.h": b'#define PY_VERSION  "3.10.13"\n'}
TORCH = package("torch", "2.3.1", extra="License: BSD-3-Clause\n", carried=("Six",))
LIBS = package("click", extra=APACHE) | package("numpy", extra="License: NVIDIA Proprietary Software\n")
VERL = package("verl", "0.2.0.post2", extra="License-Expression: Apache-2.0\n")
SMOKE = {"opt/verlstack/smoke_tests/run.py": b"pass\n"}


def layers(**changed):
    """Files by name of the layer, bottom first; None takes a layer away."""
    found = {"base debian": BASE, "interpreter": INTERPRETER, "torch": TORCH, "libs": LIBS, "verl": VERL,
             "smoke": SMOKE}  # fmt: skip
    return {name: files for name, files in (found | changed).items() if files is not None}


def lock(found=None):
    """The lock of such an image: its diff_ids are those of the layers."""
    files = found or layers()
    packages = {"torch": ("torch",), "libs": ("click", "numpy"), "verl": ("verl",), "smoke": ()}
    source = artifact("verl", "0.2.0.post2", "verl-0.2.0.post2.tar.gz")
    return Lock(
        stack="tiny", digest="d" * 64, python="3.10", recorded_with="3.10.13", epoch=1_741_046_400,
        compression=Compression(level=3, window_log=20, long_distance=True, library="1"), registry_base=None,
        wheels=tuple(artifact(*x) for x in (("click", "1.0", "click-1.0-py3-none-any.whl"),
                                            ("numpy", "1.0", "numpy-1.0-py3-none-any.whl"),
                                            ("torch", "2.3.1", "torch-2.3.1-py3-none-any.whl"))),
        built=(Built(source=source, wheel="verl-0.2.0.post2-py3-none-any.whl", wheel_sha256=sha("verl")),),
        build_tools=(artifact("setuptools", "75.8.0", "setuptools-75.8.0-py3-none-any.whl"),), compiled=None,
        layers=tuple(Layer(name=name, packages=packages[name], diff_id=layouts.sha(tarball(files[name])))
                     for name in packages),
    )  # fmt: skip


def image(folder, found=None, *, labels=None, names=None):
    """A layout of these layers, with history and labels as ours have them; `names` of the layers, if not the keys."""
    files = found or layers()
    known = {"dev.verlstack.lock": f"sha256:{'d' * 64}", "dev.verlstack.stack": "tiny",
             "org.opencontainers.image.title": "verlstack tiny-sdpa", "dev.verlstack.base.scope": "local",
             "dev.verlstack.base": "bootstrapped from Debian"}  # fmt: skip
    config = {
        "created": "2025-03-04T00:00:00Z",
        "history": [{"created_by": f"verlstack: {name}"} for name in names or files],
    }
    config["config"] = {"Labels": known | (labels or {})}
    return layouts.write(folder, *files.values(), config=config)


def surroundings(root):
    """What reading an image takes besides the layout."""
    from verlstack.cache import Cache
    from verlstack.progress import Silent

    cache = Cache(root / "cache")
    cache.tmp.mkdir(parents=True, exist_ok=True)
    return SimpleNamespace(cache=cache, workers=2, progress=Silent())
