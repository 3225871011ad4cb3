"""Topology history: changes of each committed graph as rows with their period of validity.

The newest graph is also stored as one packed document, so that reading it is one row. Both are written in one
transaction, and only if the graph differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa

from outrider.model import EntityRef
from outrider.topology import Topology
from store.schema import json_codec, metadata
from store.schema.metadata import micros
from store.sql.backend import put
from store.state import state_rows
from store.state.topology_diff import COLUMNS, between

_GRAPH, _AT = "topology", "topology_at"  # areas of table document


class TopologyHistory:
    """Writes graphs; caches the last one, to compare the next with it instead of the rows.

    The stored document confirms the cache: after a failed transaction, or a write of another process, it differs.
    """

    def __init__(self) -> None:
        """Starts empty: the first graph is compared with the rows."""
        self._last = Topology()
        self._payload: bytes | None = None

    def put(self, connection: sa.Connection, graph: Topology, at: datetime) -> None:
        """Writes the graph of a cycle. Facts that it lacks end at ``at``, new facts begin then."""
        put(connection, metadata.document, _document(_AT, at, json_codec.dumps(graph.at).encode()))
        stored = connection.execute(_payload(_GRAPH)).scalar()
        known = stored is not None and stored == self._payload
        changes = between(self._last if known else _still(connection), graph)
        if changes or stored is None:
            stored = state_rows.pack_topology(graph)
            put(connection, metadata.document, _document(_GRAPH, at, stored))
        for table, facts in changes.gone.items():
            if facts:
                connection.execute(_ending(table), [{**_named(table, fact), "ended_us": micros(at)} for fact in facts])
        for table, facts in changes.new.items():
            if facts:
                rows = [{**dict(zip(COLUMNS[table], fact, strict=True)), "valid_from_us": micros(at)} for fact in facts]
                connection.execute(sa.insert(table), rows)
        self._last, self._payload = graph, stored


def _document(area: str, at: datetime, payload: bytes) -> dict[str, object]:
    return {"area": area, "name": "", "at_us": micros(at), "payload": payload}


def _payload(area: str) -> sa.Select[Any]:
    table = metadata.document
    return sa.select(table.c.payload).where(table.c.area == area)


def _named(table: sa.Table, fact: Sequence[str]) -> dict[str, str]:
    return {f"is_{name}": value for name, value in zip(COLUMNS[table], fact, strict=True)}


@cache
def _ending(table: sa.Table) -> sa.Update:
    same = [table.c[name] == sa.bindparam(f"is_{name}") for name in COLUMNS[table]]
    return sa.update(table).where(table.c.valid_to_us.is_(None), *same).values(valid_to_us=sa.bindparam("ended_us"))


def newest(connection: sa.Connection) -> Topology:
    """The last committed graph; empty if there is none."""
    return _read(connection)[0]


def at_instant(connection: sa.Connection, at: datetime) -> Topology:
    """The graph known at a time, with that time as its timestamp; empty if none was known.

    The order of edges is undefined.
    """
    graph, since = _read(connection)
    if since is not None and micros(at) >= since:
        return replace(graph, at=at)
    result = _valid(connection, micros(at))
    return replace(result, at=at) if result.entities else result


def _still(connection: sa.Connection) -> Topology:
    """Facts that have not ended."""
    return _valid(connection, None)


def _valid(connection: sa.Connection, time: int | None) -> Topology:
    rows = {table: _facts(connection, table, time) for table in COLUMNS}
    named = cache(EntityRef.from_key)
    labels: dict[EntityRef, dict[str, str]] = {}
    for key, name, value in rows[metadata.topology_label]:
        labels.setdefault(named(key), {})[name] = value
    edges = [(named(lower), named(upper)) for lower, upper in rows[metadata.topology_edge]]
    return Topology.build(edges, [named(key) for key, _ in rows[metadata.topology_entity]], labels)


def _facts(connection: sa.Connection, table: sa.Table, time: int | None) -> Sequence[Any]:
    query = sa.select(*(table.c[name] for name in COLUMNS[table])).order_by(table.c.id)
    ends = table.c.valid_to_us
    if time is None:
        return connection.execute(query.where(ends.is_(None))).all()
    return connection.execute(query.where(sa.or_(ends.is_(None), ends > time), table.c.valid_from_us <= time)).all()


def _read(connection: sa.Connection) -> tuple[Topology, int | None]:
    """The newest graph, and the start of its validity."""
    table = metadata.document
    query = sa.select(table.c.area, table.c.at_us, table.c.payload).where(table.c.area.in_([_GRAPH, _AT]))
    rows = {row.area: row for row in connection.execute(query)}
    if _GRAPH not in rows:
        return Topology(), None
    graph = state_rows.unpack_topology(rows[_GRAPH].payload)
    if _AT in rows:
        graph = replace(graph, at=json_codec.loads(datetime, rows[_AT].payload.decode()))
    return graph, rows[_GRAPH].at_us
