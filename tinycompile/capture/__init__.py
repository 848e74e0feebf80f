"""From CPython bytecode to a Graph: a symbolic interpreter, guards, and Python source that runs the rest."""
