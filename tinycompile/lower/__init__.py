"""From a Graph to Loops: one loop nest per op, views as index maps."""
