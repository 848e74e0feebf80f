"""Stories of changes between calls: see ``stories.py``."""
