"""Pins changed by program: comments stay, nothing else changes, and it is all or nothing."""

import contextlib
import tomllib
import types
from pathlib import Path

import pytest

from support import stacks
from verlstack import lockfile, pins, repin
from verlstack.cache import Cache
from verlstack.errors import FetchError, LockError, PinsError

TEXT = """# first
[a]
x = 1

[a.b]   # why
wheel = "old"  # because
size = 1_000
why = "said"

[a.b.c]
wheel = "inner"
"""


def edit(text=TEXT, table="a.b", **values):
    return repin.edit(text, table, values, where="f")


def test_a_value_is_replaced_and_its_comment_kept():
    changed = edit(wheel="new", size=7)
    assert changed == TEXT.replace('"old"', '"new"').replace("1_000", "7")


def test_a_new_value_comes_below_the_header():
    assert edit(sha256="x") == TEXT.replace("# why\n", '# why\nsha256 = "x"\n')


def test_a_value_with_quotes():
    assert tomllib.loads(edit(wheel='a"b\\'))["a"]["b"]["wheel"] == 'a"b\\'


def test_a_table_that_is_inherited_whole_gets_a_header():
    text = "[a]\nx = 1\n\n# of c\n[c]\n"
    assert edit(text, wheel="new") == '[a]\nx = 1\n\n[a.b]\nwheel = "new"\n\n# of c\n[c]\n'


def test_the_real_pins():
    text = (Path(__file__).parents[2] / "constraints" / "stacks.toml").read_text()
    changed = edit(text, "stack.cu121.flash_attn", wheel="w", wheel_sha256="0", wheel_size=3)
    before, after = text.splitlines(), changed.splitlines()
    assert [line for line in after if line not in before] == ['wheel = "w"', 'wheel_sha256 = "0"', "wheel_size = 3"]
    assert [line for line in after if line in before] == before


@pytest.mark.parametrize(
    "text",
    [
        "a = { b = { wheel = 'x' } }\n",  # no header
        "a.b.wheel = 'x'\n",
        '[a]\nb = """\n[a.b]\n"""\n',  # a header inside a string
        '[a.b]\nwheel = """\nold"""\n',  # a value over two lines
        "[a.b]\nwheel = ['x']\n",
        "[[a.b]]\nwheel = 'x'\n",
        "not toml",
        "",
    ],
)
def test_what_cannot_be_edited_safely_is_refused(text):
    with pytest.raises(PinsError, match=r"cannot edit \[a.b\] by program") as e:
        edit(text, wheel="new")
    assert 'wheel = "new"' in e.value.todo


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A workshop whose lock writes what the pins say and no more."""
    folder = tmp_path / "constraints"
    folder.mkdir()
    stacks.write(folder)
    path = folder / "stacks.toml"
    path.write_text("[stack.demo.flash_attn]\n" + toml_flash_attn(path))
    (folder / "demo.txt").write_text("old txt")
    (folder / "demo.lock.toml").write_text("old lock")

    def lock(stack, shop):
        for at, text in zip(lockfile.paths(shop.constraints, stack.name), ("new txt", "new lock"), strict=True):
            at.write_text(text)
        return types.SimpleNamespace(stack=stack.name, wheel=stack.flash_attn.wheel)

    monkeypatch.setattr("verlstack.lock.lock", lock)
    cache = Cache(tmp_path / "cache")
    with cache.use():
        yield repin_shop(folder, cache)


def repin_shop(folder, cache):
    from verlstack.progress import Silent
    from verlstack.workshop import Workshop

    return Workshop(constraints=folder, smoke_tests=folder, cache=cache, env={}, progress=Silent(), workers=1)


def toml_flash_attn(path):
    """The same pins with flash_attn as a table of its own, at the top."""
    document = tomllib.loads(path.read_text())
    own = document["stack"]["demo"].pop("flash_attn")
    rest = dict(document)
    stack = rest.pop("stack")["demo"]
    lines = [f"{key} = {stacks.toml(value)}\n" for key, value in own.items()]
    lines += ["[stack.demo]\n", *(f"{key} = {stacks.toml(value)}\n" for key, value in stack.items())]
    for name, table in rest.items():
        lines += [f"[{name}]\n", *(f"{key} = {stacks.toml(value)}\n" for key, value in table.items())]
    return "".join(lines)


VALUES = {"wheel": "flash_attn-2.5.9.post1-py3-none-any.whl", "wheel_sha256": "8" * 64, "wheel_size": 4}


def now(shop):
    return [(shop.constraints / name).read_text() for name in ("stacks.toml", "demo.txt", "demo.lock.toml")]


def test_pins_and_lock_change_together(shop):
    made = repin.repin("demo", "stack.demo.flash_attn", VALUES, shop)
    assert made.wheel == VALUES["wheel"]
    text, *locks = now(shop)
    assert locks == ["new txt", "new lock"]
    assert "8" * 64 in text
    assert pins.load(shop.constraints / "stacks.toml", "demo").flash_attn.wheel_size == 4
    assert sorted(path.name for path in shop.constraints.iterdir()) == ["demo.lock.toml", "demo.txt", "stacks.toml"]


@pytest.mark.parametrize("values", [VALUES | {"wheel_sha256": "short"}, {"wheel": "x.whl"}])
def test_wrong_values_change_nothing(shop, values):
    before = now(shop)
    with pytest.raises(PinsError):
        repin.repin("demo", "stack.demo.flash_attn", values, shop)
    assert now(shop) == before


def test_a_lock_that_fails_changes_nothing(shop, monkeypatch):
    def fail(*_):
        raise FetchError("no index")

    monkeypatch.setattr("verlstack.lock.lock", fail)
    before = now(shop)
    with pytest.raises(FetchError):
        repin.repin("demo", "stack.demo.flash_attn", VALUES, shop)
    assert now(shop) == before


def test_an_error_names_the_users_file_and_not_the_copy(shop, monkeypatch):
    def fail(stack, other):
        assert other.constraints != shop.constraints
        raise PinsError("they do not resolve", where=f"{other.constraints / 'stacks.toml'}, [stack.demo]")

    monkeypatch.setattr("verlstack.lock.lock", fail)
    with pytest.raises(PinsError, match="do not resolve") as e:
        repin.repin("demo", "stack.demo.flash_attn", VALUES, shop)
    assert e.value.where == f"{shop.constraints / 'stacks.toml'}, [stack.demo]"


def test_values_that_the_pins_refuse_are_told_of_the_users_file(shop):
    with pytest.raises(PinsError) as e:
        repin.repin("demo", "stack.demo.flash_attn", {"wheel": "x.whl"}, shop)
    assert e.value.where.startswith(f"{shop.constraints / 'stacks.toml'}")


def test_pins_that_were_changed_meanwhile_are_kept(shop, monkeypatch):
    def edit(stack, other):
        path = shop.constraints / "stacks.toml"
        path.write_text(path.read_text() + "# mine\n")
        return types.SimpleNamespace(stack=stack.name)

    monkeypatch.setattr("verlstack.lock.lock", edit)
    _, *locks = now(shop)
    with pytest.raises(PinsError, match="changed meanwhile"):
        repin.repin("demo", "stack.demo.flash_attn", VALUES, shop)
    text, *after = now(shop)
    assert text.endswith("# mine\n")
    assert "8" * 64 not in text
    assert after == locks


def test_one_change_of_the_pins_at_a_time(shop, monkeypatch):
    """The lock is held while the pins are read, made and replaced."""
    held = []

    @contextlib.contextmanager
    def lock(name):
        held.append(name)
        before = (shop.constraints / "stacks.toml").read_text()
        yield
        assert (shop.constraints / "stacks.toml").read_text() != before

    monkeypatch.setattr(shop.cache, "lock", lock)
    repin.repin("demo", "stack.demo.flash_attn", VALUES, shop)
    assert held == ["pins"]


def test_killed_between_the_writes_the_lock_is_stale(shop, monkeypatch):
    """The second file is never written: as after a kill."""
    real, written = repin.atomic, []

    def atomic(target, **options):
        if written:
            raise KeyboardInterrupt
        written.append(target.name)
        return real(target, **options)

    monkeypatch.setattr(repin, "atomic", atomic)
    with pytest.raises(KeyboardInterrupt):
        repin.repin("demo", "stack.demo.flash_attn", VALUES, shop)
    assert written == ["stacks.toml"]
    stack = pins.load(shop.constraints / "stacks.toml", "demo")
    with pytest.raises(LockError, match="lock") as e:
        lockfile.load(shop.constraints, stack)
    assert e.value.todo == "run `verlstack lock demo`"
