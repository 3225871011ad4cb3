"""Invariants of blocks: each is intact, matches its row, and overlaps no other block."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import sqlalchemy as sa
import zstandard
from numpy.typing import NDArray

from outrider.errors import StoreError
from outrider.model import CellStatus, EntityRef, SignalKey
from store.admin import introspection
from store.schema import metadata
from store.schema.metadata import RAW, instant
from store.tsdb.chunk_codec import Block, decode
from store.tsdb.cycle_matrix import Ids
from store.tsdb.series_dictionary import sections_of

AddProblem = Callable[[str], None]
_UNREADABLE = (StoreError, ValueError, IndexError, struct.error, zstandard.ZstdError)


@dataclass(frozen=True, slots=True)
class Values:
    """Timestamps with visible raw values, in microseconds. Each cycle from ``since`` on must have some.

    ``since`` None: no values were ever stored.
    """

    instants: Collection[int]
    since: int | None


@dataclass(slots=True)
class _MemberLists:
    """The member lists that blocks refer to; None for a damaged list."""

    cohorts: dict[int, Ids | None]
    keysets: dict[int, tuple[SignalKey, ...] | None]
    columns: dict[int, Ids | None]


@dataclass(slots=True)
class _OverlapInput:
    """Data for the overlap check, a few bytes per row, and the timestamps of raw values."""

    groups: dict[tuple[str, str], int] = field(default_factory=dict)
    numbers: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in ("group", "id", "start", "end", "cohort", "keyset")}
    )
    instants: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def check(
    connection: sa.Connection, *, deep: bool, add_problem: AddProblem, progress: Callable[[float], None]
) -> Values:
    """Reports damaged blocks and member lists; returns the input of the check of cycles.

    Rows that maintenance still writes or has yet to delete may overlap visible rows.
    ``deep`` unpacks every value. Memory: 48 bytes per block, 8 per timestamp.
    """
    known = _MemberLists(*_lists(connection, add_problem))
    total = introspection.count(connection, metadata.block) or 1
    hidden = _hidden(connection)
    seen, done = _OverlapInput(), 0
    for part in introspection.rows(connection, metadata.block):
        new = []
        for row in part:
            block = _read_block(row, known, add_problem, deep=deep)
            if row.id in hidden:
                continue
            if block is not None and row.tier == RAW:
                new.append(block.times)
            group = seen.groups.setdefault((row.kind, row.tier), len(seen.groups))
            values = (group, row.id, row.start_us, row.end_us, row.cohort_id, row.keyset_id)
            for numbers, value in zip(seen.numbers.values(), values, strict=True):
                numbers.append(value)
        seen.instants = np.unique(np.concatenate([seen.instants, *new]))
        done += len(part)
        progress(done / total)
    _overlaps(seen, known, add_problem)
    return Values(frozenset(seen.instants.tolist()), _since(connection, seen.instants))


def _since(connection: sa.Connection, instants: NDArray[np.int64]) -> int | None:
    """The later of the oldest raw values and of the retention cut: a late cycle may precede the cut."""
    cut = sa.select(sa.func.max(metadata.kept_from.c.start_us)).where(metadata.kept_from.c.tier == RAW)
    known = [connection.execute(cut).scalar(), int(instants[0]) if instants.size else None]
    return max((at for at in known if at is not None), default=None)


# --- lists ----------------------------------------------------------------------------------------


def _lists(connection: sa.Connection, add_problem: AddProblem) -> tuple[Any, Any, Any]:
    entities, signals = _entities(connection, add_problem), _signals(connection, add_problem)
    numbers = np.array(sorted(entities), dtype=np.int64)
    cohorts = {
        number: _members(row, numbers, "cohort", add_problem) for number, row in _rows(connection, metadata.cohort)
    }
    keys = np.array(sorted(signals), dtype=np.int64)
    columns = {number: _members(row, keys, "keyset", add_problem) for number, row in _rows(connection, metadata.keyset)}
    keysets = {
        number: None if members is None else tuple(signals[item] for item in members.tolist())
        for number, members in columns.items()
    }
    return cohorts, keysets, columns


def _hidden(connection: sa.Connection) -> frozenset[int]:
    return frozenset(connection.scalars(sa.select(metadata.hidden.c.block_id)))


def _rows(connection: sa.Connection, table: sa.Table) -> list[tuple[int, Any]]:
    return [(row.id, row) for part in introspection.rows(connection, table) for row in part]


def _entities(connection: sa.Connection, add_problem: AddProblem) -> set[int]:
    result = set()
    for number, row in _rows(connection, metadata.entity):
        result.add(number)
        try:
            problem = EntityRef.from_key(row.key).kind.value != row.kind
        except (ValueError, KeyError):
            problem = True
        if problem:
            add_problem(f"Entity {number} of the metrics has the key {row.key!r}, which is not a valid {row.kind} key.")
    return result


def _signals(connection: sa.Connection, add_problem: AddProblem) -> dict[int, SignalKey]:
    result = {}
    for number, row in _rows(connection, metadata.signal):
        try:
            result[number] = SignalKey.parse(row.key)
        except (ValueError, KeyError):
            add_problem(f"Column {number} of the metrics has the key {row.key!r}, which is not a known signal.")
    return result


def _members(row: Any, known: NDArray[np.int64], subject: str, add_problem: AddProblem) -> Ids | None:
    if len(row.members) % 4 or hashlib.sha256(row.members).digest()[:16] != row.digest:
        add_problem(f"List {subject} {row.id} of the metrics is damaged: its digest does not match.")
        return None
    members = np.frombuffer(row.members, dtype="<i4")
    lost = members[~np.isin(members, known)]
    if lost.size:
        add_problem(f"List {subject} {row.id} of the metrics refers to {lost.size} missing ids, for example {lost[0]}.")
        return None
    return members


# --- one block ------------------------------------------------------------------------------------


def _read_block(row: Any, known: _MemberLists, add_problem: AddProblem, *, deep: bool) -> Block | None:
    """The block if its header can be trusted, else None."""
    subject = f"Block {row.id} ({row.kind}, {row.tier}, from {instant(row.start_us).isoformat()})"
    cohort, keyset = known.cohorts.get(row.cohort_id), known.keysets.get(row.keyset_id)
    if cohort is None or keyset is None:
        add_problem(f"{subject} refers to a missing or damaged list of {'entities' if cohort is None else 'columns'}.")
        return None
    try:
        block = Block(row.payload)
        problem = _mismatch(row, block, cohort, keyset)
        if problem is None and deep:
            problem = _contents(block, raw=row.tier == RAW)
    except _UNREADABLE as error:
        problem = f"cannot be unpacked: {error}"
    if problem is not None:
        add_problem(f"{subject} {problem}.")
        return None
    return block


def _mismatch(row: Any, block: Block, cohort: Ids, keyset: tuple[SignalKey, ...]) -> str | None:
    if block.length != len(row.payload):
        return f"has {len(row.payload)} bytes, not the {block.length} of its index"
    times = block.times
    if block.instants != row.instants or not block.instants:
        return f"has {block.instants} timestamps, not the {row.instants} of its row"
    if (np.diff(times) <= 0).any() or times[0] != row.start_us or times[-1] != row.end_us:
        return "has other timestamps than its row"
    if block.entities != cohort.size:
        return f"has {block.entities} entities; its list has {cohort.size}"
    signals = sections_of(keyset)
    if row.tier == RAW:
        widths = [end - first for _, first, end in signals.values()]
    else:  # one signal, one section per statistic
        widths = [len(keyset)] * block.sections if len(signals) == 1 else []
    if [block.columns(section) for section in range(block.sections)] != widths:
        return "has other columns than its list"
    return None


def _contents(block: Block, *, raw: bool) -> str | None:
    for section in range(block.sections):
        cells = decode([block], section)
        if cells.status is not None and (cells.status > max(CellStatus)).any():
            return f"has cells with an unknown status in section {section}"
        present = True if cells.status is None else cells.status == CellStatus.PRESENT
        if raw and (np.isnan(cells.values) & present).any():  # in a roll-up the first section holds the status for all
            return f"has PRESENT cells without a number in section {section}"
    return None


# --- overlaps -------------------------------------------------------------------------------------


def _overlaps(seen: _OverlapInput, known: _MemberLists, add_problem: AddProblem) -> None:
    """Reports rows of one kind and tier that hold the same column of an entity at the same time."""
    rows = {name: np.frombuffer(numbers, dtype=np.int64) for name, numbers in seen.numbers.items()}
    for (kind, tier), group in seen.groups.items():
        chosen = np.flatnonzero(rows["group"] == group)
        chosen = chosen[np.argsort(rows["start"][chosen], kind="stable")]
        ordered = {name: numbers[chosen] for name, numbers in rows.items()}
        for column, those in _by_column(ordered["keyset"], known).items():
            for cluster in _clusters(ordered["start"][those], ordered["end"][those]):
                pair = _shared(ordered, those[cluster], known)
                if pair is not None:
                    both = f"Blocks {pair[0]} and {pair[1]} ({kind}, {tier})"
                    add_problem(f"{both} hold the same entity's column {column} at the same time.")


def _by_column(keysets: NDArray[np.int64], known: _MemberLists) -> dict[int, NDArray[np.intp]]:
    """For each stored column the indices of its rows; columns that always occur together are counted once."""
    holders: dict[int, list[int]] = {}
    for number in np.unique(keysets).tolist():
        members = known.columns.get(number)
        for column in [] if members is None else members.tolist():
            holders.setdefault(column, []).append(number)
    first: dict[tuple[int, ...], int] = {}
    for column, numbers in holders.items():
        first.setdefault(tuple(numbers), column)
    return {column: np.flatnonzero(np.isin(keysets, numbers)) for numbers, column in first.items()}


def _clusters(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[slice]:
    """Runs of rows, sorted by start, in which each row starts before the previous ones have ended."""
    if starts.size < 2:
        return []
    fresh = np.flatnonzero(starts[1:] > np.maximum.accumulate(ends)[:-1]) + 1
    edges = [0, *fresh.tolist(), starts.size]
    return [slice(a, b) for a, b in pairwise(edges) if b - a > 1]


def _shared(
    rows: dict[str, NDArray[np.int64]], cluster: NDArray[np.intp], known: _MemberLists
) -> tuple[int, int] | None:
    """Two overlapping rows of a cluster that share an entity; None if there are none."""
    lists = [known.cohorts.get(number) for number in rows["cohort"][cluster].tolist()]
    sizes = [0 if members is None else members.size for members in lists]
    entities = np.concatenate([members for members in lists if members is not None] or [np.empty(0, dtype=np.int32)])
    rows_of_entities = np.repeat(cluster, sizes)
    order = np.lexsort((rows["start"][rows_of_entities], entities))
    entities, rows_of_entities = entities[order], rows_of_entities[order]
    same = entities[1:] == entities[:-1]
    hit = np.flatnonzero(same & (rows["start"][rows_of_entities[1:]] <= rows["end"][rows_of_entities[:-1]]))
    return (
        (int(rows["id"][rows_of_entities[hit[0]]]), int(rows["id"][rows_of_entities[hit[0] + 1]])) if hit.size else None
    )
