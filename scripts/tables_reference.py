"""Write docs/reference/tables.md from the tables of the store; with --check, say whether it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
from generated import write_or_check
from sqlalchemy.dialects import postgresql

from outrider.model import EntityKind, Layer, SignalKind
from outrider.ports import DEFAULT_STATE_RETENTION
from outrider.vocabulary import catalog
from store.schema import metadata as schema_metadata
from store.state import retention, state_rows
from store.tsdb import hourly, latest

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
PAGE = FOLDER / "tables.md"
QUERIES = FOLDER / "queries"
FIRST = (
    "hottest_gpus", "load_by_hour", "incidents_of_a_week", "nodes_of_a_service", "changes_before_an_incident",
    "actions_refused", "replicas_to_order",
)  # fmt: skip

HEAD = """\
# Tables

For people who ask the store in SQL. Outrider keeps decisions (*state*) and values (*metrics*): two files
with SQLite, one database with PostgreSQL. How to open them for reading:
[Read the store with SQL](../howto/read-the-store-with-sql.md).

This page is written by `scripts/tables_reference.py`; its queries are tested on both engines.

- Columns that end in `_us` are instants: microseconds since 1970 in UTC. For people:
  `datetime(at_us / 1000000, 'unixepoch')` with SQLite, `to_timestamp(at_us / 1e6)` with PostgreSQL; the other
  way round `strftime('%s', '2026-11-20 08:00') * 1000000` and
  `extract(epoch FROM timestamptz '2026-11-20 08:00Z') * 1000000`.
- An entity's *key* is `cluster/kind/namespace/name`; the namespace may be empty. A name of more than 600 bytes, or
  with a NUL, is cut or mended and ends with `~` and twelve digits of its digest.
- `body` is the whole record as JSON; the other columns are copies of what is asked for.
- Tables are ours to change: a new version may add columns, and says so in the changelog.
"""

KEPT = {
    "cycle": f"the newest {state_rows.KEPT_CYCLES:,}",
    "plan": f"the newest {state_rows.KEPT_PLANS:,}",
    "document": "the newest of each name",
    "baseline": "the newest of each shape",
    "load_test": "the newest of each shape and source",
    "flag": "always",
    "refused": "always",
    "hidden": "until upkeep has deleted them",
    "due": "until it is done",
    "block": "raw, 10m and 1h each as `store.retention` says",
    "event": "as long as `store.retention.hours` says",
    "kept_from": "always",
    "pushed": "until the engine has written them",
    "pushed_left_out": "always",
    "posted": "a day, and the newest 20,000 at most",
    "entity": "as long as a tier may speak of it: the longest of `store.retention`, and two days",
    "signal": "always: its number stands in blocks",
}


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## Worked queries\n\n" + PARAMETERS, *(_query(name) for name in FIRST)]
    parts += ["## Values, for people: latest_\\<kind\\>\n\n" + "\n".join(_latest())]
    parts += ["## Hours, for people: hourly_\\<kind\\>\n\n" + "\n".join(_hourly())]
    for title, metadata in (("State", schema_metadata.state), ("Metrics", schema_metadata.metrics)):
        tables = sorted(metadata.tables.values(), key=lambda table: table.name)
        parts += [f"## {title}\n", *("\n".join(_table(table)) + "\n" for table in tables)]
    parts += ["## Versions\n\n" + "\n".join(_versions())]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


PARAMETERS = """\
Words with a colon are parameters. In `sqlite3`: `.parameter set :at_us 1795168800000000`; in `psql`:
`\\set at_us 1795168800000000`, and texts in quotes, as in `\\set service '''prod/service/llm/chat'''`.
"""


def _query(name: str) -> str:
    title, database, note, text = parsed((QUERIES / f"{name}.sql").read_text(encoding="utf-8"))
    return f"### {title}\n\nOf *{database}*. {note}\n\n```sql\n{text}```\n"


def parsed(text: str) -> tuple[str, str, str, str]:
    """Title, database, note and statement of a file of ``queries``."""
    lines = text.splitlines(keepends=True)
    title, database, note = (line.removeprefix("-- ").strip() for line in lines[:3])
    return title, database, note, "".join(lines[3:])


def _table(table: sa.Table) -> Iterator[str]:
    yield f"### {table.name}\n"
    yield f"{table.comment} Kept: {_kept(table)}.\n"
    yield from _rows(table.columns)
    unique = [column.name for column in table.columns if column.unique]
    keys = ", ".join(column.name for column in table.primary_key)
    told = f"Primary key: {keys}."
    told += "".join(f" Unique: {name}." for name in unique)
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    if indexes:
        told += " Indexes: " + "; ".join(", ".join(column.name for column in index.columns) for index in indexes) + "."
    yield f"\n{told}"


def _rows(columns: Sequence[sa.Column[object]] | sa.ColumnCollection[str, sa.Column[object]]) -> Iterator[str]:
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for column in columns:
        kind = column.type.compile(dialect=postgresql.dialect()).lower()
        null = "" if column.primary_key or not column.nullable else ", may be NULL"
        yield f"| `{column.name}` | {kind}{null} | {_cell(str(column.comment))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _kept(table: sa.Table) -> str:
    for rule in retention.RULES:
        if rule.table is table:
            only = " once nothing of it goes on" if rule.only is not None else ""
            span = _days(getattr(DEFAULT_STATE_RETENTION, rule.kept))
            setting = f" (`store.retention.{rule.kept}`)" if rule.kept in ("decisions", "forecasts") else ""
            return f"{span}{setting} after `{rule.instant}`{only}"
    return KEPT.get(
        table.name, "as long as the blocks that use it" if table.metadata is schema_metadata.metrics else "always"
    )


def _days(span: timedelta) -> str:
    return f"{span.days} days"


def _latest() -> Iterator[str]:
    yield (
        "One row an entity, rewritten each cycle: the newest value of every signal that is not a histogram. "
        "NULL where the entity's newest cycle brought no value. "
        "New signals of the catalogue become columns when a store is opened. "
        "Kept: as long as raw values (`store.retention.raw`) after the last cycle that brought the entity.\n"
    )
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for name, kind, means in (
        ("entity_id", "integer", "number of the entity, as in table `entity`"),
        ("cluster", "text", "cluster"),
        ("namespace", "text", "namespace; may be NULL"),
        ("name", "text", "name of the entity"),
        ("at", "text", "instant of the cycle, RFC 3339 in UTC"),
    ):
        yield f"| `{name}` | {kind} | {means} |"
    yield "\nIn every one of these tables, about the entity as a target of monitoring:\n"
    yield from _signals([one.name for one in catalog.signals().values() if one.layer is Layer.MONITORING])
    for kind in EntityKind:
        own = [name for name in latest.columns(kind) if catalog.signal(name).layer is not Layer.MONITORING]
        yield f"\n### latest_{kind.value}\n"
        if own:
            yield from _signals(own)
        else:
            yield "No columns but those of every table."


_SAYS = {
    "last": "its last value",
    "mean": "its mean",
    "min": "its lowest value",
    "max": "its highest value",
    "sum": "by how much it rose",
    "count": "how many were counted",
    "p50": "median, from the buckets",
    "p99": "99th percentile, from the buckets",
}


def _hourly() -> Iterator[str]:
    yield (
        "One row an entity and hour that brought a value, written when the hour is over and rolled up. "
        "The first columns are those of `latest_<kind>`; `at` is the start of the hour. "
        "NULL where the hour brought no value of a signal. Kept: `store.retention.hourly_tables`.\n"
    )
    yield "| signal | columns | of the hour |"
    yield "|---|---|---|"
    for kind in (SignalKind.GAUGE, SignalKind.STATE, SignalKind.DELTA, SignalKind.HISTOGRAM):
        shown = {cell.name.replace(cell.signal.name, "<signal>"): cell.says for cell in _cells(kind)}
        yield from (f"| {kind.value} | `{name}` | {_SAYS[says]} |" for name, says in shown.items())
    yield (
        "\nOf a gauge or state the highest value stands there where high ones are what one looks for (or both ends may "
        "be), the lowest where low ones are; units and meaning are those of the signal."
    )


def _versions() -> Iterator[str]:
    yield "| table | column | meaning |"
    yield "|---|---|---|"
    for database, table in sorted(schema_metadata.VERSION_TABLES.items()):
        yield (
            f"| `{table}` | `version_num` | text: the revision of the *{database}* tables, now "
            f"`{schema_metadata.HEADS[database]}`. One row; a program that knows less refuses the store |"
        )


def _cells(kind: SignalKind) -> Iterator[hourly.Cell]:
    for entity in EntityKind:
        yield from (cell for cell in hourly.cells(entity) if cell.signal.kind is kind)


def _signals(names: Sequence[str]) -> Iterator[str]:
    yield "| column | unit | meaning |"
    yield "|---|---|---|"
    for name in names:
        signal = catalog.signal(name)
        yield f"| `{name}` | {signal.unit} | {_cell(signal.means)} |"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
