"""Errors: what, where, what to do; one exit code each; whole after a process boundary."""

import importlib
import pickle
import pkgutil
import traceback

import pytest

import verlstack
from verlstack.errors import FetchError, HashMismatchError, UsageError, VerlstackError

NAMES = [m.name for m in pkgutil.iter_modules(verlstack.__path__) if m.name not in {"__main__", "engine"}]


def kinds():
    """Every error class of the package, wherever it is defined."""
    for name in NAMES:
        importlib.import_module(f"verlstack.{name}")
    found, todo = [], [VerlstackError]
    while todo:
        found.append(kind := todo.pop())
        todo += [k for k in kind.__subclasses__() if k.__module__.startswith("verlstack.")]
    return sorted(found, key=lambda kind: kind.__name__)


def test_all_are_found():
    assert {"UsageError", "HashMismatchError", "ProgramMissingError", "WheelError"} <= {k.__name__ for k in kinds()}


@pytest.mark.parametrize("where", [None, "stacks.toml:3"])
@pytest.mark.parametrize("todo", [None, "mend it"])
def test_an_error_survives_a_process_boundary(where, todo):
    for kind in kinds():
        error = kind("it broke", where=where, todo=todo)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert (again.what, again.where, again.todo) == ("it broke", where, todo)
        assert str(again) == str(error)
        assert again.args == error.args


def test_text():
    assert str(UsageError("it broke")) == "it broke"
    assert str(UsageError("it broke", where="a:1")) == "it broke\n  where: a:1"
    assert str(UsageError("it broke", todo="mend it")) == "it broke\n  do:    mend it"
    assert str(UsageError("it broke", where="a:1", todo="mend it")) == "it broke\n  where: a:1\n  do:    mend it"


def test_each_kind_has_its_own_exit_code():
    codes = {kind.__name__: kind.exit_code for kind in kinds()}
    assert len(set(codes.values())) == len(codes)
    assert all(0 < code < 124 for code in codes.values())  # 124 and up belong to timeout, shells and signals
    assert codes["UsageError"] == 2  # as argparse


def test_a_wrong_hash_is_a_failed_fetch():
    assert issubclass(HashMismatchError, FetchError)


def test_where_and_todo_are_given_by_name():
    with pytest.raises(TypeError):
        UsageError("it broke", "a:1")


def test_a_traceback_shows_the_text():
    assert "it broke" in "".join(traceback.format_exception(UsageError("it broke")))
