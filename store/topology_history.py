"""The topology through time: what a committed graph changed is written as rows with their span of validity.

The newest graph stands packed in one document besides, so that reading it is one row. Both are written in
one transaction, and only when the graph differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache

import sqlalchemy as sa

from outrider.fitting import clean
from outrider.model import EntityRef
from outrider.topology import Topology
from store import codec, schema, state_rows
from store.backend import put
from store.schema import micros

Fact = tuple[str, ...]
_AREA, _GRAPH, _AT = "topology", "", "at"
_AT_ONCE = 5_000  # ids in one condition: SQLite takes 32,766 parameters
_COLUMNS = {
    schema.topology_entity: ("entity", "kind"),
    schema.topology_edge: ("supporter", "supported"),
    schema.topology_label: ("entity", "name", "value"),
}


def put_topology(connection: sa.Connection, topology: Topology, at: datetime) -> bool:
    """Write the graph of a cycle; False when it is the one that is there. What ends, ends at ``at``."""
    payload = state_rows.pack_topology(topology)
    put(connection, schema.document, _document(_AT, at, codec.dumps(topology.at).encode()))
    table = schema.document
    newest = sa.select(table.c.payload).where(table.c.area == _AREA, table.c.name == _GRAPH)
    if connection.execute(newest).scalar() == payload:
        return False
    put(connection, table, _document(_GRAPH, at, payload))
    for one, facts in _facts(topology).items():
        _put_facts(connection, one, facts, micros(at))
    return True


def _document(name: str, at: datetime, payload: bytes) -> dict[str, object]:
    return {"area": _AREA, "name": name, "at_us": micros(at), "payload": payload}


def _facts(topology: Topology) -> dict[sa.Table, set[Fact]]:
    """Everything the graph says, as the rows that say it."""
    keys = {entity: entity.key for entity in topology.entities}
    return {
        schema.topology_entity: {(key, entity.kind.value) for entity, key in keys.items()},
        schema.topology_edge: {(keys[lower], keys[upper]) for lower, upper in topology.edges},
        schema.topology_label: {
            (entity.key, clean(name), clean(value))
            for entity, labels in topology.labels.items()
            for name, value in labels.items()
        },
    }


def _put_facts(connection: sa.Connection, table: sa.Table, facts: set[Fact], at: int) -> None:
    names = _COLUMNS[table]
    columns = [table.c[name] for name in names]
    still = sa.select(table.c.id, *columns).where(table.c.valid_to_us.is_(None))
    known = {tuple(fact): number for number, *fact in connection.execute(still)}
    gone = [known[fact] for fact in known.keys() - facts]
    for some in _parts(gone):
        connection.execute(sa.update(table).where(table.c.id.in_(some)).values(valid_to_us=at))
    new = sorted(facts - known.keys())
    if new:
        rows = [{**dict(zip(names, fact, strict=True)), "valid_from_us": at} for fact in new]
        connection.execute(sa.insert(table), rows)


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), _AT_ONCE):
        yield numbers[start : start + _AT_ONCE]


def newest(connection: sa.Connection) -> Topology:
    """The graph as it was last committed; empty when none was."""
    return _read(connection)[0]


def at_instant(connection: sa.Connection, at: datetime) -> Topology:
    """The graph as it was known at an instant, which it bears; empty when nothing was known then.

    Edges come in no particular order.
    """
    time = micros(at)
    graph, since = _read(connection)
    if since is not None and time >= since:
        return replace(graph, at=at)
    rows = {table: list(_valid(connection, table, time)) for table in _COLUMNS}
    named = cache(EntityRef.from_key)
    labels: dict[EntityRef, dict[str, str]] = {}
    for key, name, value in rows[schema.topology_label]:
        labels.setdefault(named(key), {})[name] = value
    entities = [named(key) for key, _ in rows[schema.topology_entity]]
    edges = [(named(lower), named(upper)) for lower, upper in rows[schema.topology_edge]]
    return Topology.build(edges, entities, labels, at) if entities else Topology()


def _valid(connection: sa.Connection, table: sa.Table, time: int) -> Iterable[Sequence[str]]:
    holds = sa.or_(table.c.valid_to_us.is_(None), table.c.valid_to_us > time)
    asked = sa.select(*(table.c[name] for name in _COLUMNS[table])).where(holds, table.c.valid_from_us <= time)
    return connection.execute(asked.order_by(table.c.id)).all()


def _read(connection: sa.Connection) -> tuple[Topology, int | None]:
    """The newest graph, and since when it is the newest."""
    table = schema.document
    asked = sa.select(table.c.name, table.c.at_us, table.c.payload).where(table.c.area == _AREA)
    rows = {row.name: row for row in connection.execute(asked)}
    if _GRAPH not in rows:
        return Topology(), None
    graph = state_rows.unpack_topology(rows[_GRAPH].payload)
    if _AT in rows:
        told = codec.loads(datetime, rows[_AT].payload.decode())
        graph = replace(graph, at=told)
    return graph, rows[_GRAPH].at_us
