"""Alembic revisions of both databases; ``store.migrate`` runs them. Nothing imports from here."""
