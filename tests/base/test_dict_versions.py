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
    read = dict_versions.reader((quiet, held))
    before = read()
    _ = held.get("a"), list(held), held.copy(), held == quiet
    assert read() == before
    CHANGES[change](held)
    after = read()
    assert after != before and dict_versions.changed(before, after) == [1]
    assert dict_versions.of_some(after, [1]) == dict_versions.reader((held,))()


def test_an_object_behind_its_dict(way: str) -> None:
    obj = type("Many", (), {})()
    for i in range(40):  # too many for values that lie in the object
        setattr(obj, f"a{i}", i)
    read = dict_versions.reader((obj.__dict__,))
    before = read()
    for _ in range(100):  # until the interpreter has specialised the instruction
        obj.a0 = obj.a0 + 1
        assert read() != before
        before = read()
    del obj.a1
    assert read() != before


def test_no_dicts(way: str) -> None:
    read = dict_versions.reader(())
    assert read() == read() and dict_versions.changed(read(), read()) == []


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
