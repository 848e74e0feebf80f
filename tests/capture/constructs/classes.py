"""User classes: construction, descriptors, attribute hooks, operators, inheritance, dataclasses, slots, metaclasses, enums."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r

T = TypeVar("T")


class Simple:
    shared = 3
    instances: ClassVar[list] = []

    def __init__(self, x, n=2):
        self.x, self.n = x, n

    def scale(self, by=1):
        return self.x * self.n * by

    @property
    def doubled(self):
        log("get")
        return self.x * 2

    @doubled.setter
    def doubled(self, value):
        log("set")
        self.x = value / 2

    @doubled.deleter
    def doubled(self):
        log("del")
        self.x = None

    @classmethod
    def make(cls, x):
        return cls(x, cls.shared)

    @staticmethod
    def twice(v):
        return v * 2

    @functools.cached_property
    def cached(self):
        log("computed")
        return self.x + 1


class Child(Simple):
    shared = 5

    def __init__(self, x):
        super().__init__(x, n=4)
        self.extra = 1

    def scale(self, by=1):
        return super().scale(by) + self.extra

    @property
    def doubled(self):
        return super().doubled + 1

    @classmethod
    def make(cls, x):
        made = super().make(x) if cls is Simple else cls(x)
        return made


class GrandChild(Child):
    def scale(self, by=1):
        return super(Child, self).scale(by) * 10


class Left(Simple):
    def scale(self, by=1):
        return super().scale(by) + 1


class Right(Simple):
    def scale(self, by=1):
        return super().scale(by) * 3


class Diamond(Left, Right):
    pass


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Point:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def __radd__(self, other):
        return Point(self.x + other, self.y + other)

    def __iadd__(self, other):
        self.x = self.x + other
        return self

    def __mul__(self, k):
        return NotImplemented if isinstance(k, str) else Point(self.x * k, self.y * k)

    def __neg__(self):
        return Point(-self.x, -self.y)

    def __eq__(self, other):
        return isinstance(other, Point) and self.y == other.y

    def __lt__(self, other):
        return self.y < other.y

    def __hash__(self):
        return hash(self.y)

    def __bool__(self):
        return self.y != 0

    def __len__(self):
        return 2

    def __iter__(self):
        return iter((self.x, self.y))

    def __getitem__(self, i):
        return (self.x, self.y)[i]

    def __setitem__(self, i, v):
        setattr(self, "xy"[i], v)

    def __delitem__(self, i):
        setattr(self, "xy"[i], None)

    def __contains__(self, v):
        return v == self.y

    def __call__(self, v):
        return self.x * v

    def __repr__(self):
        return f"Point({self.y})"

    def __index__(self):
        return 2

    def __abs__(self):
        return abs(self.y)

    def __matmul__(self, other):
        return self.x @ other.x

    def __format__(self, spec):
        return f"<{spec}>"

    def __float__(self):
        return 1.5

    def __int__(self):
        return 7

    def __reversed__(self):
        return iter((self.y, self.x))


class Hooked:
    def __init__(self):
        self.known = 1

    def __getattr__(self, name):
        log(f"missing {name}")
        if name.startswith("x_"):
            return len(name)
        raise AttributeError(f"no {name}")


class Recording:
    def __setattr__(self, name, value):
        log(f"set {name}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        log(f"del {name}")
        object.__delattr__(self, name)


class Getting:
    def __init__(self):
        self.a = 2

    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return object.__getattribute__(self, name)


class Positive:
    """A data descriptor."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, cls=None):
        return self if obj is None else getattr(obj, self.name)

    def __set__(self, obj, value):
        if value < 0:
            raise ValueError("negative")
        setattr(obj, self.name, value)


class Lazy:
    """A descriptor without ``__set__``."""

    def __init__(self, fn):
        self.fn = fn

    def __get__(self, obj, cls=None):
        return self.fn(obj)


class Described:
    size = Positive()

    def __init__(self, size):
        self.size = size

    @Lazy
    def area(self):
        return self.size**2


class Meta(type):
    registry: ClassVar[dict] = {}

    @property
    def label(cls):
        return cls.__name__.lower()

    def describe(cls):
        return f"class {cls.__name__}"

    def __len__(cls):
        return 4


class WithMeta(metaclass=Meta):
    value = 2


class Base(abc.ABC):
    @abc.abstractmethod
    def run(self, x): ...

    def twice(self, x):
        return self.run(self.run(x))


class Concrete(Base):
    def run(self, x):
        return x * 2


class Runner(Protocol):
    def run(self, x): ...


class Box(Generic[T]):
    def __init__(self, value: T):
        self.value = value


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Mode(enum.Enum):
    ADD = "add"
    MUL = "mul"

    @property
    def is_add(self):
        return self is Mode.ADD

    def apply(self, a, b):
        return a + b if self.is_add else a * b


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass(eq=False)
class Data:
    x: Any
    n: int = 2
    items: list = dataclasses.field(default_factory=list)
    hidden: int = dataclasses.field(default=0, repr=False, compare=False)

    def __post_init__(self):
        self.total = self.n * 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int
    name: str = "f"


@dataclasses.dataclass(slots=True, kw_only=True, order=True)
class Compact:
    n: int
    m: int = 1


@dataclasses.dataclass(eq=False)
class SubData(Data):
    more: float = 0.5


@case
def object_made(x):
    s = Simple(x)
    return s.scale(), s.n, s.shared, Simple.shared, s.twice(3), type(s) is Simple, isinstance(s, Simple), s


@case(args=lambda: (Simple(r(4)), 3))
def object_argument(s, k):
    s.n = k
    s.new = s.x * 2
    return s.scale(2), s.new, hasattr(s, "other"), getattr(s, "other", 9)


@case(args=lambda: (Simple(r(4)),))
def property_get_set_delete(s):
    a = s.doubled
    s.doubled = a * 4
    b = s.x
    del s.doubled
    return a, b, s.x


@case
def property_on_new_object(x):
    s = Simple(x)
    s.doubled = x * 8
    return s.doubled, s.x


@case
def class_and_static_methods(x):
    return Simple.make(x).n, Child.make(x).n, Simple.twice(x), Child.twice(2), Simple.scale(Simple(x), 3)


@case
def inheritance(x):
    c = Child(x)
    return c.scale(), c.shared, c.doubled, isinstance(c, Simple), issubclass(Child, Simple), Child.__mro__[1] is Simple


@case(args=lambda: (Child(r(4)), GrandChild(r(4)), Diamond(r(4))))
def super_arguments(c, g, d):
    return c.scale(2), g.scale(), d.scale(), c.doubled


@case
def super_on_new_objects(x):
    return GrandChild(x).scale(), Diamond(x).scale(2), [k.__name__ for k in Diamond.__mro__]


@case(args=lambda: (Simple(r(4)),))
def cached_property_argument(s):
    return s.cached, s.cached is s.cached, s.cached * 2


@case
def cached_property_on_new(x):
    s = Simple(x)
    return s.cached, s.cached is s.cached


@case
def slots_made(x):
    s = Slotted(x)
    s.b = 2
    try:
        s.c = 3
    except AttributeError as error:
        message = str(error)
    del s.b
    return s.a, hasattr(s, "b"), message


@case(args=lambda: (Slotted(r(4)),))
def slots_argument(s):
    unset = hasattr(s, "b")
    s.b = s.a * 2
    return s.b, unset, s.a


@breaks(args=lambda: (Slotted(r(4)),))
def slots_set_and_deleted(s):
    s.a = s.a * 2
    kept = s.a
    del s.a
    return hasattr(s, "a"), kept


@case
def operators_of_objects(x):
    p, q = Point(x, 1), Point(x * 2, 3)
    s = p + q
    t = 1 + p
    m = p * 3
    p += 5
    n = -q
    try:
        p - "s"
    except TypeError as error:
        message = str(error)
    return s.x, t.y, m.x, p.x, n.y, message, p == Point(0, 1), p != q, p < q, q > p, p @ q


@case(args=lambda: (Point(r(4), 2), Point(r(4), 5)))
def operators_of_arguments(p, q):
    a, b = p
    p[1] = 7
    del q[0]
    return (p + Point(1, 1)).y, a, b, p[0], len(p), 7 in p, bool(p), p(2), q.x, p == q, sorted([Point(0, 3), Point(0, 1)])[0].y


@case
def conversions_of_objects(x):
    p = Point(x, -4)
    return (
        x,
        repr(p),
        str(p),
        f"{p:abc}",
        f"{p}",
        f"{p!r}",
        abs(p),
        float(p),
        int(p),
        [1, 2, 3][p],
        list(p)[1],
        list(reversed(p))[0],
    )


@breaks
def hash_and_equality_of_objects(x):
    d = {Point(x, 1): "a"}
    return d[Point(0, 1)], Point(0, 2) in d, len({Point(x, 1), Point(x, 1)}), Point(0, 1) in [Point(x, 1)]


@case(args=lambda: (Hooked(), r(4)))
def getattr_hook(h, x):
    try:
        h.other
    except AttributeError as error:
        message = str(error)
    return x * h.x_abc + h.known, message, hasattr(h, "nope"), getattr(h, "zz", 3)


@case
def getattr_hook_on_new(x):
    h = Hooked()
    h.late = 5
    return x * h.x_a, h.late


@case
def setattr_hooks(x):
    r_ = Recording()
    r_.a = x
    r_.b = 2
    del r_.b
    return r_.a, hasattr(r_, "b")


@case(args=lambda: (Recording(), r(4)))
def setattr_hook_argument(r_, x):
    r_.a = x * 2
    return r_.a


@breaks(args=lambda: (Getting(), r(4)))
def getattribute_hook(g, x):
    return x * g.magic + g.a


@case
def descriptor_made(x):
    d = Described(3)
    d.size = 4
    try:
        d.size = -1
    except ValueError as error:
        return x * d.size + d.area, str(error)


@case(args=lambda: (Described(2), r(4)))
def descriptor_argument(d, x):
    d.size = d.size + 1
    return x * d.size + d.area


@case
def metaclass_reads(x):
    return x * WithMeta.value, WithMeta.label, WithMeta.describe(), type(WithMeta) is Meta, len(WithMeta), WithMeta().value


@case
def abstract_classes(x):
    c = Concrete()
    try:
        Base()
    except TypeError as error:
        message = type(error).__name__
    return c.twice(x), isinstance(c, Base), message


@case
def generic_classes(x):
    b = Box[int](x)
    return Box(x).value, b.value, isinstance(b, Box)


@case(args=lambda: (Mode.MUL, Level.HIGH, r(4)))
def enum_arguments(mode, level, x):
    return mode.apply(x, int(level)), mode.value, mode.name, mode is Mode.MUL, level + 1, level > Level.LOW, mode.is_add


@case
def enum_use(x):
    return (
        x * Level.HIGH, Mode("mul"), Mode["ADD"], [m.name for m in Mode], Mode.ADD in (Mode.ADD,), len(Mode), Flags.A | Flags.B, Level(3), isinstance(Level.LOW, int),
        {Mode.ADD: 1}[Mode.ADD], Flags.A in (Flags.A | Flags.B), repr(Mode.MUL), str(Level.LOW),
    )  # fmt: skip


@case
def dataclass_made(x):
    d = Data(x)
    d.items.append(1)
    e = Data(x, n=3, items=[2])
    return d, e.total, d.n == 2, e.items, dataclasses.is_dataclass(d), [f.name for f in dataclasses.fields(Data)]


@case(args=lambda: (Data(r(4), 3), Frozen(2), Compact(n=1)))
def dataclass_arguments(d, f, c):
    d.n += f.n
    d.items.append(d.x)
    return d.x * d.n + c.m, f.name, d.items, Frozen(2) == f, c < Compact(n=2)


@breaks
def dataclass_frozen(x):
    f = Frozen(3)
    try:
        f.n = 4
    except dataclasses.FrozenInstanceError:
        pass
    return x * f.n, f == Frozen(3), hash(f) == hash(Frozen(3)), {f: 1}[Frozen(3)], repr(f)


@case
def dataclass_functions(x):
    f = Frozen(3)
    return x, dataclasses.replace(f, n=5), dataclasses.asdict(f), dataclasses.astuple(f)


@case
def dataclass_inherited(x):
    s = SubData(x, more=1.5)
    return s.x * s.more, s.total, s


@breaks
def dataclass_ordering(x):
    return (
        x,
        Compact(n=1) < Compact(n=2),
        sorted([Compact(n=3), Compact(n=1)])[0].n,
        Compact(n=1) == Compact(n=1, m=1),
        repr(Compact(n=2)),
    )


@case(args=lambda: (Simple, r(4)))
def class_argument(cls, x):
    return cls(x).scale(), cls.__name__, cls.shared, cls is Simple


@breaks
def class_attribute_changed(x):
    before = Simple.shared
    Simple.shared = 8
    after = Simple.shared
    Simple.shared = before
    return x * after


@case
def class_list_shared(x):
    Simple.instances.append(1)
    n = len(Simple.instances)
    Simple.instances.clear()
    return x * n


@case
def method_objects(x):
    s = Simple(x)
    m = s.scale
    f = Simple.scale
    return m(2), f(s, 3), m.__self__ is s, m.__func__ is f, m.__name__, list(map(s.scale, (1, 2)))


@case
def attribute_deletion(x):
    s = Simple(x)
    del s.n
    try:
        s.n
    except AttributeError as error:
        return s.x, str(error)


@case(args=lambda: (Simple(r(4)),))
def attribute_dictionary(s):
    return vars(s) is s.__dict__, sorted(s.__dict__), s.x + 1


@case
def attribute_functions(x):
    s = Simple(x)
    setattr(s, "q", 5)
    delattr(s, "n")
    return getattr(s, "q") * x, hasattr(s, "n"), s.__class__ is Simple


@case(args=lambda: (Simple(r(4)), Simple(r(4))))
def objects_sharing(a, b):
    a.peer = b
    b.peer = a
    a.peer.n = 9
    return b.n, a.peer.peer is a, b.scale()


@case
def object_in_containers(x):
    s = Simple(x)
    items = [s, s]
    items[0].n = 7
    return items[1].n, items[0] is items[1], {"s": s}["s"].scale(), items


@case
def local_closure_class_use(x):
    def make(n):
        s = Simple(x, n)
        return lambda: s.scale()

    return make(2)(), make(3)()


@breaks
def class_body_inside(x):
    class Inner:
        factor = 3

        def apply(self, v):
            return v * self.factor

    return Inner().apply(x)


@case
def object_new_directly(x):
    s = object.__new__(Simple)
    s.x, s.n = x, 2
    return s.scale()


class Singleton:
    made = None

    def __new__(cls, *args):
        made = super().__new__(cls)
        made.tag = len(args)
        return made

    def __init__(self, *args):
        self.args = args


@case
def custom_new(x):
    s = Singleton(1, 2)
    return x * s.tag, s.args


class Finalised:
    def __del__(self):
        pass


@case
def hash_without_a_table(x):
    return x, hash(Frozen(3)) == hash((3, "f")), hash(Point(x, 5)) == hash(5)


@breaks
def finaliser(x):
    f = Finalised()
    del f
    return x + 1


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(r(4))
        self.names: list = []
        self.depth = 0

    def forward(self, x):
        self.depth += 1
        self.names.append("f")
        self.last = x * self.weight
        return self.last


MODULE = Module().requires_grad_(False)


@case(args=lambda: (MODULE, r(4)))
def module_with_state(m, x):
    m.depth, m.names = 5, []
    y = m(x)
    return y, m.depth, m.names, m.last is y


@case(args=lambda: (MODULE, r(4)))
def module_called_twice(m, x):
    m.depth, m.names = 7, []
    return m(m(x)), m.depth
