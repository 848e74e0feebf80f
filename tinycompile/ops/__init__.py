"""One record per op. Importing this package registers every record, defines it with the dispatcher, and fills the table."""

from tinycompile.dispatch import dispatcher
from tinycompile.ops import (  # noqa: F401
    activations,
    attention,
    bitwise,
    casts,
    comparison,
    creation,
    indexing,
    joining,
    linalg,
    losses,
    moments,
    norms,
    pointwise_arith,
    pointwise_math,
    pointwise_more,
    random,
    reductions,
    softmax,
    spellings,
    table,
    view_parts,
    views,
)
from tinycompile.ops.record import OPS

for _op in OPS.values():
    dispatcher.define(_op.schema)
    table.add_record(_op)
spellings.install()
