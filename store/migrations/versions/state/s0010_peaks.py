"""Quantiles of the peak up to the instant that a forecast speaks of. Rows of before have none."""

import sqlalchemy as sa
from alembic import op

revision = "s0010"
down_revision = "s0009"
branch_labels = None
depends_on = None

_LEVELS = ("05", "50", "80", "90", "95")


def upgrade() -> None:
    for level in _LEVELS:
        op.add_column("forecast", sa.Column(f"peak_q{level}", sa.Double()))


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
