"""Classes asked for themselves, and classes made inside."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import typing

import tinycompile
from tests.capture.constructs.registry import breaks, case, log


class Base:
    subs = []

    def __init_subclass__(cls, tag=None, **kw):
        super().__init_subclass__(**kw)
        cls.tag = tag
        Base.subs.append(cls.__name__)


class Sub(Base, tag="t"):
    pass


@case
def init_subclass(x):
    return x, Sub.tag, Sub().tag, Base.subs


class CGI:
    def __class_getitem__(cls, k):
        return (cls.__name__, k)


@case
def class_getitem(x):
    return x, CGI[3], list[int] is not None, dict[str, int] == dict[str, int]


T = typing.TypeVar("T")


class Box2(typing.Generic[T]):
    def __init__(self, v: T):
        self.v = v


@case
def generics(x):
    return Box2[int](x).v + 1, isinstance(Box2(1), Box2), Box2[int] is Box2


@dataclasses.dataclass
class DC:
    a: int
    b: list = dataclasses.field(default_factory=list)
    c: dict = dataclasses.field(default_factory=lambda: {"k": 1}, compare=False)

    def __post_init__(self):
        self.d = self.a + 1


@case
def dataclass_asdict(x):
    a = DC(1, [2])
    return x, dataclasses.asdict(a), dataclasses.astuple(a), dataclasses.is_dataclass(a)


@dataclasses.dataclass(order=True, frozen=True, slots=True)
class DF:
    a: int
    b: str = "q"


@breaks
def dataclass_frozen2(x):
    a, b = DF(1), DF(1, "z")
    try:
        a.a = 3
    except dataclasses.FrozenInstanceError as e:
        m = str(e)
    return x, a < b, a == DF(1), sorted([b, a]), m, {a: 1}[DF(1)], repr(a), hash(a) == hash(DF(1))


class Meta(type):
    reg = "meta"

    def __call__(cls, *a):
        log("meta call")
        return super().__call__(*a)

    @property
    def mp(cls):
        return cls.__name__ + "!"

    def __getitem__(cls, k):
        return k * 2

    def __iter__(cls):
        return iter([1, 2])

    def __len__(cls):
        return 7

    def __contains__(cls, k):
        return k == 1

    def __instancecheck__(cls, o):
        return o == 3

    def __getattr__(cls, n):
        return ("dyn", n)


class WM(metaclass=Meta):
    def __init__(self, v=0):
        self.v = v


@case
def metaclass(x):
    return x, WM(3).v, WM.mp, WM[4], list(WM), len(WM), 1 in WM, isinstance(3, WM), WM.reg, WM.other, type(WM) is Meta


@breaks
def classbody(x):
    k = 3

    class C:
        v = k

        def f(self):
            return x * self.v

        @property
        def p(self):
            return super().__repr__() is not None

    return C().f(), C.v, C.__name__, C().p


class P:
    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


@breaks
def classbody_twice(x):
    def mk(n):
        class D(P):
            m = n

            def __init__(self, q):
                super().__init__(q, n)

        return D

    return mk(1)(x).a + 1, mk(2).m, mk(1) is mk(1)


@breaks
def make_type(x):
    C = type("C", (P,), {"z": 4})
    return x * C(1, 2).z, C.__mro__[1] is P


@breaks
def nt_inside(x):
    N = collections.namedtuple("N", "a b")
    n = N(x, 1)
    return n.a + 1, n.b


@breaks
def dc_inside(x):
    @dataclasses.dataclass
    class Q:
        a: int = 1

    return x + Q().a, Q(3).a


@breaks
def enum_inside(x):
    class E(enum.Enum):
        A = 1

    return x + E.A.value


class Abs(abc.ABC):
    @abc.abstractmethod
    def f(self): ...


class Con(Abs):
    def f(self):
        return 1


@breaks
def abcs(x):
    try:
        Abs()
    except TypeError as e:
        m = "abstract" in str(e)
    return (
        x + Con().f(),
        m,
        isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.Mapping),
        isinstance(iter([]), collections.abc.Iterator),
        issubclass(Con, Abs),
    )


class ListSub(list):
    def __getitem__(self, i):
        return ("li", super().__getitem__(i))


class DictMiss(dict):
    def __missing__(self, k):
        return k * 2


@case
def container_subclasses(x):
    l = ListSub([1, x])
    d = DictMiss(a=1)
    return l[0], len(l), list(l), d["zz"], d.get("q"), dict(d), "a" in d


class IntSub(int):
    def dbl(self):
        return self * 2


class StrSub(str):
    pass


@breaks
def scalar_subclasses(x):
    return x * IntSub(3), IntSub(3).dbl(), StrSub("a").upper(), type(IntSub(2) + 1)


class Note:
    def __init__(self, value):
        self.value = value

    def __get__(self, obj, cls):
        log((obj is None, cls.__name__))
        return self.value if obj is None else self


class Setting(Note):
    def __set__(self, obj, value):
        log("set")


class Noted:
    plain, data = Note(3), Setting(4)


class NotedToo(Noted):
    pass


@case
def descriptors_of_a_class(x):
    n = NotedToo()
    n.plain = 5
    return (
        Noted.plain,
        NotedToo.data,
        getattr(Noted, "plain"),
        n.plain,
        n.data.value,
        hasattr(NotedToo, "plain"),
        x + Noted.plain,
    )


class Ruling(type):
    noted = Setting(1)
    plain = "of the metaclass"

    @property
    def ruled(cls):
        return "ruled " + cls.__name__


class Ruled(metaclass=Ruling):
    noted, plain, ruled = "noted", "plain", "own"


@case
def metaclass_properties_come_first(x):
    return Ruled.ruled, Ruled.plain, Ruled().ruled, x


@breaks
def descriptor_of_a_metaclass(x):
    return Ruled.noted.value, Ruled().noted, x


class Base3:
    k = 1

    def m(self):
        return 2

    @property
    def p(self):
        log("p")
        return 3

    @classmethod
    def c(cls):
        return cls.__name__


class Derived3(Base3):
    k = 10

    def of_super(self):
        s = super()
        return s.__class__ is super, s.__self__ is self, s.__thisclass__, s.__self_class__, s.k, s.m(), s.p, s.c()

    @classmethod
    def of_class(cls):
        s = super()
        return s.__self__ is cls, s.__self_class__, s.k, s.c(), s.m(Last3()), hasattr(s, "nothing"), s.__class__ is super

    def has(self):
        s = super()
        return [hasattr(s, n) for n in ("k", "own", "__self__", "__class__", "nothing", "__len__", "__init__")]

    def dicts(self):
        self.own = 5
        return super().__dict__ is self.__dict__, super().__init_subclass__()

    def over_a_break(self):
        s = super()
        tinycompile.graph_break()
        return hasattr(s, "k"), s.k, s.m(), s.__self__ is self, [(n, hasattr(s, n)) for n in ("p", "nothing")]

    def given(self):
        return [super()][0].m(), {"s": super()}["s"].k, (lambda s: s.m())(super())


class Last3(Derived3):
    pass


@case
def what_super_objects_have(x):
    d = Last3()
    return x, d.of_super(), Last3.of_class(), d.has(), d.given()


@breaks
def super_objects_over_a_break(x):
    d = Last3()
    y = x + 1
    return y, d.over_a_break(), handed(super(Derived3, d))


def handed(s):
    tinycompile.graph_break()
    return s.k, s.p, s.m()


@breaks
def what_super_objects_say_of_the_object(x):
    return x, Last3().dicts(), super(Last3, Last3()).__weakref__, hasattr(super(Last3, Last3()), "__get__")


@case
def super_of_other_classes(x):
    return [x, log_error(lambda: super(int, Last3()).m()), log_error(lambda: super(Last3, Base3()).m())]


@breaks
def super_objects_have_no_special_methods(x):
    class_ = super(Items, Items([1]))
    return [x, log_error(lambda: len(class_)), log_error(lambda: class_[0]), class_.__len__(), class_.__getitem__(0)]


def log_error(fn):
    try:
        return fn()
    except TypeError as error:
        return str(error)


class Items(list):
    def __add__(self, other):
        log("add")
        return Items([9])


class Mapped(dict):
    def __or__(self, other):
        log("or")
        return 5


@case
def in_place_operators_of_builtins_come_before_other_own_ones(x):
    a, b = Items([1]), Mapped(a=1)
    first = a, b
    a += [2]
    b |= {"b": 2}
    return x, list(a), dict(b), a is first[0], b is first[1]


class Odd(list):
    __len__ = max  # no function of Python's


@breaks
def special_methods_that_are_no_functions(x):
    return x, log_error(lambda: len(Odd([1])))


@breaks
def objects_made_by_new_of_another_class(x):
    return x, log_error(lambda: object.__new__(Items)), log_error(lambda: list.__new__(Mapped)), object.__new__(Last3).m()


class Inits(Base3):
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.made = True


class News(Base3):
    def __new__(cls, *args):
        return super().__new__(cls, *args)


@case
def arguments_that_object_takes(x):
    return [x, Inits().made, log_error(lambda: Inits(1)), log_error(lambda: Inits(k=1)), log_error(lambda: News(1)), News().m()]


def with_parts():
    class Local:
        def __init__(self):
            self.seen = []

        @property
        def read(self):
            return 1

        written = property(None, lambda self, value: self.seen.append(value))
        nothing = property()

    class Below(Local):
        @property
        def read(self):
            return super().written

    Local.unnamed = property(lambda self: 1)
    return Local, Below


LOCAL, BELOW = with_parts()


def refused(fn, *args):
    try:
        return fn(*args)
    except AttributeError as error:
        return str(error), error.args


@case
def properties_without_a_getter_or_setter(x):
    made, found = LOCAL(), []
    for obj in (made, BELOW()):
        found += [refused(setattr, obj, name, 2) for name in ("read", "nothing", "unnamed", "written")]
        found += [refused(delattr, obj, name) for name in ("read", "nothing", "unnamed", "written")]
        found += [refused(getattr, obj, name) for name in ("read", "nothing", "unnamed", "written")]
    return x, found, made.seen


class Long:
    def __len__(self):
        log("len")
        return 2


@breaks
def what_is_not_iterable_is_not_asked_how_long_it_is(x):
    return [x, log_error(lambda: list(Long())), log_error(lambda: [*Long()]), log_error(lambda: tuple(Long()))]
