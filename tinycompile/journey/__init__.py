"""Seeing what a program does: every op's route, the kernels that ran, and pages that show it."""
