"""When and where a drill runs, in columns of their own: they are read without what it breaks."""

import sqlalchemy as sa
from alembic import op

revision = "s0003"
down_revision = "s0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("cluster", "name"):
        op.add_column("drill", sa.Column(name, sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
