"""One record per op. Importing this package registers every record, defines it with the dispatcher, and fills the table."""

from tinycompile.dispatch import dispatcher
from tinycompile.ops import (  # noqa: F401
    families,
    gradients_activations,
    gradients_kept,
    gradients_library,
    gradients_linalg,
    gradients_losses,
    gradients_norms,
    gradients_pointwise,
    gradients_reductions,
    gradients_special,
    gradients_views,
    spellings,
    table,
)
from tinycompile.ops.record import OPS

for _op in OPS.values():
    dispatcher.define(_op.schema)
    table.add_record(_op)
spellings.install()
