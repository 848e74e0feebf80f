"""Every argument of a builtin counts, by position and by name: a rule that drops one gives a wrong answer."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import operator
from typing import Any

import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure

CALLS = """
str(b'a', 'utf8') | str(b'a', encoding='ascii') | str(object=5) | str(b'\\xff', errors='replace') | str() | bytes('a', 'utf8')
bytes('a', encoding='utf16') | bytes(3) | bytes([1, 2]) | bytearray('a', 'utf8') | int('12', 3) | int('12', base=3) | int(2.9)
int() | float() | float('1e3') | complex(1) | complex(real=1, imag=2) | complex('1+2j') | bool() | round(2.5) | round(2.675, 2)
round(2.675, ndigits=1) | round(2.5, None) | round(1234, -2) | pow(2, 5, 7) | pow(base=2, exp=3) | pow(2, 3, mod=5) | divmod(-7, 2)
sum([1], 5) | sum([1], start=5) | sum([[1]], []) | sorted([3, 1], reverse=True) | sorted(['b', 'A'], key=str.lower) | sorted((2, 1))
max([1, 2], key=operator.neg) | max(1, 2, key=operator.neg) | max([], default=3) | min([], default=None) | min('b', 'a')
list(enumerate('ab', 5)) | list(enumerate('ab', start=5)) | list(enumerate(iterable='ab')) | list(zip('ab', 'cd', strict=True))
list(range(1, 9, 3)) | list(reversed({'a': 1})) | list(iter([1, 2, 0].pop, 2)) | next(iter([]), 7) | dict.fromkeys('ab', 1)
dict.fromkeys('ab') | dict([('a', 1)], b=2) | dict(a=1) | collections.OrderedDict([('a', 1)], b=2) | collections.deque([1, 2], 1)
collections.deque(iterable=[1], maxlen=4) | collections.defaultdict(int, {'a': 1}, b=2) | collections.Counter('aab', b=5)
getattr(x, 'nothing', 3) | isinstance(True, (str, int)) | issubclass(bool, (str, int)) | slice(1, 2)
format(3.14159, '.2f') | format(7) | print if x is None else 0 | callable(len) | type(1) | hash('a') == hash('a') | ascii('é')
'a,b,c'.split(',', 1) | 'a,b,c'.split(sep=',', maxsplit=1) | 'a b'.split() | 'a,b'.rsplit(',', 1) | 'aXbX'.replace('X', '-', 1)
'a'.join(['b', 'c']) | 'abc'.find('c', 1) | 'abc'.startswith(('x', 'b'), 1) | 'xaxx'.strip('x') | 'a'.center(5, '*') | 'a'.zfill(3)
'a\\tb'.expandtabs(4) | 'a\\nb'.splitlines(True) | 'a\\nb'.splitlines(keepends=True) | 'ß'.encode('latin1') | b'a'.decode('utf8')
'é'.encode('ascii', 'replace') | 'é'.encode('ascii', errors='ignore') | '{0}{a}'.format(1, a=2) | 'abc'.translate({97: None})
(5).to_bytes(2, 'big') | (5).to_bytes(length=2, byteorder='little', signed=True) | int.from_bytes(b'\\x01\\x02', 'big')
int.from_bytes(b'\\xff', byteorder='big', signed=True) | float.fromhex('0x1p3') | (7).bit_count() | (2.5).hex() | bytes.fromhex('0a')
[1, 2, 1].index(1, 1) | [1, 2, 1].index(1, -1) | [1, 2, 1].index(2, 0, -1) | collections.deque([1, 2, 1]).index(1, 1, 3)
 [1, 2].pop(0) | (1, 2, 1).index(1, 1) | 'aba'.index('a', 1) | {'a': 1}.get('b', 2) | {'a': 1}.pop('b', 2)
{'a': 1}.setdefault('b') | {'a': 1} | {1}.union([2], [3]) | {1, 2}.intersection([1], [1, 5]) | {1, 2}.difference([1], [2])
math.log(8, 2) | math.isclose(1, 1.05, rel_tol=0.1) | math.isclose(1, 2, abs_tol=3) | math.prod([2, 3], start=4) | math.gcd(4, 6, 8)
math.perm(5, 2) | math.dist([0, 0], [3, 4]) | math.ldexp(1.5, 2) | math.nextafter(1.0, 2.0) | math.comb(5, k=2) if False else 1
list(itertools.accumulate([1, 2], initial=5)) | list(itertools.accumulate([1, 2], operator.mul)) | list(itertools.repeat(1, times=2))
list(itertools.islice(range(9), 1, 7, 2)) | list(itertools.zip_longest('ab', 'c', fillvalue=1)) | list(itertools.product('ab', repeat=2))
list(itertools.permutations('abc', r=2)) | list(itertools.islice(itertools.count(start=2, step=3), 2)) | list(itertools.pairwise('abc'))
[list(g) for _, g in itertools.groupby([1, -1, 2], key=abs)] | [list(t) for t in itertools.tee([1], 3)] | list(itertools.starmap(pow, [(2, 3)]))
functools.reduce(operator.add, [1], 5) | functools.reduce(operator.add, [1, 2]) | functools.partial(int, base=2)('101')
operator.itemgetter(1, 0)('ab') | operator.attrgetter('a.b', 'c') if False else 1 | operator.methodcaller('split', ',', maxsplit=1)('a,b,c')
operator.indexOf([1, 2], 2) | operator.countOf([1, 1], 1) | operator.length_hint([1, 2], 5) | operator.concat([1], [2])
"""
EXPRESSIONS = [e.strip() for line in CALLS.split("\n") for e in line.split(" | ") if e.strip()]
SPACE = {
    "collections": collections, "functools": functools, "itertools": itertools, "math": math, "operator": operator,
}  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_argument_counts(expression: str) -> None:
    space: dict[str, Any] = dict(SPACE)
    exec(f"def program(x):\n    return {expression}\n", space)
    program, x = space["program"], torch.ones(2)
    compiled = CompiledFunction(program, Options(backend="eager"))
    want = program(x)
    for got in (compiled(x), compiled(x)):
        assert type(got) is type(want) and repr(got) == repr(want)
