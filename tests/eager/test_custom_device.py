"""A registered device over numpy memory: kernels, copies, fallbacks, gradients, capture, and code of its own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tests.eager import numpy_device
from tests.eager.numpy_device import KERNELS, NAME, log
from tinycompile.base import logs
from tinycompile.base.device import Device
from tinycompile.base.errors import FallbackWarning
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key
from tinycompile.eager.custom_device import forget_device

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def device(request) -> Iterator[Device]:
    """The device, with warnings that come each time, and an empty log."""
    made = numpy_device.register(getattr(request, "param", numpy_device.codegen))
    logs._said.clear()
    log.clear()
    yield made
    forget_device()


@pytest.fixture
def quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield


def there(t: torch.Tensor, index: int = 0) -> tinycompile.Tensor:
    return tinycompile.from_torch(t).to(f"{NAME}:{index}")


def same(mine: tinycompile.Tensor, theirs: torch.Tensor) -> None:
    assert mine.device.type == NAME and mine.dtype == theirs.dtype and mine.shape == theirs.shape
    torch.testing.assert_close(mine.cpu().torch().detach(), theirs.detach())


def test_its_name_is_torchs_too_and_packs() -> None:
    assert str(tinycompile.device(f"{NAME}:1")) == f"{NAME}:1" == str(torch.device(f"{NAME}:1"))
    assert Device.unpack(Device(NAME, 1).pack()) == Device(NAME, 1)
    assert Device(NAME).torch().type == NAME


def test_torchs_random_and_checkpoint_work_beside_it() -> None:
    """They ask the renamed backend for generators; so do our own checkpoint and the self-check."""
    torch.manual_seed(3)
    with torch.random.fork_rng():
        first = torch.rand(2)
    assert torch.equal(torch.rand(2), first)
    x = torch.randn(4, requires_grad=True)
    for run in (torch.utils.checkpoint.checkpoint, tinycompile.checkpoint):
        options = {"use_reentrant": False} if run is not tinycompile.checkpoint else {}
        given = x if options else tinycompile.from_torch(x.detach()).requires_grad_()
        out = run(lambda t: torch.sin(t) * 2, given, **options)
        out.sum().backward()
        torch.testing.assert_close(torch.as_tensor(given.grad if options else given.grad.torch()), 2 * torch.cos(x).detach())
    checked = tinycompile.compile(lambda t: torch.sin(t) * 2, options={"verify": "first"})
    torch.testing.assert_close(checked(x.detach()), 2 * torch.sin(x.detach()))


def test_there_is_one_slot() -> None:
    with pytest.raises(RuntimeError, match=f"taken by '{NAME}'"):
        tinycompile.register_device("other", len, len, {})
    with pytest.raises(KeyError, match="no op record is called matmull"):
        tinycompile.register_device(NAME, None, None, {"matmull": None})


def test_what_is_wrong_is_told_before_torch_is_renamed() -> None:
    with pytest.raises(ValueError, match="letters, digits and underscores, not 'my device'"):
        tinycompile.register_device("my device", len, len, {})
    with pytest.raises(TypeError, match="allocator is a function, not None"):
        tinycompile.register_device(NAME, None, len, {})
    with pytest.raises(TypeError, match="the kernel of add is a function, not 3"):
        tinycompile.register_device(NAME, len, len, {"add": 3})


def test_kernels_run_and_are_in_the_dispatch_table() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 3)
    x, y = there(a), there(b)
    log.clear()
    result = torch.relu(x @ y) + x @ y
    assert log == ["matmul", "relu", "matmul", "add"] and result.keyset == 1 << Key.PRIVATEUSE1
    same(result, torch.relu(a @ b) + a @ b)
    assert f"PRIVATEUSE1    kernel     numpy relu on {NAME}" in dispatcher.table("relu")


def test_factories_and_values() -> None:
    z = tinycompile.zeros(2, 3, device=NAME)
    assert (z.device, z.tolist(), str(z)) == (
        Device(NAME, 0),
        [[0.0] * 3] * 2,
        f"tensor([[0., 0., 0.],\n        [0., 0., 0.]], device='{NAME}:0')",
    )
    t = tinycompile.tensor([1, 2, 3], device=f"{NAME}:1")
    assert t.device == Device(NAME, 1) and t.dtype is torch.int64 and t[1].item() == 2 and bool(t[0])
    assert tinycompile.zeros_like(t).device == t.device and tinycompile.arange(3, device=NAME).tolist() == [0, 1, 2]
    assert z.torch() is z and z.data_ptr() == 0 and z.storage.memory.index == 0


def test_what_its_allocator_refuses_is_told_with_what_we_hold() -> None:
    def full(nbytes: int, index: int) -> None:
        raise MemoryError("the device is full")

    forget_device()
    tinycompile.register_device(NAME, full, numpy_device.copy, {})
    held = tinycompile.zeros(3)
    with pytest.raises(MemoryError, match="the device is full") as caught:
        tinycompile.empty(3, device=NAME)
    assert caught.value.__notes__[0].startswith("tinycompile holds: tensors: ") and held.numel()


def test_views_share_memory_and_need_no_kernel() -> None:
    a = torch.arange(12.0).reshape(3, 4)
    x = there(a)
    log.clear()
    views = [x.t(), x[1:, ::2], x.reshape(4, 3), x.reshape(2, 6)[1], x.unsqueeze(0), x.expand(2, 3, 4)]
    assert not log and all(v.storage is x.storage for v in views)
    for mine, theirs in zip(views, [a.t(), a[1:, ::2], a.reshape(4, 3), a.reshape(2, 6)[1], a.unsqueeze(0), a.expand(2, 3, 4)]):
        same(mine, theirs)
    same(x.t().reshape(12), a.t().reshape(12))
    assert x.t().reshape(12).storage is not x.storage


VIEWS = {
    "as_strided": lambda a: a.as_strided((2,), (2,), 1),
    "as_strided of a view": lambda a: a[2:].as_strided((2,), (1,)),
    "dtype": lambda a: a.view(torch.int32),
    "dtype of another size": lambda a: a[2:].view(torch.int16)[1:3],
    "parts": lambda a: a.split(2)[1],
    "unbind": lambda a: a.view(2, 3).unbind(0)[1],
    "unfold": lambda a: a.unfold(0, 2, 2)[1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_writes_through_views_reach_the_memory(name: str, quiet) -> None:
    a = torch.arange(6.0)
    x = there(a)
    mine, theirs = VIEWS[name](x), VIEWS[name](a)
    assert mine.storage is x.storage and mine.storage_offset() == theirs.storage_offset() and mine.stride() == theirs.stride()
    mine.fill_(7), theirs.fill_(7)
    same(x, a)
    same(mine, theirs)


def test_as_strided_under_gradients_is_a_view(quiet) -> None:
    x = there(torch.arange(6.0)).requires_grad_()
    y = x * 2
    y.as_strided((2,), (2,), 1).mul_(3)
    y.sum().backward()
    assert x.grad.tolist() == [2, 6, 2, 6, 2, 2]
    with pytest.raises(NotImplementedError, match=r"as_strided on npd:0 would be a view .* detach\(\)"):
        y[::2].as_strided((2,), (2,), 1)


IN_PLACE = {
    "apply": lambda a: a.apply_(lambda v: v + 1),
    "map": lambda a: a.map_(a.clone(), lambda v, w: v + w),
    "t": lambda a: a.t_(),
    "transpose": lambda a: a.transpose_(0, 1).add_(1),
    "unsqueeze": lambda a: a.unsqueeze_(0),
    "squeeze": lambda a: a.unsqueeze_(0).squeeze_(0),
    "as_strided": lambda a: a.as_strided_((2,), (2,), 1),
    "resize": lambda a: a.resize_(2),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_functions_in_place(name: str, quiet) -> None:
    a = torch.arange(6.0).reshape(2, 3)
    x = there(a)
    IN_PLACE[name](x), IN_PLACE[name](a)
    same(x, a)
    assert x.stride() == a.stride() and x.storage_offset() == a.storage_offset()


REFUSED = {
    "other memory": lambda a: a.set_(),
    "a float into ints": lambda a: a.int().add_(1.5),
    "overlapping": lambda a: a[1:].add_(a[:-1]),
    "expanded": lambda a: a[:1].expand(6).add_(1.0),
    "a number for a tensor": lambda a: a @ 2,
    "broadcast": lambda a: a[:1].add_(a),
    "integers of what is run in parts": lambda a: torch.nn.functional.glu(a.long()),
    "two dtypes of what is run in parts": lambda a: torch.prelu(a.double(), a[:1]),
    "a bad view": lambda a: a.unflatten(0, (4, 2)),
    "no bits": lambda a: ~a,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str, quiet) -> None:
    with pytest.raises((RuntimeError, TypeError)) as mine:
        REFUSED[name](there(torch.arange(6.0)))
    if name == "other memory":
        assert "npd:0 can't give a tensor other memory" in str(mine.value)
        return
    with pytest.raises(mine.type) as theirs:
        REFUSED[name](torch.arange(6.0))
    assert str(mine.value) == str(theirs.value)


NAMED = {
    "complex": lambda m, at: m.tensor([1 + 2j, 3j]).to(at),
    "complex, by name": lambda m, at: m.tensor([1 + 2j, 3j]).to(device=at),
    "complex, to another dtype": lambda m, at: m.tensor([1 + 2j, 3j]).to(at, torch.complex128),
    "complex, filled": lambda m, at: m.full((2,), 1j, device=at),
    "complex, like another": lambda m, at: torch.ones_like(m.tensor([1j]), device=at),
    "small unsigned integers": lambda m, at: m.tensor([1, 2], dtype=torch.uint16).to(at),
    "eight bits": lambda m, at: m.ones(2).to(torch.float8_e4m3fn).to(at).to(torch.float32),
    "no record": lambda m, at: m.randint(1, 2, (3,), device=at),
}


@pytest.mark.parametrize("name", NAMED)
def test_functions_without_a_record_that_name_it(name: str, quiet) -> None:
    same(NAMED[name](tinycompile, NAME), NAMED[name](torch, "cpu"))


LAID_OUT = {
    "plain": lambda a: a,
    "a row for all": lambda a: a[:1].expand(4, 6),
    "a column for all": lambda a: a[:, :1].expand(4, 6),
    "a number for all": lambda a: a[0, 0].expand(4, 6),
    "transposed": lambda a: a.t(),
    "gaps": lambda a: a[:, ::2],
    "offset": lambda a: a[1:],
    "diagonal": lambda a: a.diagonal(),
    "0-d": lambda a: a[1, 1],
}
WRITES = {
    "fill_": lambda a: a.fill_(3),
    "zero_": lambda a: a.zero_(),
    "add_": lambda a: a.add_(1),
    "exp_": lambda a: a.exp_(),
    "copy_": lambda a: a.copy_(a.new_ones(a.shape)),
    "masked_fill_": lambda a: a.masked_fill_(a > 0, 1.0),
    "index_fill_": lambda a: a.index_fill_(0, a.new_zeros(1, dtype=torch.int64), 1.0),
    "tril_": lambda a: a.tril_(),
    "fill_diagonal_": lambda a: a.fill_diagonal_(1.0),
    "a mask": lambda a: a.__setitem__(a > 0, 5.0),
    "an index": lambda a: a.__setitem__(a.new_zeros(1, dtype=torch.int64), 5.0),
    "unsqueeze_": lambda a: a.unsqueeze_(0),
    "transpose_": lambda a: a.transpose_(0, 1),
    "detach_": lambda a: a.detach_(),
    "a list": lambda a: torch._foreach_zero_([a]),
    "larger": lambda a: a.resize_(9, 9).zero_(),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.filterwarnings("ignore:Use of")
def test_writes_to_tensors_that_lie_in_any_way(name: str, quiet) -> None:
    """Elements that share memory too: what fills may write to them, what computes may not, and torch says which is which."""
    for lay, view in LAID_OUT.items():
        a = torch.arange(-12.0, 12.0).view(4, 6).clone()
        x = there(a.clone())
        said = []
        for base in (x, a):
            try:
                WRITES[name](view(base))
                said.append("")
            except (RuntimeError, IndexError, NotImplementedError) as error:
                said.append(f"{type(error).__name__}: {error}")
        assert said[0] == said[1], lay
        if name != "larger" or lay != "plain":  # (what was there stays, what is new is anything)
            same(x, a)


def test_arguments_that_share_memory_share_it_on_the_cpu(quiet) -> None:
    for a in (there(torch.arange(6.0)), torch.arange(6.0)):
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
            a[1:].sub_(a[:-1])


@pytest.mark.parametrize("name", ["unbind", "split", "chunk"])
def test_results_that_are_several_views_are_not_written_to_under_gradients(name: str, quiet) -> None:
    for x in (there(torch.ones(2, 2)).requires_grad_(), torch.ones(2, 2, requires_grad=True)):
        pieces = getattr(x * 2, name)(*([] if name == "unbind" else [1]))
        with pytest.raises(RuntimeError, match="the output of a function that returns multiple views"):
            pieces[0].add_(1)


def test_out_of_several_and_of_another_size(quiet) -> None:
    a = torch.randn(2, 3)
    values, indices = there(torch.empty(2)), there(torch.empty(2, dtype=torch.int64))
    found = torch.max(there(a), 1, out=(values, indices))
    assert found[0] is values and found[1] is indices
    for mine, theirs in zip(found, torch.max(a, 1), strict=True):
        same(mine, theirs)
    grown = there(torch.empty(0))
    same(torch.add(there(a), 1, out=grown), a + 1)
    shrunk = there(torch.zeros(9))
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        same(torch.add(there(a), 1, out=shrunk), a + 1)


FACTORIES = {
    "arange": lambda m, out: m.arange(6, out=out),
    "linspace": lambda m, out: m.linspace(0, 1, 6, out=out),
    "zeros": lambda m, out: m.zeros(6, out=out),
    "full": lambda m, out: m.full((6,), 7.0, out=out),
    "eye": lambda m, out: m.eye(2, 3, out=out),
    "rand": lambda m, out: m.rand(2, 3, out=out),
    "randint": lambda m, out: m.randint(9, (6,), out=out),
    "randperm": lambda m, out: m.randperm(6, out=out),
    "normal": lambda m, out: torch.normal(0.0, 1.0, (6,), out=out),
    "another dtype": lambda m, out: m.ones(6, dtype=torch.float16, out=out),
    "its own dtype": lambda m, out: m.ones(6, dtype=torch.int64, out=out),
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("kernels", [{}, {"full": numpy_device.kernel("full", lambda size, value, *rest: value)}], ids=len)
@pytest.mark.filterwarnings("ignore:An output with one or more", "ignore:The number of elements in the out")
def test_factories_write_where_out_is(name: str, kernels: dict, quiet) -> None:
    numpy_device.register(kernels=kernels)
    for dtype in (torch.float32, torch.int64):
        for lay in (lambda a: a, lambda a: a[::2], lambda a: a[:0], lambda a: a[1:3].unsqueeze(0)):
            found = []
            for m, base in ((tinycompile, there(torch.zeros(12, dtype=dtype), 1)), (torch, torch.zeros(12, dtype=dtype))):
                torch.manual_seed(0)
                out = lay(base)
                try:
                    made = FACTORIES[name](m, out)
                    assert made is out
                    found.append(
                        (out.dtype, out.tolist(), base.tolist() if lay(base).shape == out.shape else None, out.stride())
                    )
                except (RuntimeError, NotImplementedError) as error:
                    found.append(str(error))
            assert found[0] == found[1]


def test_a_factory_that_names_another_device_than_outs_is_refused() -> None:
    with pytest.raises(RuntimeError, match=rf"device type cpu does not match device type of out parameter \({NAME}\)"):
        tinycompile.ones(2, out=tinycompile.zeros(2, device=NAME), device="cpu")


def test_attributes_of_torchs_and_copies(quiet) -> None:
    x = tinycompile.ones(2, device=NAME)
    assert x.grad is None and x.grad_fn is None and x.output_nr == 0 and not x.retains_grad
    shallow = copy.copy(x)
    shallow.add_(1)
    same(x, torch.full((2,), 2.0))
    x.data = x * 2
    same(x, torch.full((2,), 4.0))
    for share in (torch.from_dlpack, lambda t: t.__dlpack__()):
        with pytest.raises(BufferError, match="copy it with .cpu"):
            share(x)


def test_devices_and_indices_must_agree() -> None:
    x, y = tinycompile.ones(2, device=NAME), tinycompile.ones(2, device=f"{NAME}:1")
    with pytest.raises(RuntimeError, match=f"same device, but found at least two devices, {NAME}:0 and {NAME}:1!"):
        x + y
    with pytest.raises(RuntimeError, match=f"two devices, {NAME}:0 and cpu!"):
        x + tinycompile.ones(2)
    same(x * tinycompile.tensor(3.0), torch.full((2,), 3.0))  # a CPU scalar goes anywhere
    same(y.to(f"{NAME}:0") + x, torch.full((2,), 2.0))


def test_without_a_kernel_it_is_the_cpu_between_copies_with_one_warning() -> None:
    a = torch.randn(4)
    x = there(a)
    with pytest.warns(FallbackWarning, match=f"{NAME}:0 has no kernel for sinh: it runs on the CPU, between copies"):
        same(torch.sinh(x), torch.sinh(a))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.sinh(x)


def test_ops_that_decompose_run_through_their_parts(quiet) -> None:
    a = torch.randn(4, 5)
    same(F.mse_loss(there(a), there(a.flip(0))), F.mse_loss(a, a.flip(0)))
    log.clear()
    same(torch.outer(there(a[0]), there(a[1])), torch.outer(a[0], a[1]))
    assert "mul" in log


def test_writes(quiet) -> None:
    a = torch.arange(6.0).reshape(2, 3)
    x = there(a.clone())
    x.add_(1).t()[0].mul_(10)
    x[1, 1:] = -1.0
    x[x < 0] = 7.0
    a.add_(1).t()[0].mul_(10)
    a[1, 1:] = -1.0
    a[a < 0] = 7.0
    same(x, a)
    out = tinycompile.empty(2, 3, device=NAME)
    assert torch.add(x, x, out=out) is out
    same(out, a + a)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x[0].add_(x * 1)


def test_functions_without_a_record(quiet) -> None:
    a = torch.randn(8)
    same(torch.fft.rfft(there(a)), torch.fft.rfft(a))


def test_gradients_are_our_tapes(quiet) -> None:
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2)
    w = there(a.detach()).requires_grad_()
    for side, other in ((w, there(b)), (a, b)):
        (torch.relu(side @ other) * 2).sum().backward()
        (side * side).sum().backward()
    same(w.grad, a.grad)


def f(a, b):
    h = a * b + 1
    return torch.relu(h) - a, a.t()


DIFFERENTIATED = {
    "a function without a record": lambda x: torch.sort(x, 1).values,
    "of complex numbers": lambda x: torch.fft.fft(x).abs(),
    "a mask": lambda x: x[x > 0],
    "in place": lambda x: (x * 1).mul_(x).add_(1).exp_(),
    "a view in place": lambda x: (lambda y: (y[0].mul_(x[1]), y)[1])(x * 1),
    "an item": lambda x: (lambda y: (y.__setitem__(x > 0, 1.0), y)[1])(x * 1),
    "copy_": lambda x: (x * 1).copy_(x * 2),
    "expanded results": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[1],
    "several": lambda x: torch.var_mean(x, 1)[0],
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_through_the_cpu(name: str, quiet) -> None:
    """Twice: what torch differentiates, and what is written in place."""
    want = torch.randn(3, 4).requires_grad_()
    mine = there(want.detach()).requires_grad_()
    found = []
    for x, grad in ((mine, tinycompile.autograd.grad), (want, torch.autograd.grad)):
        out = DIFFERENTIATED[name](x)
        (first,) = grad((out * out).sum(), x, create_graph=True)
        found.append((out, first, *grad((first * first).sum(), x)))
    for got, expected in zip(*found, strict=True):
        same(got, expected)


def test_a_write_to_what_a_gradient_reads_is_an_error(quiet) -> None:
    y = (there(torch.ones(3)).requires_grad_() * 1).exp()
    y[:2].add_(1)
    assert y._version == 1
    with pytest.raises(RuntimeError, match=rf"\[torch.{NAME}.FloatTensor \[3\]\], which is output 0 of .*, is at version 1"):
        y.sum().backward()


def test_copies() -> None:
    x = there(torch.randn(2, 3)).requires_grad_()
    made = copy.deepcopy({"x": x, "plain": x.detach()})
    assert made["x"].requires_grad and not made["plain"].requires_grad and made["x"].storage is not x.storage
    same(made["x"], x.cpu().torch())


def test_deepcopy_keeps_how_tensors_lie_in_a_storage(quiet) -> None:
    found = []
    for a in (there(torch.arange(6.0)), torch.arange(6.0)):
        a.note = ["me"]
        assert copy.copy(a).note is a.note
        views = [a, a[2:], a.view(2, 3).t(), a[1:2].expand(4), a.view(torch.int32), a]
        made = copy.deepcopy(views)
        made[0][3] = 100
        assert made[0] is made[5] and made[0].note == a.note and made[0].note is not a.note and float(a[3]) == 3
        found.append([(t.tolist(), t.stride(), t.storage_offset()) for t in made])
    assert found[0] == found[1]


def test_a_gradient_that_is_given_is_added_to_and_copied(quiet) -> None:
    for x in (there(torch.ones(3)), torch.ones(3)):
        given = x * 2
        x.grad = given
        assert copy.deepcopy(x).grad.tolist() == [2.0] * 3
        (x.requires_grad_() * 3).sum().backward()
        assert x.grad is given and given.tolist() == [5.0] * 3
        del x.grad
        assert x.grad is None
        x.grad = given
        made = copy.deepcopy({"x": x, "given": given})
        assert made["x"].grad is made["given"] is not given and made["given"].tolist() == [5.0] * 3


def test_it_is_no_parameter_of_torchs() -> None:
    x = tinycompile.ones(3, device=NAME)
    with pytest.raises(TypeError, match=r"use torch.nn.Parameter\(x.detach\(\).cpu\(\).torch\(\)\)$"):
        torch.nn.Parameter(x)
    assert torch.nn.Parameter(x.detach().cpu().torch()).requires_grad


NO_GRADIENTS = {
    "another size": lambda a: a.new_ones(2),
    "another dtype": lambda a: a.double(),
    "no tensor": lambda a: 3,
    "itself": lambda a: a,
    "another device": lambda a: torch.ones(3, device="meta"),
}


@pytest.mark.parametrize("name", NO_GRADIENTS)
@pytest.mark.parametrize("leaf", [True, False])
def test_what_is_no_gradient_is_refused(name: str, leaf: bool, quiet) -> None:
    said = []
    for x in (there(torch.ones(3)), tinycompile.ones(3), torch.ones(3)):
        x.requires_grad_(leaf)
        with pytest.raises((RuntimeError, TypeError)) as refused:
            x.grad = NO_GRADIENTS[name](x.detach() if name != "itself" else x)
        said.append(f"{refused.type} {refused.value}".replace(NAME, "cpu"))
    assert said[0] == said[1] == said[2]
    x = there(torch.ones(3), 1)
    with pytest.raises(RuntimeError, match="located on device with index '0' to a tensor located on device with index '1'"):
        x.grad = there(torch.ones(3))


def test_capture_works_and_its_codegen_compiles() -> None:
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    x, y = there(a), there(b)
    compiled = tinycompile.compile(f, fullgraph=True)
    log.clear()
    first, second = compiled(x, y)
    assert len(log) == 1 and log[0].startswith("code fused_mul_")
    same(first, f(a, b)[0]), same(second, a.t())
    assert second.storage is x.storage
    assert "np.maximum" in compiled._latest().artifacts["6_kernels.txt"] and "fused_mul" in compiled.source("wrapper")
    compiled(x, y)
    assert len(compiled._entries) == 1, "the guards hold"
    compiled(there(a, 1), there(b, 1))
    assert len(compiled._entries) == 2, "another index is another device"


def between(x, c):
    y = torch.relu(x.cpu()) * 2 + c
    return y.exp() + 1, y.to(x.device) + x


@pytest.mark.parametrize("ours", [True, False])
def test_a_graph_over_it_and_the_cpu_runs_op_by_op_on_our_tape(quiet, ours: bool) -> None:
    a, c = torch.randn(3, 4), torch.randn(3, 4)
    given = tinycompile.from_torch(c) if ours else c
    compiled = tinycompile.compile(between)
    for got, want in zip(compiled(there(a), given), between(a, c), strict=True):
        torch.testing.assert_close(got.cpu().torch(), want)
    assert "these tensors are on cpu and npd:0, so torch runs op by op" in str(compiled.explain(there(a), given))
    w, plain = there(a).requires_grad_(), a.clone().requires_grad_()
    for fn, x, other in ((compiled, w, given), (between, plain, c)):
        here, back = fn(x, other)
        (here.sum() + back.sum().cpu()).backward()
    same(w.grad, plain.grad)


def test_a_bare_name_is_the_first_device_in_graphs_too(quiet) -> None:
    a = torch.randn(3)
    compiled = tinycompile.compile(lambda x: x.cpu().to(NAME) + x, fullgraph=True)
    same(compiled(there(a)), a + a)


def test_symbolic_sizes_reach_its_code() -> None:
    compiled = tinycompile.compile(f, dynamic=True)
    for rows in (3, 5, 7):
        a, b = torch.randn(rows, 4), torch.randn(rows, 4)
        same(compiled(there(a), there(b))[0], f(a, b)[0])


def test_what_codegen_leaves_out_runs_op_by_op(quiet) -> None:
    def g(a):
        return (a * 2).sum(1) + 1

    a = torch.randn(3, 4)
    compiled = tinycompile.compile(g)
    x = there(a)
    log.clear()
    same(compiled(x), g(a))
    assert "mul" in log and "add" in log and not any(line.startswith("code") for line in log)


@pytest.mark.parametrize("device", [None], indirect=True)
def test_without_codegen_graphs_run_op_by_op() -> None:
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    x, y = there(a), there(b)
    log.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        same(tinycompile.compile(f)(x, y)[0], f(a, b)[0])
    assert [ran for ran in log if ran != "copy"][:3] == ["mul", "add", "relu"]


def test_compiled_code_under_our_tape(quiet) -> None:
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    w, y = there(a.detach()).requires_grad_(), there(b)
    tinycompile.compile(f)(w, y)[0].sum().backward()
    f(a, b)[0].sum().backward()
    same(w.grad, a.grad)


def test_the_profile_and_the_memory_see_it() -> None:
    x = there(torch.randn(16))
    with tinycompile.profile() as p:
        x + x
    (step,) = [s for s in p.walk() if s.name == "add"]
    assert step.keyset == "{PRIVATEUSE1}" and step.handlers[0].name == f"numpy add on {NAME}" and step.moved == 2 * 64
    assert any(t.startswith("tinycompile.Tensor float32[16]") for i in tinycompile.storages(NAME) for t in i.tensors)


def test_the_whole_device_is_under_150_lines() -> None:
    with open(numpy_device.__file__) as file:
        assert len(file.readlines()) < 150 and KERNELS
