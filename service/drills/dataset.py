"""The labeled data set: signals and events of every scenario, with the ground truth.

One folder per scenario: a Parquet file per entity kind (one row per timestamp and entity, one column per signal),
``events.jsonl``, and ``truth.json``, which a detector must not read. The data set also has ``quiet``, a run without
faults to learn from, an index, the scoring rules and the license.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata, resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from outrider.documents import serialization
from outrider.errors import UsageError
from service.drills.recording import Matrix, RecordedRun
from simulator.scenarios import Scenario
from simulator.scoring.run import InjectedFault, Run

QUIET = "quiet"


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Creates the folder; empties it again if filling fails. Raises UsageError if it is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty", hint="name a new folder: data sets are not merged")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        raise


def write_index(folder: Path, chosen: Sequence[Scenario], runs: Sequence[Run], seed: int) -> dict[str, Any]:
    """Writes index and README of a data set, after its scenarios. Returns its size."""
    index = [_entry(scenario, run) for scenario, run in zip(chosen, runs, strict=True)]
    _json(folder / "index.json", {"seed": seed, "quiet": QUIET, "scenarios": index})
    text = resources.files("service.drills").joinpath("dataset.md").read_text(encoding="utf-8")
    filled = Template(text).substitute(version=metadata.version("outrider"), seed=seed, scenarios=len(index))
    (folder / "README.md").write_text(filled, encoding="utf-8")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {"dir": str(folder), "scenarios": len(index), "seed": seed, "bytes": size}


def write_scenario(folder: Path, run: Run, recorded: RecordedRun) -> None:
    """Writes the files of one scenario, in a folder of its name."""
    scenario = folder / run.scenario
    _write_signals(scenario, recorded)
    _json(scenario / "truth.json", _truth(run))


def write_quiet(folder: Path, recorded: RecordedRun) -> None:
    """Writes the run without faults."""
    _write_signals(folder / QUIET, recorded)


def _write_signals(folder: Path, recorded: RecordedRun) -> None:
    folder.mkdir()
    for kind, matrix in recorded.matrices.items():
        pq.write_table(_table(matrix), folder / f"{kind.value}.parquet", compression="zstd")
    lines = [json.dumps(serialization.event(event), ensure_ascii=False) for event in recorded.events]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _table(matrix: Matrix) -> pa.Table:
    instants, entities = len(matrix.times), len(matrix.entities)
    times = np.repeat((matrix.times * 1e3).astype(np.int64), entities)
    names = np.tile(np.array([entity.key for entity in matrix.entities], dtype=object), instants)
    has_values = ~np.isnan(matrix.values).all(axis=2).ravel()  # an absent entity has no row
    columns = {
        "at": pa.array(times[has_values], pa.timestamp("ms", tz="UTC")),
        "entity": pa.array(names[has_values]).dictionary_encode(),
    }
    for column, key in enumerate(matrix.keys):
        values = matrix.values[:, :, column].ravel()[has_values]
        columns[str(key)] = pa.array(values.astype(np.float32), mask=np.isnan(values))
    return pa.table(columns)


def _truth(run: Run) -> dict[str, Any]:
    return {
        "scenario": run.scenario,
        "negative": run.negative,
        "start": serialization.instant(run.start),
        "end": serialization.instant(run.end),
        "targets": run.targets,
        "faults": [_fault(injected) for injected in run.injected],
    }


def _fault(injected: InjectedFault) -> dict[str, Any]:
    return {
        "fault": injected.fault,
        "entity": serialization.entity(injected.entity),
        "key": injected.entity.key,
        "start": serialization.instant(injected.start),
        "end": serialization.instant(injected.end),
        "path": sorted(entity.key for entity in injected.path),
    }


def _entry(scenario: Scenario, run: Run) -> dict[str, Any]:
    return {
        "id": scenario.id,
        "faults": [planned.fault for planned in scenario.faults],
        "negative": scenario.negative,
        "storm": run.storm,
        "load": scenario.load,
        "start": serialization.instant(run.start),
        "end": serialization.instant(run.end),
    }


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
