"""Copies of tensors, and what the program asks of where their elements lie."""

from __future__ import annotations

import copy

import torch

from tests.capture.constructs.registry import breaks, case
from tests.capture.corpus import r


def in_a_larger_one():
    return (r(8)[2:6],)


def with_attribute():
    x = r(4)
    x.tag = [1]
    return (x,)


@case
def deep_copies(x):
    z = x * 2
    copies = [copy.deepcopy(x), copy.deepcopy(z), copy.deepcopy({"a": [z, z]})]
    copies[0].add_(1)
    copies[1].mul_(3)
    again = copies[2]["a"]
    again[0].zero_()
    return copies, again[0] is again[1], x, z


@case(args=lambda: (r(3, 4).t(),))
def deep_copy_keeps_strides(x):
    return copy.deepcopy(x), copy.deepcopy(x + 1).stride()


@case
def shallow_copies(x):
    z = x * 2
    a, b = copy.copy(x), copy.copy(z)
    a.add_(1)
    z.mul_(2)
    b[0] = 7
    return a, b, x, z, a is x


@breaks(args=in_a_larger_one)
def deep_copy_of_a_part(x):
    y = copy.deepcopy(x)
    return y, y.storage_offset(), y.untyped_storage().nbytes()


@breaks
def deep_copy_of_views(x):
    a, b = copy.deepcopy([x, x[1:]])
    a.add_(1)
    return a, b


@breaks(args=lambda: (*2 * (r(4),),))
def deep_copy_of_two(x, y):
    a, b = copy.deepcopy((x, y))
    a.add_(1)
    return a, b


@breaks(args=with_attribute)
def copies_keep_attributes(x):
    return copy.deepcopy(x).tag, copy.copy(x).tag


@breaks(args=lambda: (r(4).requires_grad_(),))
def copies_that_require_grad(x):
    a, b = copy.deepcopy(x), copy.copy(x)
    return a, b, a.is_leaf, b.is_leaf, a.requires_grad


@breaks(args=lambda: (r(4).requires_grad_(),))
def deep_copy_of_no_leaf(x):
    return copy.deepcopy(x * 2)


@breaks(args=lambda: (torch.nn.Parameter(r(4)),))
def copies_of_parameters(p):
    return type(copy.deepcopy(p)), type(copy.copy(p))


@case
def bases(x):
    z, v = x * 2, x[1:]
    w = v.view(3, 1)[1:]
    parts = z.chunk(2)
    found = [v._base is x, w._base is x, x._base, z._base, z.view(2, 2)._base is z, parts[1]._base is z, z.t()._base is z]
    return found, x.detach()._base, x.data[1:]._base is x, w


@case(args=lambda: (r(4).requires_grad_(),))
def bases_without_history(x):
    with torch.no_grad():
        a = x[1:]
    d = x.detach()
    return a._base is x, d._base, d[1:]._base is d, d[1:]._base is x, x[1:]._base is x, x.data._base, d._is_view()


@case(args=lambda: (r(4, 4),))
def offsets(x):
    z = x.t() * 2
    views = [
        x,
        x[1:],
        x[1:, 2:],
        x.t()[1],
        x[..., -1],
        z,
        z[1:],
        x.flatten()[3:],
        x.detach()[2],
        x.unbind()[3],
        x.split(2, 1)[1],
    ]
    return [v.storage_offset() for v in views], [v._is_view() for v in views], x * x[1:].storage_offset()


@case(args=in_a_larger_one)
def offsets_of_a_part(x):
    return x.storage_offset(), x[1:].storage_offset(), x._is_view(), (x * 2)._is_view(), (x + 1)[1:].storage_offset()


@breaks(args=in_a_larger_one)
def base_of_a_part(x):
    return x._base, x[1:]._base.shape


@case(args=lambda: (r(4), r(4)))
def same_elements(x, y):
    z = x * 2
    pairs = [
        (x, x),
        (x, y),
        (x, x.view(4)),
        (x, x[1:]),
        (x[1:], x[1:]),
        (z, z.view(4)),
        (z, z.view(2, 2)),
        (z, x),
        (x, z.clone()),
    ]
    return [a.is_set_to(b) for a, b in pairs]


@case
def writes_after_questions(x):
    v = x[1:]
    offset = v.storage_offset()
    v.mul_(offset + 2)
    return v, x, v._base is x, v.is_set_to(x[1:])


@breaks
def only_known_later(x):
    y = x * 2
    y.add_(1)
    return y._version - (x * 3)._version, x[1:].data_ptr() - x.data_ptr(), x.untyped_storage().nbytes()


@breaks
def unknown_views(x):
    v = torch.as_strided(x, (2,), (1,), 1)
    return v.storage_offset(), v._base is x, v._is_view(), v.is_set_to(x[1:3])
