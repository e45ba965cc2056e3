"""Reading pins: each mistake is named by its key, and every value counts."""

import contextlib
import dataclasses
import re

import pytest

from support import stacks
from support.stacks import GONE, bent
from verlstack import canonical, pins
from verlstack.errors import PinsError, StorageError, UsageError, VerlstackError
from verlstack.pins import Group


def load(folder, document=None, name="demo"):
    return pins.load(stacks.write(folder, document), name)


def test_everything_is_read(tmp_path):
    stack = load(tmp_path)
    assert (stack.name, stack.title, stack.python, stack.cuda) == ("demo", "a small stack", "3.10", "12.1")
    assert stack.requires == ("ray[default]>=2.10", "torch==2.3.1")
    assert stack.build_tools == ("setuptools==75.8.0",)
    assert (stack.verl.version, stack.verl.strip) == ("0.2.0.post2", ("tests",))
    assert stack.environment == (("LANG", "C.UTF-8"), ("PATH", "/opt/verl/bin:/bin"), ("TORCH_COMPILE_DISABLE", "1"))
    assert stack.debian_packages == ("gcc", "libc6-dev")
    assert stack.groups[0] == Group(name="cloud", packages=("google-*", "grpcio"))
    assert (stack.heavy_bytes, stack.epoch, stack.fast_level) == (1000, 1_741_046_400, -3)
    assert stack.compression.window_log == 20
    assert stack.registry_base.endswith("a" * 64)


def test_what_is_left_out_shows_in_the_tag(tmp_path):
    stack = load(tmp_path)
    assert stack.tag() == "demo"
    assert stack.tag(without=stack.flash_attn) == "demo-sdpa"


def test_a_compiled_extension(tmp_path):
    flash_attn = load(tmp_path).flash_attn
    assert (flash_attn.project, flash_attn.version, flash_attn.wheel) == ("flash-attn", "2.5.9.post1", None)
    assert flash_attn.cuda_archs == ("8.0", "9.0", "10.0")  # by number
    assert flash_attn.build_tools == ("ninja==1.11.1.3",)
    assert load(tmp_path, bent(stack__demo__flash_attn=GONE)).flash_attn is None


def test_a_pinned_wheel(tmp_path):
    flash_attn = load(
        tmp_path, pinned(prebuilt="https://git.invalid/w.whl", wheelhouse="r.invalid:5000/a/b")
    ).flash_attn
    assert (flash_attn.wheel, flash_attn.wheel_sha256, flash_attn.wheel_size) == (NAME, "8" * 64, 9)
    assert (flash_attn.prebuilt, flash_attn.wheelhouse) == ("https://git.invalid/w.whl", "r.invalid:5000/a/b")


@pytest.mark.parametrize(("name", "wrong"), [("demo-sdpa", True), ("sdpa-demo", True), ("demo-sdpas", False)])
def test_a_stack_whose_name_says_that_flash_attn_is_not_there_pins_no_wheel_of_it(tmp_path, name, wrong):
    """Its image would have the tag of one without."""
    document, without = pinned(), bent()
    for one in (document, without):
        one["stack"][name] = one["stack"].pop("demo")
    assert load(tmp_path, without, name).flash_attn.wheel is None
    if wrong:
        with pytest.raises(PinsError, match=f"called {name} is one without flash-attn"):
            load(tmp_path, document, name)
    else:
        assert load(tmp_path, document, name).flash_attn.wheel == NAME


def test_optional_parts(tmp_path):
    stack = load(tmp_path, bent(stack__demo__registry_base=GONE, stack__demo__environment=GONE, debian=GONE))
    assert (stack.registry_base, stack.debian_packages) == (None, ())


def test_a_stack_may_override_the_shared_environment(tmp_path):
    stack = load(tmp_path, bent(stack__demo__environment__LANG={"value": "C", "why": "old tools"}))
    assert dict(stack.environment)["LANG"] == "C"


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "name no stack"), ("[stack]\n", "name no stack"), ("a = " + "[" * 100_000, "the pins are not TOML")],
)
def test_pins_without_a_stack(tmp_path, text, says):
    path = tmp_path / "stacks.toml"
    path.write_text(text)
    with pytest.raises(PinsError, match=says):
        pins.names(path)


def test_names(tmp_path):
    document = bent()
    document["stack"]["cu999"] = document["stack"]["demo"]
    assert pins.names(stacks.write(tmp_path, document)) == ("cu999", "demo")


NAME = "flash_attn-2.5.9.post1+cu12torch2.3cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"


def pinned(**changes):
    """The pins with a compiled wheel, bent."""
    values = {"wheel": NAME, "wheel_sha256": "8" * 64, "wheel_size": 9} | changes
    document = bent()
    document["stack"]["demo"]["flash_attn"] |= {k: v for k, v in values.items() if v is not GONE}
    return document


WRONG = {
    "no architecture": (bent(stack__demo__flash_attn__cuda_archs={}), "cuda_archs is empty"),
    "architectures missing": (bent(stack__demo__flash_attn__cuda_archs=GONE), "cuda_archs is empty"),
    "architectures as a list": (bent(stack__demo__flash_attn__cuda_archs=["8.0"]), "cuda_archs = .* is no dict"),
    "architecture without why": (bent(stack__demo__flash_attn__cuda_archs={"8.0": ""}), r"cuda_archs\.8\.0 .*reason"),
    **{
        f"architecture {arch!r}": (
            bent(stack__demo__flash_attn__cuda_archs={arch: "x"}),
            "cuda_archs.* must be of the form 8.0",
        )
        for arch in ("sm_80", "80", "8", "8.0+PTX", "9.0a", "8.0 9.0", "08.0", "8.00", "", "\uff18.\uff10", "8.0\n")
    },
    "extension without why": (bent(stack__demo__flash_attn__why=GONE), "why must be given"),
    "extension without version": (bent(stack__demo__flash_attn__version=GONE), "version must be given"),
    "extension without sdist": (bent(stack__demo__flash_attn__sdist=GONE), "sdist must be given"),
    "extension without hash": (bent(stack__demo__flash_attn__sdist_sha256="abc"), "sdist_sha256 = .* 64 hexadecimal"),
    "extension without tools": (bent(stack__demo__flash_attn__build_tools={}), "build_tools is empty"),
    "extension with a slip": (bent(stack__demo__flash_attn__cuda_arch="8.0"), "flash_attn has no key cuda_arch"),
    "prebuilt without hash": (
        bent(stack__demo__flash_attn__prebuilt="https://git.invalid/x.whl"),
        "prebuilt needs wheel_sha256: nothing is taken from an address without a hash",
    ),
    "prebuilt over http": (pinned(prebuilt="http://git.invalid/x.whl"), "prebuilt = .* must be an https address"),
    "prebuilt with a login": (pinned(prebuilt="https://u:p@git.invalid/x.whl"), "an https address without user"),
    "prebuilt in a file": (pinned(prebuilt="file:///x.whl"), "must be an https address"),
    "wheel without hash": (pinned(wheel_sha256=GONE), "belong together"),
    "wheel without size": (pinned(wheel_size=GONE), "belong together"),
    "hash without wheel": (pinned(wheel=GONE), "belong together"),
    "compiler with a line end": (pinned(wheel_compiler="nvcc\n"), "wheel_compiler = .* must be names and versions"),
    "wheel of size 0": (pinned(wheel_size=0), "wheel_size = 0 must be from 1"),
    "wheel with a short hash": (pinned(wheel_sha256="8"), "wheel_sha256 = '8' must be 64 hexadecimal"),
    "wheel in a folder": (pinned(wheel=f"../{NAME}"), "wheel = .* must be a file name"),
    "wheel without tags": (pinned(wheel="flash_attn.whl"), "is no wheel's name"),
    "wheel of something else": (
        pinned(wheel=NAME.replace("flash_attn", "xformers")),
        "is no wheel of flash-attn 2.5.9",
    ),
    "wheel of another version": (pinned(wheel=NAME.replace("post1", "post2")), "is no wheel of flash-attn 2.5.9.post1"),
    "wheelhouse with a scheme": (pinned(wheelhouse="https://r.invalid/a"), "wheelhouse = .* must be HOST/REPOSITORY"),
    "wheelhouse with a digest": (pinned(wheelhouse="r.invalid/a@sha256:0"), "must be HOST/REPOSITORY"),
    "wheelhouse with a tag": (pinned(wheelhouse="r.invalid/a:1"), "must be HOST/REPOSITORY"),
    "wheelhouse without repository": (pinned(wheelhouse="r.invalid"), "must be HOST/REPOSITORY"),
    "no title": (bent(stack__demo__title=GONE), "title must be given as str"),
    "title is a number": (bent(stack__demo__title=3), "title = 3 is no str"),
    "no python": (bent(stack__demo__python=GONE), "python must be given"),
    "python is a float": (bent(stack__demo__python=3.1), r"python = 3\.1 is no str"),
    "no cuda": (bent(stack__demo__cuda=GONE), "cuda must be given"),
    "no platform": (bent(stack__demo__platform=GONE), "platform must be given"),
    "base without digest": (bent(stack__demo__registry_base="python:3.10"), "registry_base = .* has no digest"),
    "base is a number": (bent(stack__demo__registry_base=3), "registry_base = 3 has no digest"),
    "no requires": (bent(stack__demo__requires=GONE), "requires is empty"),
    "empty requires": (bent(stack__demo__requires={}), "requires is empty"),
    "requires is a list": (bent(stack__demo__requires=["torch"]), "requires = .* is no dict"),
    "bare bound": (bent(stack__demo__requires__torch="==2.3.1"), r"requires\.torch must be \{ bound"),
    "no bound": (bent(stack__demo__requires__torch={"why": "x"}), r"requires\.torch must be \{ bound"),
    "no why": (bent(stack__demo__requires__torch={"bound": "==2"}), r"requires\.torch .*carries its reason"),
    "empty why": (bent(stack__demo__requires__torch={"bound": "==2", "why": ""}), r"requires\.torch .*its reason"),
    "bound is a number": (bent(stack__demo__requires__torch={"bound": 2, "why": "x"}), r"requires\.torch must be"),
    "bad bound": (
        bent(stack__demo__requires__torch={"bound": "=2", "why": "x"}),
        "requires: torch=2 is no requirement",
    ),
    "bad name": (
        bent(stack__demo__requires={"to rch": {"bound": "==2", "why": "x"}}),
        "requires: to rch==2 is no requirement",
    ),
    "no build tools": (bent(stack__demo__build_tools=GONE), "build_tools is empty"),
    "build tool without why": (
        bent(stack__demo__build_tools__setuptools={"bound": "==1"}),
        r"build_tools\.setuptools .*its reason",
    ),
    "no verl": (bent(stack__demo__verl=GONE), "verl must be given as dict"),
    "verl is a string": (bent(stack__demo__verl="v0.2"), "verl = 'v0.2' is no dict"),
    "no tag": (bent(stack__demo__verl__tag=GONE), "tag must be given"),
    "short commit": (bent(stack__demo__verl__commit="abc"), "commit = .* 40 hexadecimal"),
    "no repository": (bent(stack__demo__verl__repository=GONE), "repository must be given"),
    "no sdist": (bent(stack__demo__verl__sdist=GONE), "sdist must be given"),
    "no sdist hash": (bent(stack__demo__verl__sdist_sha256=GONE), "sdist_sha256 must be given"),
    "short sdist hash": (bent(stack__demo__verl__sdist_sha256="abc"), "sdist_sha256 = .* 64 hexadecimal"),
    "strip is a string": (bent(stack__demo__verl__strip="tests"), "strip = 'tests' is no list"),
    "strip holds numbers": (bent(stack__demo__verl__strip=[1]), "strip must be a list of strings"),
    "unreal tag": (
        bent(stack__demo__verl__tag="v0.2.3"),
        r"verl has no tag v0\.2\.3; the nearest real ones are v0\.2\.0\.post2 and v0\.3",
    ),
    "tag of the future": (bent(stack__demo__verl__tag="v99"), "verl has no tag v99; the nearest real ones are v"),
    "tag that is no version": (bent(stack__demo__verl__tag="main"), r"verl has no tag main; .*v0\.1"),
    "bare variable": (bent(stack__demo__environment__X="1"), r"environment\.X must be \{ value"),
    "variable without why": (bent(image__environment__LANG={"value": "C"}), r"environment\.LANG .*its reason"),
    "variable is a number": (bent(image__environment__LANG={"value": 1, "why": "x"}), r"environment\.LANG must be"),
    "environment is a list": (bent(image__environment=[]), r"environment = \[\] is no dict"),
    "no image": (bent(image=GONE), "image must be given"),
    "no format": (bent(image__format=GONE), "format must be given as int"),
    "other format": (bent(image__format=99), rf"image\.format = 99, but this verlstack writes format {pins.FORMAT}"),
    "format is true": (bent(image__format=True), "format = True is no int"),
    "no epoch": (bent(image__epoch=GONE), "epoch must be given"),
    "epoch is a float": (bent(image__epoch=1.5), r"epoch = 1\.5 is no int"),
    "epoch is a date": (bent(image__epoch="2025-03-04"), "epoch = '2025-03-04' is no int"),
    "no compression": (bent(image__compression=GONE), "compression must be given"),
    "no level": (bent(image__compression__level=GONE), "level must be given"),
    "level is true": (bent(image__compression__level=True), "level = True is no int"),
    "no window": (bent(image__compression__window_log=GONE), "window_log must be given"),
    "long distance is a number": (bent(image__compression__long_distance=1), "long_distance = 1 is no bool"),
    "no library": (bent(image__compression__library=GONE), "library must be given"),
    "library is a float": (bent(image__compression__library=1.5), r"library = 1\.5 is no str"),
    "no fast level": (bent(image__compression__fast_level=GONE), "fast_level must be given"),
    "no layers": (bent(layers=GONE), "layers must be given"),
    "no heavy bytes": (bent(layers__heavy_bytes=GONE), "heavy_bytes must be given"),
    "heavy bytes as text": (bent(layers__heavy_bytes="50 MB"), "heavy_bytes = '50 MB' is no int"),
    "group without name": (bent(layers__group__0__name=GONE), "name must be given"),
    "group of one string": (bent(layers__group__0__packages="*"), r"packages = '\*' is no list"),
    "group of numbers": (bent(layers__group__0__packages=[1]), "packages must be a list of strings"),
    "groups as a table": (bent(layers__group={"name": "x"}), "group = .* is no list"),
    "debian is a list": (bent(debian=["gcc"]), "debian = .* is no dict"),
    "debian packages as a list": (bent(debian__packages=["gcc"]), "packages = .* is no dict"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named_by_its_key(name, tmp_path):
    document, says = WRONG[name]
    with pytest.raises(PinsError) as e:
        load(tmp_path, document)
    assert re.search(says, e.value.what)
    assert e.value.where == f"{tmp_path / 'stacks.toml'}, [stack.demo]"
    assert e.value.todo
    assert e.value.__suppress_context__


@pytest.mark.parametrize(
    ("asked", "answer"),
    [("dmeo", "did you mean 'demo'?"), ("demo2", "did you mean 'demo'?"), ("x", "add [stack.x] there")],
)
def test_an_unknown_stack(asked, answer, tmp_path):
    with pytest.raises(UsageError) as e:
        load(tmp_path, name=asked)
    assert e.value.what == f"there is no stack {asked!r}; known: demo"
    assert answer in e.value.todo


def test_no_stack_at_all(tmp_path):
    with pytest.raises(UsageError, match="known: none"):
        load(tmp_path, bent(stack=GONE))


def test_no_file(tmp_path):
    with pytest.raises(PinsError, match="there is no pins file") as e:
        pins.load(tmp_path / "stacks.toml", "demo")
    assert e.value.where == str(tmp_path / "stacks.toml")


def test_an_unreadable_file(tmp_path):
    (tmp_path / "stacks.toml").mkdir()
    with pytest.raises(StorageError, match="cannot read the pins"):
        pins.load(tmp_path / "stacks.toml", "demo")


@pytest.mark.parametrize("data", [b"[stack", b"a = 1\na = 2\n", b"\xff\xfe", b"x = 1.2.3\n"])
def test_not_toml(data, tmp_path):
    (tmp_path / "stacks.toml").write_bytes(data)
    for ask in (lambda path: pins.load(path, "demo"), pins.names):
        with pytest.raises(PinsError, match="the pins are not TOML"):
            ask(tmp_path / "stacks.toml")


# -- the checksum

CHANGES = {
    "title": bent(stack__demo__title="other"),
    "python": bent(stack__demo__python="3.11"),
    "cuda": bent(stack__demo__cuda="12.4"),
    "platform": bent(stack__demo__platform="x86_64-manylinux_2_36"),
    "base": bent(stack__demo__registry_base="registry.invalid/python:3.10@sha256:" + "b" * 64),
    "no base": bent(stack__demo__registry_base=GONE),
    "bound": bent(stack__demo__requires__torch={"bound": "==2.3.0", "why": "x"}),
    "one more": bent(stack__demo__requires__six={"bound": "", "why": "x"}),
    "build tool": bent(stack__demo__build_tools__setuptools={"bound": "==75.8.1", "why": "x"}),
    "tag": bent(stack__demo__verl__tag="v0.2"),
    "commit": bent(stack__demo__verl__commit="e" * 40),
    "no commit": bent(stack__demo__verl__commit=GONE),
    "repository": bent(stack__demo__verl__repository="https://git.invalid/fork"),
    "sdist": bent(stack__demo__verl__sdist="verl-0.2.0.post2.zip"),
    "sdist hash": bent(stack__demo__verl__sdist_sha256="6" * 64),
    "strip": bent(stack__demo__verl__strip=[]),
    "variable": bent(stack__demo__environment__TORCH_COMPILE_DISABLE={"value": "0", "why": "x"}),
    "shared variable": bent(image__environment__LANG={"value": "C", "why": "x"}),
    "extension": bent(stack__demo__flash_attn=GONE),
    "extension's version": bent(stack__demo__flash_attn__version="2.6.3"),
    "extension's source": bent(stack__demo__flash_attn__sdist="x.tar.gz"),
    "extension's hash": bent(stack__demo__flash_attn__sdist_sha256="6" * 64),
    "extension's tools": bent(stack__demo__flash_attn__build_tools={"ninja": {"bound": "==1", "why": "x"}}),
    "architectures": bent(stack__demo__flash_attn__cuda_archs={"8.0": "x"}),
    "wheel": pinned(),
    "wheel's hash": pinned(wheel_sha256="9" * 64),
    "wheel's size": pinned(wheel_size=10),
    "wheel's compiler": pinned(wheel_compiler="nvcc 12.4.131, g++ 12.2.0"),
    "wheel's name": pinned(wheel=NAME.replace("+cu12torch2.3cxx11abiFALSE", "")),
    "left out": bent(stack__demo__leave_out={"six/x.py": "x"}),
    "debian": bent(debian__packages__git="x"),
    "heavy": bent(layers__heavy_bytes=1001),
    "group name": bent(layers__group__1__name="rest"),
    "group glob": bent(layers__group__0__packages=["google-*"]),
    "group order": bent(
        layers__group=[
            {"name": "libs", "packages": ["*"], "why": "x"},
            {"name": "cloud", "packages": ["google-*", "grpcio"], "why": "x"},
        ]
    ),
    "epoch": bent(image__epoch=1),
    "level": bent(image__compression__level=4),
    "window": bent(image__compression__window_log=21),
    "long distance": bent(image__compression__long_distance=False),
    "library": bent(image__compression__library="1.5.6"),
    "fast level": bent(image__compression__fast_level=-4),
}


def test_any_value_changes_the_checksum(tmp_path):
    sums = {name: load(tmp_path, document).checksum for name, document in CHANGES.items()}
    sums["as it is"] = load(tmp_path).checksum
    assert len(set(sums.values())) == len(sums)


def test_every_field_is_tried():
    """A field added to Stack must be added to CHANGES too."""
    fields = {f.name for f in dataclasses.fields(pins.Stack)}
    without_effect = {"dockerfile"}  # see test_bakefile
    assert fields - without_effect == {
        *(
            "name",
            "title",
            "python",
            "cuda",
            "platform",
            "registry_base",
            "requires",
            "build_tools",
            "verl",
            "environment",
        ),
        *("flash_attn", "debian_packages", "heavy_bytes", "groups", "epoch", "compression", "fast_level", "leave_out"),
    }


def test_comments_reasons_and_order_do_not_count(tmp_path):
    first = load(tmp_path).checksum
    document = bent(
        stack__demo__requires__torch={"why": "another reason", "bound": "==2.3.1"},
        stack__demo__flash_attn__why="another reason",
        layers__group__0__why="another reason",
        stack__other={},
    )
    document["stack"]["demo"] = dict(reversed(document["stack"]["demo"].items()))
    path = stacks.write(tmp_path, document)
    path.write_text("# a comment\n" + path.read_text(), encoding="utf-8")
    assert pins.load(path, "demo").checksum == first


def test_where_a_wheel_is_looked_for_does_not_count(tmp_path):
    """So that a mirror of one's own gives the same image."""
    places = pinned(prebuilt="https://git.invalid/w.whl", wheelhouse="r.invalid/wheels")
    assert load(tmp_path, places).checksum == load(tmp_path, pinned()).checksum


def test_canonical_json_has_one_form(tmp_path):
    assert canonical.dumps({"b": tmp_path, "a": (1, "ü")}) == f'{{"a":[1,"ü"],"b":"{tmp_path}"}}'.encode()
    assert canonical.dumps(Group(name="n", packages=())) == b'{"name":"n","packages":[]}'
    assert canonical.digest([]) == "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"
    for value in ({1, 2}, object(), Group):
        with pytest.raises(TypeError, match="has no canonical form"):
            canonical.dumps(value)
    with pytest.raises(ValueError, match="Out of range"):
        canonical.dumps(float("nan"))


@pytest.mark.parametrize(
    "text",
    [b"", b"NaN", b"-Infinity", b"1e999", b"[-1e999]", b'"\\ud800"', b'{"\\udfff": 1}', b'"\xed\xa0\x80"', b"\xff",
     b"[" * 960 + b"]" * 960, b"[" * 100_000],
)  # fmt: skip
def test_a_document_that_could_not_be_written_again(text):
    with pytest.raises((ValueError, RecursionError)):
        canonical.loads(text)


def test_what_is_read_is_written_again():
    text = '{"a":[1,-2.5,1e+300,true,null,"ü😀"]}'
    assert canonical.dumps(canonical.loads(text.encode())) == text.encode()
    assert canonical.loads(b'"\\ud83d\\ude00"') == "😀"


def test_what_is_just_not_too_deep_is_written_inside_of_others():
    deep = None
    with contextlib.suppress(RecursionError):
        for number in range(1, 2000):
            deep = canonical.loads(b"[" * number + b"]" * number)
    for _ in range(50):
        deep = {"a": deep}
    assert canonical.dumps(deep)


# -- bugs found while these tests were written; each mark goes when its fix comes ------------------------------------

CRASHES = {
    "stack is a number": bent(stack=3),
    "stack is a string": bent(stack="demo"),
    "stack is a list": bent(stack=["demo"]),
    "one stack is a number": bent(stack__demo=3),
    "group is a string": bent(layers__group=["libs"]),
}


@pytest.mark.parametrize("name", CRASHES)
def test_a_value_where_a_table_belongs(name, tmp_path):
    with pytest.raises(VerlstackError):
        load(tmp_path, CRASHES[name])


ACCEPTED = {
    "verl without why": bent(stack__demo__verl__why=GONE),
    "debian package without why": bent(debian__packages__gcc=""),
    "why is a number": bent(stack__demo__requires__torch={"bound": "==2.3.1", "why": 3}),
    "why is blank": bent(stack__demo__requires__torch={"bound": "==2.3.1", "why": " "}),
    "hash that is no hash": bent(stack__demo__verl__sdist_sha256="z" * 64),
    "commit that is no hash": bent(stack__demo__verl__commit="z" * 40),
    "digest that is no digest": bent(stack__demo__registry_base="registry.invalid/python@sha256:abc"),
    "negative epoch": bent(image__epoch=-1),
    "window out of range": bent(image__compression__window_log=5),
    "level out of range": bent(image__compression__level=99),
    "python with a patch release": bent(stack__demo__python="3.10.1"),
    "unknown platform": bent(stack__demo__platform="linux"),
    "one project twice": bent(stack__demo__requires__Torch={"bound": "==2.3.0", "why": "x"}),
    "an address": bent(stack__demo__requires__six={"bound": " @ https://index.invalid/six.whl", "why": "x"}),
    "two groups of one name": bent(layers__group__0__name="libs"),
    "strip that climbs": bent(stack__demo__verl__strip=["../.."]),
    "strip of an absolute path": bent(stack__demo__verl__strip=["/etc"]),
    "password in an address": bent(stack__demo__verl__repository="https://user:pw@git.invalid/x"),
    "option as an address": bent(stack__demo__verl__repository="--upload-pack=x"),
    "sdist that climbs": bent(stack__demo__verl__sdist=".."),
    "bound without operator": bent(stack__demo__requires__torch={"bound": "2.3.1", "why": "x"}),
    "misspelled key": bent(stack__demo__enviroment={"X": {"value": "1", "why": "x"}}),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_more_mistakes(name, tmp_path):
    with pytest.raises(PinsError):
        load(tmp_path, ACCEPTED[name])


@pytest.mark.parametrize("name", ["../demo", "a/b", "a\nb", ""])
def test_names_that_are_no_file_names(name, tmp_path):
    document = bent()
    document["stack"][name] = document["stack"]["demo"]
    with pytest.raises(VerlstackError):
        load(tmp_path, document, name)


@pytest.mark.parametrize("place", ["six", "six/", "Six/x.py", "six/../x.py", "six//x.py", "six/x\nevil==1"])
def test_what_is_no_file_of_a_package(place, tmp_path):
    with pytest.raises(PinsError, match=r"leave_out.* must be package/path"):
        load(tmp_path, bent(stack__demo__leave_out={place: "a stray"}))


def test_files_that_are_left_out(tmp_path):
    stack = load(tmp_path, bent(stack__demo__leave_out={"six/b/c.py": "a stray", "six/a.py": "likewise"}))
    assert stack.leave_out == (("six", "a.py"), ("six", "b/c.py"))
    with pytest.raises(PinsError, match=r"leave_out\.six/a\.py must be \"the reason\""):
        load(tmp_path, bent(stack__demo__leave_out={"six/a.py": ""}))
