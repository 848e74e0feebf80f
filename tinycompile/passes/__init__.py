"""Rewrites from Graph to Graph: decompose, fold constants, merge equal nodes, drop dead ones."""
