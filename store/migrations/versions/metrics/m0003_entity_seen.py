"""When an entity was first and last seen. What was written before has no such instants until it is seen again."""

import sqlalchemy as sa
from alembic import op

revision = "m0003"
down_revision = "m0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("first_seen_us", "last_seen_us"):
        op.add_column("entity", sa.Column(name, sa.BigInteger()))


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
