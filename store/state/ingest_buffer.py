"""The buffer of pushed samples, in the state database and in memory.

The state database is the one place that the API and the engine always share. Acknowledged samples must survive a kill
of either process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from threading import Lock

import sqlalchemy as sa

from outrider.records.ingest_buffer import BufferSize, PushedBlock
from store.migrations.runner import open_upgraded
from store.schema import metadata
from store.schema.metadata import instant, micros
from store.sql.backend import insert


class SqlIngestBuffer:
    """Implements ``outrider.records.ingest_buffer.IngestBuffer``. Several processes may use one file."""

    def __init__(self, url: str) -> None:
        """Opens and upgrades the state database; raises StoreError or SchemaTooNewError."""
        self._database = open_upgraded(url, "state")

    def put(self, block: PushedBlock, most_bytes: int) -> bool:
        """Stores a block. Checks the limit in the same transaction, so that two requests cannot exceed it together."""
        table = metadata.pushed
        row = {
            "door": block.protocol,
            "sender": block.sender,
            "came_at_us": micros(block.came_at),
            "samples": block.samples,
            "bytes": len(block.payload),
            "payload": block.payload,
        }
        with self._database.writing() as connection:
            held = connection.execute(sa.select(sa.func.coalesce(sa.func.sum(table.c.bytes), 0))).scalar_one()
            if held + len(block.payload) > most_bytes:
                return False
            connection.execute(sa.insert(table), row)
        return True

    def take(self, after: int, most_samples: int) -> tuple[PushedBlock, ...]:
        """The oldest blocks above ``after``, up to a number of samples, but at least one."""
        table = metadata.pushed
        query = sa.select(table.c.id, table.c.samples).where(table.c.id > after).order_by(table.c.id)
        with self._database.reading() as connection:
            chosen: list[int] = []
            samples = 0
            for number, count in connection.execute(query):
                if chosen and samples + count > most_samples:
                    break
                chosen.append(number)
                samples += count
            if not chosen:
                return ()
            rows = connection.execute(sa.select(table).where(table.c.id.between(chosen[0], chosen[-1])).order_by("id"))
            return tuple(
                PushedBlock(row.door, row.sender, instant(row.came_at_us), row.samples, row.payload, row.id)
                for row in rows
            )

    def release(self, until: int) -> None:
        """Deletes every block up to this id."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(metadata.pushed).where(metadata.pushed.c.id <= until))

    def waiting(self) -> BufferSize:
        """Size of the buffer."""
        table = metadata.pushed
        sums = (sa.func.coalesce(sa.func.sum(column), 0) for column in (table.c.samples, table.c.bytes))
        with self._database.reading() as connection:
            return BufferSize(*connection.execute(sa.select(sa.func.count(), *sums).select_from(table)).one())

    def count(self, dropped: Mapping[str, int]) -> None:
        """Adds to the counts of rejected samples."""
        table = metadata.pushed_left_out
        with self._database.writing() as connection:
            for reason, samples in dropped.items():
                statement = insert(connection, table).values(reason=reason, samples=samples)
                more = {"samples": table.c.samples + samples}
                connection.execute(statement.on_conflict_do_update(index_elements=["reason"], set_=more))

    def counted(self) -> dict[str, int]:
        """Rejected samples by reason."""
        table = metadata.pushed_left_out
        with self._database.reading() as connection:
            return {row.reason: row.samples for row in connection.execute(sa.select(table))}

    def close(self) -> None:
        """Releases every connection."""
        self._database.close()


class MemoryIngestBuffer:
    """The ingest buffer in memory. One process, any number of threads."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = Lock()
        self._blocks: list[PushedBlock] = []
        self._last = 0
        self._counted: dict[str, int] = {}

    def put(self, block: PushedBlock, most_bytes: int) -> bool:
        """Stores a block unless the buffer is full."""
        with self._lock:
            if sum(len(held.payload) for held in self._blocks) + len(block.payload) > most_bytes:
                return False
            self._last += 1
            self._blocks.append(replace(block, id=self._last))
        return True

    def take(self, after: int, most_samples: int) -> tuple[PushedBlock, ...]:
        """The oldest blocks above ``after``, up to a number of samples, but at least one."""
        chosen: list[PushedBlock] = []
        with self._lock:
            for block in self._blocks:
                if block.id <= after:
                    continue
                if chosen and sum(held.samples for held in chosen) + block.samples > most_samples:
                    break
                chosen.append(block)
        return tuple(chosen)

    def release(self, until: int) -> None:
        """Deletes every block up to this id."""
        with self._lock:
            self._blocks = [block for block in self._blocks if block.id > until]

    def waiting(self) -> BufferSize:
        """Size of the buffer."""
        with self._lock:
            held = list(self._blocks)
        return BufferSize(len(held), sum(block.samples for block in held), sum(len(block.payload) for block in held))

    def count(self, dropped: Mapping[str, int]) -> None:
        """Adds to the counts of rejected samples."""
        with self._lock:
            for reason, samples in dropped.items():
                self._counted[reason] = self._counted.get(reason, 0) + samples

    def counted(self) -> dict[str, int]:
        """Rejected samples by reason."""
        with self._lock:
            return dict(self._counted)

    def close(self) -> None:
        """No resources to release."""
