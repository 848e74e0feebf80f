"""Benchmarks: eager, tinycompile and torch.compile in one process on one device. ``python -m benchmarks --help``."""
