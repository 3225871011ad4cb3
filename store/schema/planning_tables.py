"""Tables of the state database: plans, measurements and the topology over time."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from store.schema.column_types import BIG, FreeText, Key, instant_column
from store.schema.column_types import state as state_tables

_SERVICE = "key of the service: cluster/service/namespace/name"
_FROM = "start of validity"
_TO = "end of validity; NULL while it holds"


def _shape_columns(model: str, version: str) -> tuple[sa.Column[Any], ...]:
    """Key columns of a calibration: a service, its configuration and GPUs. Both parameters are column comments."""
    return (
        sa.Column("service", Key(500), primary_key=True, comment=_SERVICE),
        sa.Column("model", Key(500), primary_key=True, comment=model),
        sa.Column("gpu_type", Key(200), primary_key=True, comment="type of accelerator"),
        sa.Column("engine_version", Key(300), primary_key=True, comment=version),
        sa.Column("tensor_parallel", sa.Integer, primary_key=True, autoincrement=False, comment="GPUs a layer spans"),
        sa.Column("pipeline_parallel", sa.Integer, primary_key=True, autoincrement=False, comment="stages of layers"),
    )


plan = sa.Table(
    "plan",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="increases with each write"),
    instant_column("at_us", "time of creation", nullable=False),
    sa.Column("cycle", FreeText, nullable=False, comment="id of the cycle"),
    sa.Column("body", FreeText, nullable=False, comment="the whole plan as JSON, forecasts with every step included"),
    sa.Index("plan_by_time", "at_us"),
    comment="One plan; forecast and recommendation hold the same data in columns.",
)
forecast = sa.Table(
    "forecast",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="increases with each write"),
    instant_column("made_at_us", "time of creation", nullable=False),
    sa.Column("entity", Key, nullable=False, comment=_SERVICE),
    sa.Column("signal", FreeText, nullable=False, comment="name of the signal"),
    sa.Column("model", FreeText, nullable=False, comment="selected forecaster"),
    sa.Column("horizon_seconds", sa.Integer, nullable=False, comment="horizon"),
    instant_column("at_us", "forecast time: the start of a step", nullable=False),
    sa.Column("q05", sa.Double, comment="5 % quantile, in the unit of the signal"),
    sa.Column("q50", sa.Double, comment="median"),
    sa.Column("q80", sa.Double, comment="80 % quantile"),
    sa.Column("q90", sa.Double, comment="90 % quantile"),
    sa.Column("q95", sa.Double, comment="95 % quantile"),
    sa.Column("peak_q05", sa.Double, comment="5 % quantile of the peak: the highest value up to that time"),
    sa.Column("peak_q50", sa.Double, comment="median of the peak"),
    sa.Column("peak_q80", sa.Double, comment="80 % quantile of the peak"),
    sa.Column("peak_q90", sa.Double, comment="90 % quantile of the peak"),
    sa.Column("peak_q95", sa.Double, comment="95 % quantile of the peak"),
    sa.Index("forecast_by_making", "made_at_us"),
    sa.Index("forecast_by_entity", "entity", "at_us"),
    comment="One forecast value per time and horizon, to be compared with the observed value.",
)
recommendation = sa.Table(
    "recommendation",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="increases with each write"),
    instant_column("made_at_us", "time of creation", nullable=False),
    sa.Column("cycle", FreeText, nullable=False, comment="id of the cycle"),
    sa.Column("service", Key, nullable=False, comment=_SERVICE),
    sa.Column("reason", FreeText, nullable=False, comment="reason code of the recommendation, or of its absence"),
    sa.Column(
        "gpu_type", FreeText, comment="type of accelerator; this and the next columns are NULL without a recommendation"
    ),
    sa.Column("current_replicas", sa.Integer, comment="current replicas"),
    sa.Column("target_replicas", sa.Integer, comment="replicas needed"),
    sa.Column("gpus", sa.Integer, comment="GPUs of the target"),
    sa.Column("floor", sa.Integer, comment="minimum replicas of the configuration"),
    sa.Column("ceiling", sa.Integer, comment="maximum replicas of the configuration"),
    sa.Column("binding", FreeText, comment="binding constraint"),
    instant_column("need_at_us", "when the load arrives"),
    instant_column("needed_by_us", "when the replicas must be ordered"),
    sa.Column("lead_time_seconds", sa.Double, comment="assumed lead time"),
    sa.Column("cost_per_hour", sa.Double, comment="cost of the target; NULL without a price"),
    sa.Column("currency", FreeText, comment="currency of the cost"),
    sa.Index("recommendation_by_making", "made_at_us"),
    sa.Index("recommendation_by_service", "service", "made_at_us"),
    comment="Replicas needed, or the reason for no recommendation: one row per service and plan.",
)
baseline = sa.Table(
    "baseline",
    state_tables,
    *_shape_columns(
        model="served model; empty if unknown",
        version="version or image of the engine; may be empty",
    ),
    instant_column("measured_at_us", "end of the measured span", nullable=False),
    sa.Column("samples", sa.Integer, nullable=False, comment="samples near the limit, per replica and step"),
    sa.Column("tokens_per_request", sa.Double, nullable=False, comment="generated tokens of a request"),
    sa.Column("tokens_per_request_low", sa.Double, comment="5th percentile of its samples"),
    sa.Column("tokens_per_request_high", sa.Double, comment="95th percentile of its samples"),
    sa.Column("batch", sa.Double, nullable=False, comment="concurrent sequences of one replica"),
    sa.Column("batch_low", sa.Double, comment="5th percentile of its samples"),
    sa.Column("batch_high", sa.Double, comment="95th percentile of its samples"),
    sa.Column("tokens_per_second", sa.Double, nullable=False, comment="tokens/s of one sequence in a full batch"),
    sa.Column("tokens_per_second_low", sa.Double, comment="5th percentile of its samples"),
    sa.Column("tokens_per_second_high", sa.Double, comment="95th percentile of its samples"),
    sa.Column("startup_seconds", sa.Double, nullable=False, comment="trigger to first served request, p95"),
    sa.Column("startup_source", FreeText, nullable=False, comment="source of the start-up time"),
    sa.Column("body", FreeText, nullable=False, comment="the whole calibration as JSON"),
    comment="Measured capacity of one engine: the newest measurement of each shape, never the configuration.",
)  # fmt: skip
load_test = sa.Table(
    "load_test",
    state_tables,
    *_shape_columns(
        model="tested model; empty if unknown",
        version="version of the engine; may be empty",
    ),
    sa.Column("source", Key(40), primary_key=True, comment="load_test, or the tool: vllm, llmperf, k6"),
    instant_column("measured_at_us", "when it ran, or was imported", nullable=False),
    instant_column("valid_until_us", "end of validity for the planner", nullable=False),
    sa.Column("samples", sa.Integer, nullable=False, comment="requests in the decisive load step"),
    sa.Column("tokens_per_request", sa.Double, nullable=False, comment="generated tokens of a request"),
    sa.Column("tokens_per_request_low", sa.Double, comment="lower end of its 90 % interval; NULL when unknown"),
    sa.Column("tokens_per_request_high", sa.Double, comment="upper end of its 90 % interval"),
    sa.Column("batch", sa.Double, nullable=False, comment="concurrent sequences at the SLO"),
    sa.Column("batch_low", sa.Double, comment="the last step that met the SLO"),
    sa.Column("batch_high", sa.Double, comment="the first step that violated the SLO"),
    sa.Column("tokens_per_second", sa.Double, nullable=False, comment="tokens/s of one sequence at that batch"),
    sa.Column("tokens_per_second_low", sa.Double, comment="lower end of its 90 % interval; NULL when unknown"),
    sa.Column("tokens_per_second_high", sa.Double, comment="upper end of its 90 % interval"),
    sa.Column("body", FreeText, nullable=False, comment="the whole calibration as JSON"),
    comment="Capacity of one engine by load test: the newest result of each shape and source.",
)  # fmt: skip
topology_entity = sa.Table(
    "topology_entity",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="increases with each write"),
    sa.Column("entity", Key, nullable=False, comment="key of the entity: cluster/kind/namespace/name"),
    sa.Column("kind", FreeText, nullable=False, comment="node, gpu, pod, replica, service, ..."),
    instant_column("valid_from_us", _FROM, nullable=False),
    instant_column("valid_to_us", _TO),
    sa.Index("topology_entity_by_end", "valid_to_us", "valid_from_us"),
    sa.Index("topology_entity_by_name", "entity", "valid_to_us"),
    comment="Membership of entities in the topology over time.",
)
topology_edge = sa.Table(
    "topology_edge",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="increases with each write"),
    sa.Column(
        "supporter", Key, nullable=False, comment="key of the supporting entity, whose faults can affect the other"
    ),
    sa.Column("supported", Key, nullable=False, comment="key of the entity that depends on it"),
    instant_column("valid_from_us", _FROM, nullable=False),
    instant_column("valid_to_us", _TO),
    sa.Index("topology_edge_by_end", "valid_to_us", "valid_from_us"),
    sa.Index("topology_edge_by_supported", "supported", "valid_to_us"),
    sa.Index("topology_edge_by_supporter", "supporter", "valid_to_us"),
    comment="Dependencies over time: node, gpu, pod, replica, service, bottom to top.",
)
topology_label = sa.Table(
    "topology_label",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="increases with each write"),
    sa.Column("entity", Key, nullable=False, comment="key of the entity"),
    sa.Column("name", FreeText, nullable=False, comment="name of the label: gpu_type, model, version, driver, ..."),
    sa.Column("value", FreeText, nullable=False, comment="its value"),
    instant_column("valid_from_us", _FROM, nullable=False),
    instant_column("valid_to_us", _TO),
    sa.Index("topology_label_by_end", "valid_to_us", "valid_from_us"),
    sa.Index("topology_label_by_entity", "entity", "valid_to_us"),
    comment="Labels of entities over time.",
)
