"""Block formats on the same hour: our codec, Parquet, Arrow, and one row per timestamp.

The hour is a busy one of the simulated day (``benchmarks.fleet_values``): 1,000 GPUs and 1,000 replicas, all columns.
A format stores all values of an entity kind. Entities, timestamps and names are not counted. Gaps are NaN or null;
only our format stores the reason. Reading loads one signal of 24 such hours into numpy with the library's own call.
Packing covers the whole hour. Both are CPU seconds on one core.

``value`` is bytes per value over both kinds. ``gpu`` and ``replica`` are bytes per value of one kind, reported with the
packing and reading rates in values/s. docs/adr/0009-blob-format.md has the conclusion.
"""

from __future__ import annotations

import io
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, print_progress, result
from benchmarks.fleet_values import Hour, fleet_day
from outrider.model import EntityKind
from store.tsdb.chunk_codec import Block, Section, decode, encode
from store.tsdb.series_dictionary import sections_of

BUSY_HOUR, READ_HOURS = 14, 24
READ = {EntityKind.GPU: "hw_accel_power_watts", EntityKind.REPLICA: "engine_generation_tokens_per_second"}


@dataclass(frozen=True, slots=True)
class Format:
    """One format for an hour of a kind: ``pack`` returns data of ``size`` bytes, ``read`` one signal of it."""

    pack: Callable[[Hour], Any]
    read: Callable[[Any, Hour, str], NDArray[Any]]
    size: Callable[[Any], int] = len


def _blocks(level: int) -> Format:
    """The store's own blocks, one section per signal."""

    def pack(hour: Hour) -> bytes:
        spans = sections_of(hour.keys).values()
        sections = [Section(hour.values[begin:end], hour.status[begin:end]) for _, begin, end in spans]
        return encode((hour.times * 1e6).astype(np.int64), sections, level=level)

    def read(packed: bytes, hour: Hour, signal: str) -> NDArray[Any]:
        return decode([Block(packed)], sections_of(hour.keys)[signal][0]).values

    return Format(pack, read)


def _floats(level: int, *, xor: bool, planes: bool) -> Format:
    """Raw float32, one zstd frame per signal, optionally with xor along time and byte planes."""

    def pack(hour: Hour) -> dict[str, bytes]:
        compressor, results = zstandard.ZstdCompressor(level=level), {}
        for name, (_, begin, end) in sections_of(hour.keys).items():
            bits = np.nan_to_num(hour.values[begin:end]).view(np.uint32)
            if xor:
                bits = np.concatenate((bits[..., :1], bits[..., 1:] ^ bits[..., :-1]), axis=-1)
            cells = bits.view(np.uint8).reshape(-1, 4)
            results[name] = compressor.compress((cells.T if planes else cells).tobytes())
        return results

    def read(packed: dict[str, bytes], hour: Hour, signal: str) -> NDArray[Any]:
        raw = np.frombuffer(zstandard.ZstdDecompressor().decompress(packed[signal]), dtype=np.uint8)
        if planes:
            raw = np.ascontiguousarray(raw.reshape(4, -1).T)
        bits = raw.view(np.uint32).reshape(-1, len(hour.entities), hour.times.size)
        return (np.bitwise_xor.accumulate(bits, axis=-1) if xor else bits).view(np.float32)

    return Format(pack, read, lambda packed: sum(map(len, packed.values())))


def _table(hour: Hour, *, by_time: bool) -> pa.Table:
    """One row per entity and timestamp, sorted by entity or by timestamp; NaN as null."""
    flat = (np.ascontiguousarray(cells.T if by_time else cells).ravel() for cells in hour.values)
    return pa.table({str(key): pa.array(cells, from_pandas=True) for key, cells in zip(hour.keys, flat, strict=True)})


def _parquet(*, split: bool, by_time: bool = False) -> Format:
    """Parquet from pyarrow, zstd level 3."""

    def pack(hour: Hour) -> bytes:
        table, out = _table(hour, by_time=by_time), io.BytesIO()
        encoding = dict.fromkeys(table.column_names, "BYTE_STREAM_SPLIT") if split else None
        pq.write_table(
            table, out, compression="zstd", compression_level=3, use_dictionary=not split,
            column_encoding=encoding, row_group_size=table.num_rows, write_statistics=False,
        )  # fmt: skip
        return out.getvalue()

    def read(packed: bytes, _hour: Hour, signal: str) -> NDArray[Any]:
        return pq.read_table(io.BytesIO(packed), columns=[signal], use_threads=False).column(0).to_numpy()

    return Format(pack, read)


def _arrow(compression: str) -> Format:
    """Arrow file format with compressed buffers."""

    def pack(hour: Hour) -> bytes:
        table, out = _table(hour, by_time=False), io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.ipc.new_file(out, table.schema, options=options) as writer:
            writer.write_table(table)
        return out.getvalue()

    def read(packed: bytes, hour: Hour, signal: str) -> NDArray[Any]:
        options = pa.ipc.IpcReadOptions(included_fields=[_column_index(hour, signal)], use_threads=False)
        return pa.ipc.open_file(io.BytesIO(packed), options=options).read_all().column(0).to_numpy()

    return Format(pack, read)


def _rows() -> Format:
    """A wide sqlite3 table with one row per entity and timestamp, in time order."""

    def pack(hour: Hour) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:")
        columns = ", ".join(f"c{column} REAL" for column in range(len(hour.keys)))
        database.execute(f"CREATE TABLE cell (at INTEGER, entity INTEGER, {columns}, PRIMARY KEY (at, entity))")
        statement = f"INSERT INTO cell VALUES ({', '.join('?' for _ in range(len(hour.keys) + 2))})"
        for column, at in enumerate(hour.times.tolist()):
            rows = hour.values[:, :, column].T.astype(np.float64).tolist()
            database.executemany(statement, [(int(at), entity, *row) for entity, row in enumerate(rows)])
        database.commit()
        return database

    def read(packed: sqlite3.Connection, hour: Hour, signal: str) -> NDArray[Any]:
        query = f"SELECT c{_column_index(hour, signal)} FROM cell ORDER BY entity, at"
        return np.array(packed.execute(query).fetchall(), dtype=np.float32)

    return Format(pack, read, lambda packed: len(packed.serialize()))


def _column_index(hour: Hour, signal: str) -> int:
    return [str(key) for key in hour.keys].index(signal)


FORMATS: Mapping[str, Format] = {
    "ours": _blocks(3),
    "ours, zstd 1": _blocks(1),
    "ours, zstd 6": _blocks(6),
    "float32, xor, planes, zstd 1": _floats(1, xor=True, planes=True),
    "float32, xor, planes, zstd 3": _floats(3, xor=True, planes=True),
    "float32, xor, planes, zstd 6": _floats(6, xor=True, planes=True),
    "float32, planes, zstd 3": _floats(3, xor=False, planes=True),
    "float32, xor, zstd 3": _floats(3, xor=True, planes=False),
    "float32, zstd 3": _floats(3, xor=False, planes=False),
    "Parquet by entity, byte stream split": _parquet(split=True),
    "Parquet by entity, dictionary": _parquet(split=False),
    "Parquet by instant, byte stream split": _parquet(split=True, by_time=True),
    "Parquet by instant, dictionary": _parquet(split=False, by_time=True),
    "Arrow file, zstd": _arrow("zstd"),
    "Arrow file, lz4": _arrow("lz4"),
    "sqlite3, a row per entity and instant": _rows(),
}
LIBRARY = ("Parquet", "Arrow")


def _busy(times: int, work: Callable[[], object]) -> float:
    """Returns the CPU seconds of the fastest of several runs."""
    best = float("inf")
    for _ in range(times):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def _measured(fmt: Format, hours: Mapping[EntityKind, Hour]) -> dict[str, float]:
    """Returns bytes per value of each kind and of both, and values/s for packing and reading."""
    size, cells, packing, reading, wanted = 0, 0, 0.0, 0.0, 0
    results: dict[str, float] = {}
    for kind, hour in hours.items():
        output: list[Any] = []
        packing += _busy(1, lambda hour=hour, output=output: output.append(fmt.pack(hour)))
        packed, signal = output[0], READ[kind]
        results[kind.value] = fmt.size(packed) / hour.present
        size, cells = size + fmt.size(packed), cells + hour.present
        numbers = hour.values[_column_index(hour, signal)]
        decoded = fmt.read(packed, hour, signal).astype(np.float32).ravel()
        np.testing.assert_array_equal(np.sort(np.nan_to_num(decoded)), np.sort(np.nan_to_num(numbers).ravel()))
        read = partial(fmt.read, packed, hour, signal)
        reading += _busy(3, lambda read=read: [read() for _ in range(READ_HOURS)])
        wanted += READ_HOURS * numbers.size
    return results | {"bytes": size / cells, "pack_per_second": cells / packing, "read_per_second": wanted / reading}


def run() -> list[Result]:
    """Returns bytes per value of each format; the peer is the smallest library format."""
    pa.set_cpu_count(1)
    day = fleet_day()
    hours = {kind: day.hour(kind, BUSY_HOUR) for kind in READ}
    results = {}
    for name, fmt in FORMATS.items():
        print_progress(name)
        results[name] = _measured(fmt, hours)
    best = min((name for name in results if name.startswith(LIBRARY)), key=lambda name: results[name]["bytes"])
    lines = []
    for name, line in results.items():
        size = line.pop("bytes")
        speeds = {key: float(f"{value:.3g}") for key, value in line.items()}
        if name == "ours":
            rival = results[best]["bytes"]
            ours = result("blob_formats", size, "bytes/value", None, None, best, rival, rival / size, **speeds)
            mine = size
            lines.append(ours)
        else:
            lines.append(result(f"blob: {name}", size, "bytes/value", None, None, "ours", mine, mine / size, **speeds))
    return lines


if __name__ == "__main__":
    main(run)
