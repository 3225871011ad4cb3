"""Alembic environment: runs the revisions on the connection of ``store.migrations.runner``."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,  # the caller's transaction: all revisions or none
)
context.run_migrations()
