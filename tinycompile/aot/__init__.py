"""From a Graph to functional forward and backward Graphs."""
