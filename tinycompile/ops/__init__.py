"""One record per op. Importing this package registers every record, defines it with the dispatcher, and fills the table."""

from tinycompile.dispatch import dispatcher
from tinycompile.ops import (  # noqa: F401
    activations,
    bitwise,
    casts,
    comparison,
    creation,
    indexing,
    linalg,
    losses,
    norms,
    pointwise_arith,
    pointwise_math,
    random,
    reductions,
    softmax,
    spellings,
    table,
    views,
)
from tinycompile.ops.record import OPS

for _op in OPS.values():
    dispatcher.define(_op.schema)
    table.add_record(_op)
spellings.install()
