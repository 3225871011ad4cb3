"""Forecasts, recommendations, baselines and the topology through time; the audit and the ledger become append-only."""

import sqlalchemy as sa
from alembic import op

revision = "s0007"
down_revision = "s0006"
branch_labels = None
depends_on = None

_APPEND_ONLY = ("audit", "change", "change_end")
_REFUSE = """
CREATE FUNCTION outrider_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'UPDATE' AND EXISTS (SELECT 1 FROM flag WHERE name = 'pruning') THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$
"""


def _id() -> sa.Column[int]:
    return sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True)


def _instants(*names: str, nullable: bool) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=nullable) for name in names]


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _counts(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.Integer()) for name in names]


def upgrade() -> None:
    _planning()
    _baseline()
    _topology()
    refuse = _refuse_on_postgresql if op.get_bind().dialect.name == "postgresql" else _refuse_on_sqlite
    refuse()


def _planning() -> None:
    op.create_table(
        "forecast",
        _id(),
        *_instants("made_at_us", nullable=False),
        *_texts("entity", "signal", "model"),
        sa.Column("horizon_seconds", sa.Integer(), nullable=False),
        *_instants("at_us", nullable=False),
        *(sa.Column(name, sa.Double()) for name in ("q05", "q50", "q80", "q90", "q95")),
    )
    op.create_index("forecast_by_making", "forecast", ["made_at_us"])
    op.create_index("forecast_by_entity", "forecast", ["entity", "at_us"])
    op.create_table(
        "recommendation",
        _id(),
        *_instants("made_at_us", nullable=False),
        *_texts("cycle", "service", "reason"),
        sa.Column("gpu_type", sa.Text()),
        *_counts("current_replicas", "target_replicas", "gpus", "floor", "ceiling"),
        sa.Column("binding", sa.Text()),
        *_instants("need_at_us", "needed_by_us", nullable=True),
        sa.Column("lead_time_seconds", sa.Double()),
        sa.Column("cost_per_hour", sa.Double()),
        sa.Column("currency", sa.Text()),
    )  # fmt: skip
    op.create_index("recommendation_by_making", "recommendation", ["made_at_us"])
    op.create_index("recommendation_by_service", "recommendation", ["service", "made_at_us"])


def _baseline() -> None:
    figures: list[sa.Column[float]] = []
    for name in ("tokens_per_request", "batch", "tokens_per_second"):
        figures.append(sa.Column(name, sa.Double(), nullable=False))
        figures += [sa.Column(f"{name}_{end}", sa.Double()) for end in ("low", "high")]
    op.create_table(
        "baseline",
        *(sa.Column(name, sa.Text(), primary_key=True) for name in ("service", "model", "gpu_type", "engine_version")),
        sa.Column("tensor_parallel", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("pipeline_parallel", sa.Integer(), primary_key=True, autoincrement=False),
        *_instants("measured_at_us", nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        *figures,
        sa.Column("startup_seconds", sa.Double(), nullable=False),
        *_texts("startup_source", "body"),
    )


def _topology() -> None:
    for table, columns, indexed in (
        ("topology_entity", ("entity", "kind"), (("name", "entity"),)),
        ("topology_edge", ("supporter", "supported"), (("supported", "supported"), ("supporter", "supporter"))),
        ("topology_label", ("entity", "name", "value"), (("entity", "entity"),)),
    ):
        begins, ends = _instants("valid_from_us", nullable=False), _instants("valid_to_us", nullable=True)
        op.create_table(table, _id(), *_texts(*columns), *begins, *ends)
        op.create_index(f"{table}_by_end", table, ["valid_to_us", "valid_from_us"])
        for name, column in indexed:
            op.create_index(f"{table}_by_{name}", table, [column, "valid_to_us"])


def _refuse_on_sqlite() -> None:
    """Only a transaction of retention or of a restore sees the flag ``pruning``: it sets it and takes it away."""
    unless = "WHEN NOT EXISTS (SELECT 1 FROM flag WHERE name = 'pruning')"
    for table in _APPEND_ONLY:
        for verb, when in (("UPDATE", ""), ("DELETE", unless)):
            op.execute(
                f"CREATE TRIGGER {table}_refuses_{verb.lower()} BEFORE {verb} ON {table} {when} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def _refuse_on_postgresql() -> None:
    op.execute(_REFUSE)
    for table in _APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION outrider_append_only()"
        )
        op.execute(
            f"CREATE TRIGGER {table}_not_emptied BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION outrider_append_only()"
        )


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
