"""A compiled extension on its way into the tiny stack's image, through the real program: added, pinned, built."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys

import pytest

from support.fake_registry import Fake
from support.synthetic import PYTHON, sdist, serve
from support.wheels import Wheel

GCC = shutil.which("gcc")
pytestmark = pytest.mark.skipif(GCC is None, reason="no C compiler for the small libraries")

TAG = f"cp{PYTHON.replace('.', '')}"
CMAKE = b'  set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n'
C10 = "void _ZN3c104helpEv(void) {}\n"  # c10::help()
PINS = """
[stack.tiny.flash_attn] # this comment stays
version = "2.0"
why = "test"
sdist = "flash_attn-2.0.tar.gz"
sdist_sha256 = "{}"

[stack.tiny.flash_attn.cuda_archs]
"8.0" = "test"

[stack.tiny.flash_attn.build_tools]
ninja = {{ bound = "==1.0", why = "test" }}
"""


def library(folder, name, source, *flags):
    """A shared object made of C."""
    path = folder / name
    (folder / f"{name}.c").write_text(source)
    subprocess.run(
        [GCC, "-shared", "-fPIC", "-nostdlib", "-o", path, f"{path}.c", f"-Wl,-soname,{name}", *flags], check=True
    )
    return path.read_bytes()


def gpu_code(arch):
    """A section of fat binaries with one (empty) program for an architecture, as C."""
    code = b"\x7fELF" + bytes(60)
    entry = struct.pack("<HHIQ12xI8xQ", 2, 0x101, 64, len(code), arch, 0)
    entry += bytes(64 - len(entry)) + code
    data = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry
    numbers = ",".join(map(str, data))
    return f'__attribute__((section(".nv_fatbin"), used, aligned(8))) const unsigned char fat[] = {{{numbers}}};\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The bytes of torch's library, and a function that compiles an extension against it."""
    folder = tmp_path_factory.mktemp("libraries")
    c10 = library(folder, "libc10.so", C10)

    def extension(call="_ZN3c104helpEv", arch=80, **fields):
        source = f"void {call}(void);\nvoid PyInit_flash_attn_2_cuda(void) {{ {call}(); }}\n" + gpu_code(arch)
        name = f"flash_attn_2_cuda.cpython-{PYTHON.replace('.', '')}-x86_64-linux-gnu.so"
        data = library(folder, name, source, f"-L{folder}", "-l:libc10.so")
        files = {name: data, "flash_attn/__init__.py": b"import flash_attn_2_cuda\n"}
        return Wheel(
            **{"name": "flash_attn", "version": "2.0", "tag": f"{TAG}-{TAG}-linux_x86_64", "files": files} | fields
        )

    return c10, extension


@pytest.fixture(scope="module")
def unpinned_origin(origin, made, tmp_path_factory):
    """The tiny stack with a small torch and an extension to compile, locked and built; nothing pinned."""
    tiny = origin.fork(tmp_path_factory.mktemp("unpinned") / "checkout")
    torch = Wheel(
        name="torch",
        version="2.3.1",
        files={
            "torch/__init__.py": b"",
            "torch/lib/libc10.so": made[0],
            "torch/share/cmake/Torch/TorchConfig.cmake": CMAKE,
        },
    )
    source = sdist({"setup.py": b""}, top="flash_attn-2.0")
    ninja = Wheel(name="ninja")
    for wheel in (torch, ninja):
        serve(tiny.index, {wheel.name: {wheel.filename: wheel.to_bytes()}})
    serve(tiny.index, {"flash-attn": {"flash_attn-2.0.tar.gz": source}})
    path = tiny.root / "constraints" / "stacks.toml"
    text = path.read_text().replace(
        "[stack.tiny.requires]", '[stack.tiny.requires]\ntorch = { bound = "==2.3.1", why = "x" }'
    )
    path.write_text(text + PINS.format(hashlib.sha256(source).hexdigest()))
    tiny.run("lock")
    tiny.run("build")
    return tiny


def copy(stack, folder):
    """The same with a cache of its own that holds the same."""
    shutil.copytree(stack.root, folder, symlinks=True)
    return dataclasses.replace(stack, root=folder, cache=folder / "cache")


@pytest.fixture
def stack(unpinned_origin, tiny, tmp_path):
    """A checkout with nothing pinned; what a test changes in the index is undone by `tiny`."""
    return copy(unpinned_origin, tmp_path / "unpinned")


def flash_attn(stack, action, *words, code=0):
    """Run `verlstack flash-attn ACTION WORDS tiny`."""
    line = [sys.executable, "-m", "verlstack", "flash-attn", action, *map(str, words), "tiny"]
    line += ["--constraints", str(stack.root / "constraints"), "--python-tree", sys.base_prefix]
    done = subprocess.run(line, env=stack.environment(), cwd=stack.root, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def build(stack, *words):
    """(report, the loud line or None) of a build."""
    done = stack.run("build", "--json", *words)
    loud = [line for line in done.stderr.splitlines() if line.startswith("WITHOUT")]
    assert len(loud) <= 1
    report = json.loads(done.stdout)
    assert report["without"] == (loud[0] if loud else None)
    return report, (loud or [None])[0]


def labels(stack):
    layout = stack.root / "dist" / "tiny" / "blobs" / "sha256"
    manifest = json.loads((layout / stack.digest()[7:]).read_text())
    return json.loads((layout / manifest["config"]["digest"][7:]).read_text())["config"]["Labels"]


def forget(stack, *, wheels=True):
    """Remove the compiled wheel, and the layer that was made of it, from the cache."""
    for path in (stack.cache / "files").glob("*/flash_attn-2.0-*.whl") if wheels else ():
        path.unlink()
    lock = (stack.root / "constraints" / "tiny.lock.toml").read_text()
    diff_id = re.search(r'name = "flash-attn"\npackages = .*\ndiff_id = "(.*)"', lock)[1]
    for path in (stack.cache / "layers").glob("*.json"):
        if diff_id in path.read_text():
            path.unlink()


def test_nothing_pinned_the_image_goes_without_and_says_so(stack):
    report, line = build(stack)
    assert report["tag"] == "tiny-sdpa"
    assert line.startswith("WITHOUT FLASH-ATTN: no compiled wheel is pinned; ")
    assert labels(stack)["dev.verlstack.left-out"] == "flash-attn"
    assert labels(stack)["org.opencontainers.image.title"] == "verlstack tiny-sdpa"
    assert "flash-attn==2.0" in labels(stack)["dev.verlstack.pins"].split()
    assert "flash-attn" not in [row["layer"] for row in report["rows"]]


def test_from_a_compiled_wheel_to_an_image_with_it(stack, made, tmp_path):
    wheel = made[1]().write(tmp_path)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    told = {"sha256": sha256, "compiler": "nvcc 12.4.131, g++ 13.3.0", "seconds": 90, "peak_mib": 5, "jobs": 2}
    (tmp_path / "compile.json").write_text(json.dumps(told))
    without, _ = build(stack)
    assert flash_attn(stack, "add", wheel).stdout.split()[0] == sha256
    shown = flash_attn(stack, "show").stdout
    assert f"cached   {sha256}" in shown
    assert "by nvcc 12.4.131, g++ 13.3.0, took 2 min with 2 jobs, 5 MiB each at most" in shown
    still, line = build(stack)
    assert f"run `verlstack flash-attn pin {sha256[:12]} tiny`" in line
    assert still["digest"] == without["digest"]  # a wheel in somebody's cache does not change the image

    before = (stack.root / "constraints" / "stacks.toml").read_text().splitlines()
    flash_attn(stack, "pin", sha256[:12])
    after = (stack.root / "constraints" / "stacks.toml").read_text().splitlines()
    assert [x for x in after if x in before] == before
    report, line = build(stack)
    assert (report["tag"], line) == ("tiny", None)
    names = [row["layer"] for row in report["rows"]]
    assert names[-3:] == ["flash-attn", "verl", "smoke"]
    assert report["rows"][-3]["pins"] == "flash-attn 2.0"
    assert labels(stack)["dev.verlstack.flash_attn"] == f"sha256:{sha256} 8.0"
    assert labels(stack)["dev.verlstack.flash_attn.compiler"] == "nvcc 12.4.131, g++ 13.3.0"
    assert "dev.verlstack.left-out" not in labels(stack)
    assert labels(stack)["org.opencontainers.image.title"] == "verlstack tiny"
    assert "looked   cache: found" in flash_attn(stack, "show").stdout


@pytest.fixture(scope="module")
def pinned_origin(unpinned_origin, made, tmp_path_factory):
    """The stack with the wheel pinned and built, and the wheel."""
    folder = tmp_path_factory.mktemp("pinned")
    stack, wheel = copy(unpinned_origin, folder / "checkout"), made[1]().write(folder)
    flash_attn(stack, "pin", wheel)  # a file is added first
    stack.run("build")
    return stack, wheel


@pytest.fixture
def pinned(pinned_origin, tmp_path):
    """A checkout of it, and the wheel."""
    return copy(pinned_origin[0], tmp_path / "pinned"), pinned_origin[1]


def test_both_images_are_functions_of_the_lock(pinned, tmp_path):
    """With the wheel and without it: the same two digests from a warm cache, from a cold one, and after a loss."""
    stack, wheel = pinned
    complete, _ = build(stack)
    forget(stack)
    without, line = build(stack)
    assert "its pinned wheel cannot be had (cache: not there)" in line
    assert without["tag"] == "tiny-sdpa"
    assert [r for r in complete["rows"] if r["layer"] != "flash-attn"] == without["rows"]
    other = stack.fork(tmp_path / "other")
    assert build(other)[0]["digest"] == without["digest"]
    flash_attn(other, "add", wheel)
    assert build(other)[0]["digest"] == complete["digest"]
    assert build(other, "--offline")[0]["digest"] == complete["digest"]


def test_the_layer_alone_is_enough(pinned):
    stack, _ = pinned
    complete, _ = build(stack)
    for path in (stack.cache / "files").glob("*/flash_attn-2.0-*.whl"):
        path.unlink()
    assert build(stack)[0]["digest"] == complete["digest"]


def test_from_a_wheelhouse_which_does_not_change_the_image(pinned):
    stack, wheel = pinned
    complete, _ = build(stack)
    forget(stack)
    registry = Fake()
    registry.put(wheel.read_bytes())
    path = stack.root / "constraints" / "stacks.toml"
    house = f'wheelhouse = "{registry.host}/a/wheels"'
    path.write_text(path.read_text().replace('version = "2.0"', f'version = "2.0"\n{house}'))
    assert build(stack, "--offline")[0]["tag"] == "tiny-sdpa"
    assert registry.requests == []
    report, line = build(stack)
    assert (report["digest"], line) == (complete["digest"], None)
    registry.close()


def test_fetch_brings_the_wheel_for_a_machine_without_network(pinned):
    stack, _ = pinned
    assert "WITHOUT" not in stack.run("fetch", "--base", stack.base).stderr
    forget(stack)
    assert "cache: not there" in stack.run("fetch", "--base", stack.base).stderr


def test_a_damaged_wheel_in_the_cache_is_told_and_deleted(pinned):
    stack, wheel = pinned
    forget(stack, wheels=False)
    (path,) = (stack.cache / "files").glob("*/flash_attn-2.0-*.whl")
    path.write_bytes(b"damaged")
    _, line = build(stack)
    assert hashlib.sha256(b"damaged").hexdigest() in line
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in line
    assert not path.exists()


def test_a_lock_needs_the_wheel_that_it_pins(pinned):
    stack, _ = pinned
    forget(stack)
    done = stack.run("lock", check=False)
    assert done.returncode == 5
    assert "the lock pins a compiled wheel, but its pinned wheel cannot be had" in done.stderr
    assert "verlstack flash-attn add" in done.stderr


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"call": "_ZN3c104goneEv"}, r"_ZN3c104goneEv"),
        ({"arch": 75}, r"8\.0"),
        ({"tag": "cp27-cp27mu-linux_x86_64"}, "built for cp27-cp27mu-linux_x86_64"),
        ({"record": lambda rows: rows[1:]}, "RECORD"),
    ],
)
def test_a_wheel_that_does_not_fit_is_refused_and_not_kept(stack, made, tmp_path, fields, says):
    wheel = made[1](**fields).write(tmp_path)
    done = flash_attn(stack, "add", wheel, code=7)
    assert re.search(says, done.stderr), done.stderr
    assert not list((stack.cache / "files").glob("*/flash_attn-2.0-*.whl"))
    assert flash_attn(stack, "pin", wheel, code=7)
    assert "wheel_sha256" not in (stack.root / "constraints" / "stacks.toml").read_text()


@pytest.mark.parametrize(
    ("action", "what", "says"),
    [
        ("pin", "0" * 64, "0 wheels of flash-attn in the cache are called"),
        ("pin", "", "0 wheels of flash-attn in the cache are called ''"),
        ("pin", "gone.whl", "there is no such wheel"),
        ("add", "gone-1-py3-none-any.whl", "there is no such wheel"),
        ("add", "constraints/tiny.txt", "this is no wheel's name"),
    ],
)
def test_what_is_not_there_cannot_be_pinned(stack, action, what, says):
    before = (stack.root / "constraints" / "stacks.toml").read_text()
    done = flash_attn(stack, action, what, code=2)
    assert says in done.stderr
    assert (stack.root / "constraints" / "stacks.toml").read_text() == before


def test_a_wheel_of_something_else(stack, tmp_path):
    done = flash_attn(stack, "add", Wheel().write(tmp_path), code=2)
    assert "this is no wheel of flash-attn 2.0" in done.stderr


def test_a_stack_without_extension(tiny):
    assert "stack tiny has no extension to compile" in flash_attn(tiny, "show", code=2).stderr


def test_a_tool_that_is_also_in_the_image_must_be_the_same(stack):
    path = stack.root / "constraints" / "stacks.toml"
    path.write_text(path.read_text().replace('ninja = { bound = "==1.0"', 'beta = { bound = "==2.0"'))
    other = Wheel(name="beta", version="2.0")
    old = Wheel(name="beta", version="1.0")
    serve(stack.index, {"beta": {w.filename: w.to_bytes() for w in (other, old)}})
    path.write_text(path.read_text().replace("alpha = {", 'beta = { bound = "==1.0", why = "x" }\nalpha = {'))
    done = stack.run("lock", check=False)
    assert done.returncode == 3
    assert "the compile wants beta 2.0, the image has 1.0" in done.stderr
