"""Which kernel a call runs, with tensors that are nothing but keys and a device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tinycompile.base.device import Device
from tinycompile.dispatch import dispatcher, local_keys
from tinycompile.dispatch.keys import BACKENDS, Key, KeySet

pytestmark = pytest.mark.pure

A, B = "test_only_a", "test_only_b"


@dataclass(frozen=True)
class Dummy:
    keys: int
    device: Device = Device("cpu")
    shape: tuple[int, ...] = (2,)


OTHER = Dummy(KeySet.of(Key.PRIVATEUSE1), Device("privateuseone", 0))  # a backend without a fallback of ours


@pytest.fixture(autouse=True)
def ops() -> Iterator[None]:
    dispatcher.define(f"{A}(Tensor self, Tensor[]? more=None, *, Device? device=None) -> Tensor")
    dispatcher.define(f"{B}(*, Device? device=None) -> Tensor")
    yield
    dispatcher.undefine(A)
    dispatcher.undefine(B)


@pytest.fixture
def batched() -> Iterator[list[str]]:
    """A fallback for Batched that notes the op and goes on below."""
    seen: list[str] = []

    def note(name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
        seen.append(f"{name} {keyset}")
        return dispatcher.redispatch(name, keyset.below(Key.BATCHED), args)

    before = dispatcher.fallback(Key.BATCHED, note)
    yield seen
    dispatcher.fallback(Key.BATCHED, before)


def test_a_registered_kernel_runs_with_defaults_filled_in() -> None:
    dispatcher.register(A, Key.PRIVATEUSE1, lambda *args: args)
    assert dispatcher.call(A, OTHER) == (OTHER, None, None)
    assert dispatcher.call(A, self=OTHER, device="mps") == (OTHER, None, "mps")


def test_the_highest_key_runs_first_and_can_redispatch() -> None:
    trail: list[str] = []

    def autograd(keyset: KeySet, *args: Any) -> Any:
        trail.append(str(keyset))
        return dispatcher.redispatch(A, keyset.below(Key.AUTOGRAD), args)

    dispatcher.register(A, Key.AUTOGRAD, autograd, with_keyset=True)
    dispatcher.register(A, Key.PRIVATEUSE1, lambda *args: trail.append("backend"))
    dispatcher.call(A, Dummy(KeySet.of(Key.AUTOGRAD, Key.PRIVATEUSE1), OTHER.device))
    assert trail == ["{AUTOGRAD, PRIVATEUSE1}", "backend"]


def test_keys_without_anything_to_run_are_fallen_through() -> None:
    dispatcher.register(A, Key.PRIVATEUSE1, lambda *args: "backend")
    assert dispatcher.call(A, Dummy(KeySet.of(Key.AUTOGRAD, Key.AUTOCAST, Key.PRIVATEUSE1), OTHER.device)) == "backend"


def test_a_boxed_fallback_serves_every_op(batched: list[str]) -> None:
    dispatcher.register(A, Key.PRIVATEUSE1, lambda *args: "backend")
    both = Dummy(KeySet.of(Key.BATCHED, Key.PRIVATEUSE1), OTHER.device)
    assert dispatcher.call(A, both) == "backend"
    assert batched == [f"{A} {{BATCHED, PRIVATEUSE1}}"]
    dispatcher.register(A, Key.BATCHED, lambda *args: "own kernel")
    assert dispatcher.call(A, both) == "own kernel"


def test_keys_in_lists_count() -> None:
    dispatcher.register(A, Key.PRIVATEUSE1, lambda *args: "backend")
    dispatcher.register(A, Key.TRACING, lambda *args: "traced")
    fake = Dummy(KeySet.of(Key.TRACING, Key.PRIVATEUSE1), OTHER.device)
    assert dispatcher.call(A, OTHER, [OTHER, fake]) == "traced"


def test_a_named_device_goes_before_that_of_the_tensors() -> None:
    dispatcher.register(A, Key.CUDA, lambda *args: "cuda")
    dispatcher.register(A, Key.PRIVATEUSE1, lambda *args: "other")
    assert [dispatcher.call(A, OTHER, device=d) for d in (None, "cuda:1", "mps")] == ["other", "cuda", "other"]
    dispatcher.let_devices_differ(A)
    assert dispatcher.call(A, OTHER, device="cuda") == "other"  # the op moves it there


def test_without_tensors_the_device_argument_chooses() -> None:
    dispatcher.register(B, Key.CUDA, lambda device: "cuda")
    dispatcher.register(B, Key.CPU, lambda device: "cpu")
    dispatcher.register(B, Key.PRIVATEUSE1, lambda device: "other")
    assert [dispatcher.call(B, device=d) for d in (None, "cuda:1", Device("cpu"), "mps")] == ["cpu", "cuda", "cpu", "other"]


def test_registration_replaces_and_removes_and_reaches_cached_choices(batched: list[str]) -> None:
    dispatcher.register(A, Key.PRIVATEUSE1, lambda *args: 1)
    assert dispatcher.call(A, OTHER) == 1
    dispatcher.register(A, Key.PRIVATEUSE1, lambda *args: 2)
    assert dispatcher.call(A, OTHER) == 2
    dispatcher.composite(A, lambda *args: 3)
    assert dispatcher.call(A, OTHER) == 2
    dispatcher.register(A, Key.PRIVATEUSE1, None)
    assert dispatcher.call(A, OTHER) == 3


def test_nothing_to_run_says_what_there_is() -> None:
    dispatcher.register(A, Key.TRACING, lambda *args: 1)
    with pytest.raises(NotImplementedError, match=r"Could not run 'test_only_a' with keys {PRIVATEUSE1}.*kernels: TRACING"):
        dispatcher.call(A, OTHER)


def test_unknown_and_taken_names() -> None:
    with pytest.raises(KeyError, match="no op 'test_only_c'"):
        dispatcher.call("test_only_c")
    with pytest.raises(ValueError, match="defined already"):
        dispatcher.define(f"{A}(Tensor self) -> Tensor")


# --- guards ---


def test_include_and_exclude_and_their_order() -> None:
    dispatcher.register(A, Key.PRIVATEUSE1, lambda *args: "backend")
    dispatcher.register(A, Key.TRACING, lambda *args: "traced")
    with local_keys.include(Key.TRACING):
        assert dispatcher.call(A, OTHER) == "traced"
        with local_keys.exclude(Key.TRACING):
            assert dispatcher.call(A, OTHER) == "backend"
        assert dispatcher.call(A, OTHER) == "traced"
    assert dispatcher.call(A, OTHER) == "backend"


def test_a_guard_is_reentrant_and_undone_by_an_exception() -> None:
    guard = local_keys.exclude(KeySet.of(Key.AUTOGRAD, Key.AUTOCAST))
    with pytest.raises(ZeroDivisionError):
        with guard, guard:
            assert set(local_keys.excluded()) == {Key.AUTOGRAD, Key.AUTOCAST}
            1 / 0
    assert not local_keys.excluded()


def test_guards_belong_to_a_thread_and_start_empty_in_any() -> None:
    seen: list[Any] = []
    guard = local_keys.include(Key.TRACING)

    def other() -> None:
        seen.append(set(local_keys.included()))
        with guard:
            seen.append(set(local_keys.included()))
        seen.append(set(local_keys.included()))

    with guard:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert set(local_keys.included()) == {Key.TRACING}
    assert seen == [set(), {Key.TRACING}, set()]


# --- devices ---


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("cuda:0", "cpu", "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
        (
            "cuda:0",
            "cuda:1",
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!",
        ),
        ("cpu", "meta", "Tensor on device meta is not on the expected device cpu!"),
    ],
)
def test_tensors_on_two_devices_are_refused_as_torch_does(first: str, second: str, message: str) -> None:
    dispatcher.register(A, Key.PRIVATEUSE1, lambda *args: None)
    a, b = (Dummy(OTHER.keys, Device.of(d)) for d in (first, second))
    with pytest.raises(RuntimeError) as error:
        dispatcher.call(A, a, [b])
    assert str(error.value) == message
    dispatcher.let_devices_differ(A)
    dispatcher.call(A, a, [b])


def test_cpu_scalars_may_go_anywhere() -> None:
    dispatcher.register(A, Key.CUDA, lambda *args: "cuda")
    dispatcher.register(A, Key.CPU, lambda *args: "cpu")
    wide = Dummy(KeySet.of(Key.CUDA), Device("cuda", 0))
    scalar = Dummy(KeySet.of(Key.CPU), Device("cpu"), ())
    assert dispatcher.call(A, scalar, [wide, scalar]) == "cuda"


# --- introspection ---


def test_table_and_resolve(batched: list[str]) -> None:
    def own(*args: Any) -> None: ...

    dispatcher.register(A, Key.AUTOGRAD, own)
    dispatcher.composite(A, own)
    text = dispatcher.table(A)
    rows = {line.split()[0]: line.split()[1] for line in text.splitlines()[1:]}
    assert text.startswith(f"{A}(Tensor self") and list(rows) == [key.name for key in sorted(Key, reverse=True)]
    assert (rows["AUTOGRAD"], rows["BATCHED"], rows["FUNCTIONALIZE"], rows["PRIVATEUSE1"]) == (
        "kernel",
        "fallback",
        "fall",
        "composite",
    )
    choice = dispatcher.resolve(A, KeySet.of(Key.AUTOGRAD, Key.CPU))
    assert (choice.key, choice.kind, choice.fn) == (Key.AUTOGRAD, "kernel", own)
    assert "AUTOGRAD kernel" in str(choice)
    assert dispatcher.keyset_of(A, OTHER) == KeySet.of(Key.PRIVATEUSE1)


def test_every_backend_is_in_every_table() -> None:
    assert all(key.name in dispatcher.table(A) for key in BACKENDS)


def test_a_watcher_sees_each_handler_and_leaves_no_trace() -> None:
    dispatcher.define("watched_op(Tensor x) -> Tensor")
    seen = []

    def watcher(name, keyset, choice):
        def run(name, keyset, args):
            seen.append((name, choice.key, choice.kind))
            return choice.run(name, keyset, args)

        return run if name == "watched_op" else choice.run

    try:
        dispatcher.register("watched_op", Key.CPU, lambda x: 5)
        dispatcher.register(
            "watched_op",
            Key.AUTOGRAD,
            lambda keyset, x: dispatcher.redispatch("watched_op", keyset.below(Key.AUTOGRAD), (x,)),
            with_keyset=True,
        )
        x = Dummy(KeySet.of(Key.CPU))
        with local_keys.include(Key.AUTOGRAD):
            dispatcher.call("watched_op", x)
            dispatcher.watch(watcher)
            try:
                assert dispatcher.call("watched_op", x) == 5
            finally:
                dispatcher.unwatch(watcher)
            assert seen == [("watched_op", Key.AUTOGRAD, "kernel"), ("watched_op", Key.CPU, "kernel")]
            dispatcher.call("watched_op", x)
        assert len(seen) == 2
    finally:
        dispatcher.undefine("watched_op")
