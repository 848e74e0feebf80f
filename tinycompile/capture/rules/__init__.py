"""What calls of built-in functions and classes mean on Values, by family; ``registry.RULES`` is the table."""
