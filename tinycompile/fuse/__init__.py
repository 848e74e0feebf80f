"""From Loops to a Plan: which nests share a kernel, in which order they run, and which memory they use."""
