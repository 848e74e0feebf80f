"""The corpus by construct: each module holds functions of one family; ``registry.CASES`` is the table."""
