"""Eager execution: our Tensor over shared Storage, views, factories, fake tensors, and the bridges to torch and numpy."""
