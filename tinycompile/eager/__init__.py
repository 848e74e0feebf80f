"""Tensors over shared storage, run by torch's kernels, and fakes that are traced. Importing it fills the dispatcher."""

from tinycompile.eager import autocast, autograd, backends, fake, sparse  # noqa: F401
