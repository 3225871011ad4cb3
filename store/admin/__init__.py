"""Administration of a store: backup, restore, copy, integrity checks."""
