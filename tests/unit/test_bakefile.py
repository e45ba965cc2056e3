"""The lock as arguments of the Dockerfile, and the packages that a compile needs."""

import dataclasses
import json

import pytest

from support import locks
from support.locks import artifact
from support.stacks import bent, write
from support.wheels import Wheel
from verlstack import bakefile, build, closure, pins
from verlstack.errors import LockError, PinsError, WheelError
from verlstack.lockfile import Built, Compiled, Layer

IMAGE = "registry.invalid/ubuntu@sha256:" + "a" * 64
WITH_IMAGES = {"os": {"image": IMAGE, "why": "small"}, "cuda": {"image": IMAGE, "why": "nvcc"}}
HEX = "0123456789abcdef"


def a_lock(compiled=None):
    layers = [("torch", ("torch",)), ("libs", ("antlr", "six")), ("verl", ("verl",)), ("smoke", ())]
    if compiled and compiled.wheel:
        layers.insert(2, ("flash-attn", ("flash-attn",)))
    return locks.demo(
        wheels=(
            artifact("torch", "2.3.1", "1"),
            artifact("six", "1.0", "2"),
            artifact("numpy", "1.26", "3"),
            artifact("ray", "2.60", "e"),
        ),
        built=(
            Built(source=artifact("antlr", "4.9", "4"), wheel="antlr.whl", wheel_sha256="5" * 64),
            Built(source=artifact("verl", "0.2", "6"), wheel="verl.whl", wheel_sha256="7" * 64),
        ),
        build_tools=(artifact("pip", "25.0", "8"),),
        compiled=compiled,
        layers=tuple(Layer(name=name, packages=packages, diff_id="") for name, packages in layers),
    )


def compiled(wheel=None):
    return Compiled(
        source=artifact("flash-attn", "2.5.9", "b"),
        cuda_archs=("8.0", "9.0"),
        cxx11_abi=False,
        tools=(artifact("ninja", "1.11", "c"),),
        wheel=wheel,
    )


@pytest.fixture
def stack(tmp_path):
    write(tmp_path, bent(stack__demo__dockerfile=WITH_IMAGES))
    return pins.load(tmp_path / "stacks.toml", "demo")


def rendered(stack, lock, torch=("numpy", "torch")):
    text = bakefile.render(stack, lock, uv="uv==1 --hash=sha256:x", torch=torch)
    return json.loads(text)["variable"]["VERLSTACK_LOCK"]["default"]


def test_a_layers_argument_holds_its_own_pins_alone(stack):
    arguments = rendered(stack, a_lock())["args"]
    assert arguments["TORCH"] == f"torch==2.3.1 --hash=sha256:{'1' * 64}"
    assert arguments["LIBS"] == f"antlr==4.9 --hash=sha256:{'5' * 64}\nsix==1.0 --hash=sha256:{'2' * 64}"
    assert arguments["VERL"] == f"verl==0.2 --hash=sha256:{'7' * 64}"
    assert "SMOKE" not in arguments


def test_what_a_layers_packages_leave_out_stands_in_its_argument(stack):
    """A comment to uv, and an argument of this layer's stage alone: another glob builds no other layer again."""
    names = (("six", "six/b/*"), ("torch", "torch/bin/protoc"), ("six", "six/a.py"), ("not-here", "x"))
    arguments = rendered(dataclasses.replace(stack, leave_out=names), a_lock(compiled()))["args"]
    assert arguments["TORCH"] == f"torch==2.3.1 --hash=sha256:{'1' * 64}\n# leave out: torch/torch/bin/protoc"
    assert arguments["LIBS"].splitlines()[2:] == ["# leave out: six/six/b/*", "# leave out: six/six/a.py"]
    assert {name for name, text in arguments.items() if "leave out" in text} == {"TORCH", "LIBS"}


def test_sources_are_named_by_the_hash_of_the_sdist(stack):
    assert rendered(stack, a_lock())["args"]["SDISTS"] == f"antlr==4.9 --hash=sha256:{'4' * 64}"


def test_contexts_are_the_pins(stack):
    bake = rendered(stack, a_lock())
    assert bake["contexts"] == {
        "os": f"docker-image://{IMAGE}",
        "verl-source": f"https://git.invalid/verl.git#{'f' * 40}",
    }
    assert bake["toolchain"] == {"cuda": f"docker-image://{IMAGE}"}


def test_a_compile_gets_torch_and_the_tools_once_each(stack):
    arguments = rendered(stack, a_lock(compiled()), torch=("numpy", "pip", "torch"))["args"]
    names = [line.partition("==")[0] for line in arguments["COMPILE_REQUIREMENTS"].splitlines()]
    assert names == ["numpy", "torch", "pip", "ninja"]
    assert arguments["CUDA_ARCHS"] == "8.0 9.0"
    assert arguments["EXTENSION"] == f"flash-attn==2.5.9 --hash=sha256:{'b' * 64}"


def test_objects_of_other_facts_are_kept_apart(stack):
    one = rendered(stack, a_lock(compiled()))["args"]["COMPILE_KEY"]
    two = rendered(stack, a_lock(Compiled(**{**vars(compiled()), "cuda_archs": ("8.0",)})))["args"]["COMPILE_KEY"]
    assert one != two
    assert set(one) <= set(HEX)


def test_a_pinned_wheel_is_a_layer_and_changes_the_tag(stack):
    without, pinned = (rendered(stack, a_lock(compiled(w))) for w in (None, artifact("flash-attn", "2.5.9", "d")))
    assert pinned["args"]["FLASH_ATTN"] == f"flash-attn==2.5.9 --hash=sha256:{'d' * 64}"
    assert "FLASH_ATTN" not in without["args"]
    assert (without["tag"], pinned["tag"]) == ("demo-sdpa", "demo")
    assert without["labels"]["dev.verlstack.left-out"] == "flash-attn"
    assert "dev.verlstack.left-out" not in pinned["labels"]


def test_both_builders_label_what_is_left_out_alike(stack):
    labels = build._compiled_labels(stack.flash_attn, compiled(), complete=True)
    assert labels.items() <= rendered(stack, a_lock(compiled()))["labels"].items()


def test_the_file_of_the_present_lock(tmp_path, stack):
    (tmp_path / "tools.txt").touch()
    path = bakefile.path(tmp_path, "demo")
    path.write_text(bakefile.render(stack, a_lock(), uv="uv==1 --hash=sha256:x", torch=("torch",)))
    assert bakefile.of_lock(tmp_path, a_lock()) == path
    with pytest.raises(LockError, match="of another lock") as e:
        bakefile.of_lock(tmp_path, dataclasses.replace(a_lock(), digest="8" * 64))
    assert (e.value.where, e.value.todo) == (str(path), "run `verlstack lock demo`")


def test_without_pinned_tools_the_lock_alone_does_not_help(tmp_path):
    with pytest.raises(LockError, match="cannot be read") as e:
        bakefile.of_lock(tmp_path, a_lock())
    assert e.value.todo.startswith(f"first have {tmp_path / 'tools.txt'}, which pins uv")
    assert e.value.todo.endswith("then run `verlstack lock demo`")


@pytest.mark.parametrize("data", [None, b"", b"[]", b"\xff", b"[" * 100_000, b'{"variable": 3}', b'{"variable": {}}'])
def test_a_file_that_cannot_be_read(tmp_path, data):
    if data is not None:
        bakefile.path(tmp_path, "demo").write_bytes(data)
    with pytest.raises(LockError, match="cannot be read" if data is None else "is damaged"):
        bakefile.of_lock(tmp_path, a_lock())


def test_uv_and_all_its_hashes():
    two, three = (f"    --hash=sha256:{digit * 64}" for digit in "23")
    text = f"six==1 \\\n{two}\nuv==0.13.9 \\\n{two} \\\n{three}\n    # via -r\n"
    assert bakefile.uv_requirement(text) == f"uv==0.13.9 --hash=sha256:{'2' * 64} --hash=sha256:{'3' * 64}"


def test_tools_without_uv():
    with pytest.raises(LockError, match="pins no uv"):
        bakefile.uv_requirement("uvicorn==1 \\\n    --hash=sha256:" + "1" * 64)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"os": {"image": "ubuntu:22.04", "why": "x"}}, "has no digest"),
        ({"os": {"image": IMAGE}}, "carries its reason"),
        ({"devel": {"image": IMAGE, "why": "x"}}, "no key devel"),
        ({"os": {"image": "a b@sha256:" + "a" * 64, "why": "x"}}, "has no digest"),
    ],
)
def test_images_by_digest_and_with_their_reason(tmp_path, table, says):
    write(tmp_path, bent(stack__demo__dockerfile=table))
    with pytest.raises(PinsError, match=says):
        pins.load(tmp_path / "stacks.toml", "demo")


def test_what_the_dockerfile_stands_on_does_not_make_a_lock_stale(tmp_path, stack):
    write(tmp_path, bent())
    assert pins.load(tmp_path / "stacks.toml", "demo").checksum == stack.checksum


def wheel_that_needs(folder, name, *lines):
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "".join(f"Requires-Dist: {x}\n" for x in lines)
    return Wheel(name=name, info={"METADATA": text.encode()}).write(folder)


def test_the_closure_follows_needs_and_markers(tmp_path):
    wheels = {
        "torch": wheel_that_needs(
            tmp_path, "torch", "Sym_Py>=1", 'cuda; platform_system == "Linux"', 'win; os_name=="nt"'
        ),
        "sym-py": wheel_that_needs(tmp_path, "sympy", "torch", 'gmpy; extra == "fast"'),
        "cuda": wheel_that_needs(tmp_path, "cuda", 'old; python_version < "3.10"', "built-from-source"),
        **{name: wheel_that_needs(tmp_path, name) for name in ("win", "gmpy", "old", "unrelated")},
    }
    assert closure.closure("torch", wheels, python="3.10") == ("cuda", "sym-py", "torch")


@pytest.mark.parametrize("data", [b"no archive", Wheel(info={"METADATA": b"Requires-Dist: >>\n"}).to_bytes()])
def test_metadata_that_cannot_be_read(tmp_path, data):
    path = tmp_path / "torch-1.0-py3-none-any.whl"
    path.write_bytes(data)
    with pytest.raises(WheelError, match="metadata cannot be read"):
        closure.closure("torch", {"torch": path}, python="3.10")
