"""What the symbolic interpreter computes with: one class per kind of Python object."""
