"""Alembic's entry: runs the revisions on the connection that ``store.migrate`` hands over."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,  # the connection is inside BEGIN IMMEDIATE: all revisions or none
)
context.run_migrations()
