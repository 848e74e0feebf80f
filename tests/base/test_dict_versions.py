"""Versions of dicts: each change gives another, nothing else does; as they lie in memory, and as torch tells them."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict

import pytest

from tinycompile.base import dict_versions

pytestmark = pytest.mark.pure
CHANGES = {
    "set": lambda d: d.__setitem__("a", 2),
    "set to an equal": lambda d: d.__setitem__("a", 1.0),
    "add": lambda d: d.__setitem__("z", 2),
    "delete": lambda d: d.__delitem__("a"),
    "pop": lambda d: d.pop("a"),
    "popitem": lambda d: d.popitem(),
    "setdefault": lambda d: d.setdefault("z", 1),
    "update": lambda d: d.update(a=3),
    "merge": lambda d: d.__ior__({"a": 3}),
    "clear": lambda d: d.clear(),
    "grow": lambda d: d.update({i: i for i in range(100)}),
}


class Plain:
    def __init__(self) -> None:
        self.a, self.b = 1, 2


@pytest.fixture(params=["memory", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the two ways to read them."""
    if request.param == "torch":
        monkeypatch.setattr(dict_versions, "LIES_IN_MEMORY", False)
    if not dict_versions.can_tell():
        pytest.skip("this torch has no dict_version")
    return request.param


def test_python_up_to_313_has_them_in_memory() -> None:
    assert dict_versions.LIES_IN_MEMORY == ((3, 11) <= sys.version_info[:2] <= (3, 13))


@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda pairs: defaultdict(int, pairs)])
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_gives_another(way: str, change: str, kind: type) -> None:
    quiet, held = {"q": 1}, kind({"a": 1, "b": 2})
    read = dict_versions.Reader((quiet, held))
    before = read()
    _ = held.get("a"), list(held), held.copy(), held == quiet
    assert read() == before
    CHANGES[change](held)
    after = read()
    assert after != before
    assert [a == b for a, b in zip(read.parts(before), read.parts(after), strict=True)] == [True, False]
    one = dict_versions.Reader((held,))
    assert read.parts(after)[1:] == one.parts(one())


def test_an_object_behind_its_dict(way: str) -> None:
    obj = type("Many", (), {})()
    for i in range(40):  # too many for values that lie in the object
        setattr(obj, f"a{i}", i)
    read = dict_versions.Reader((obj.__dict__,))
    before = read()
    for _ in range(100):  # until the interpreter has specialised the instruction
        obj.a0 = obj.a0 + 1
        assert read() != before
        before = read()
    del obj.a1
    assert read() != before


def test_no_dicts(way: str) -> None:
    read = dict_versions.Reader(())
    assert read() == read() and read.parts(read()) == []


CHANGES_OF_OBJECTS = {
    "set": lambda o: setattr(o, "a", 5),
    "add": lambda o: setattr(o, "c", 5),
    "delete": lambda o: delattr(o, "b"),
    "delete and add": lambda o: (delattr(o, "a"), setattr(o, "a", 1)),
    "by its dict": lambda o: vars(o).update(a=7),
    "cleared": lambda o: vars(o).clear(),
    "odd key": lambda o: vars(o).update({1: 2}),
    "many": lambda o: [setattr(o, f"n{i}", i) for i in range(40)],
    "another dict": lambda o: setattr(o, "__dict__", {"a": 1}),
}


@pytest.mark.skipif(not dict_versions.LIES_IN_MEMORY, reason="reads memory")
@pytest.mark.parametrize("change", CHANGES_OF_OBJECTS)
def test_values_behind_an_object(change: str) -> None:
    obj, quiet = Plain(), Plain()
    watched = (vars(quiet), vars(obj), {"q": 1})
    assert dict_versions.lies_inline(vars(obj)) == (sys.version_info >= (3, 13))
    read = dict_versions.Reader(watched)
    before = read()
    quiet.a, kept = quiet.a, dict(vars(obj))
    _ = obj.a, list(vars(obj)), vars(obj) == kept
    if sys.version_info >= (3, 13):  # (before, to set what is there is a change)
        assert read() == before
    before = read()
    CHANGES_OF_OBJECTS[change](obj)
    after = read()
    assert after != before or change == "another dict"  # whose object has another now
    read = dict_versions.Reader(watched)
    assert read() == read() and len(read.parts(read())) == 3


@pytest.mark.skipif(not dict_versions.LIES_IN_MEMORY, reason="reads memory")
def test_the_object_behind_a_dict_dies() -> None:
    obj = Plain()
    held = vars(obj)
    read = dict_versions.Reader((held,))
    before = read()
    del obj
    assert held == {"a": 1, "b": 2}
    assert read() != before or sys.version_info < (3, 13)
    read = dict_versions.Reader((held,))
    before = read()
    held["a"] = 3
    assert read() != before


@pytest.mark.skipif(not dict_versions.LIES_IN_MEMORY, reason="reads memory")
def test_classes_and_empty_dicts() -> None:
    class Other(Plain):
        pass

    objects, empty = [Plain() for _ in range(3)], [{}, OrderedDict()]
    still = dict_versions.still(objects, empty)
    assert still()
    objects[1].a, objects[1].c = 5, 6
    assert still()
    objects[1].__class__ = Other
    assert not still()
    objects[1].__class__ = Plain
    assert still()
    for held in empty:
        held.update(a=1)
        assert not still()
        held.clear()
        assert still()
    assert dict_versions.still(objects, [[]]) is None
