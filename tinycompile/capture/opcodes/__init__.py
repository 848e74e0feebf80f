"""What each canonical instruction does, by family. ``registry.HANDLERS`` is the table."""
