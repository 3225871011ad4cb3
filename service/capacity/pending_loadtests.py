"""Files of load tests that wait for the store: written before it is asked, removed once it has the test."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from outrider import log
from outrider.errors import StoreError, StoreUnavailableError, UsageError
from outrider.model import Calibration
from planner.performance import loadtest_record
from planner.performance.loadtest_record import LoadTestRecord
from service.config import input_files, tokens
from service.config.settings import Settings
from service.wiring import stores as wiring_stores

_log = log.get("capacity")


def folder_of(settings: Settings) -> Path:
    """Where they lie: beside the store's other files."""
    return tokens.folder_of(settings) / "load-tests"


def store(settings: Settings, test: LoadTestRecord, found: Calibration) -> None:
    """Put a test into the store, by way of a file that stays where the store does not take it.

    A test takes minutes and a store may go meanwhile, or hang: whatever ends this, the file is there. Raises
    StoreUnavailableError that names it and says how it is imported.
    """
    path = _written(settings, test)
    try:
        with wiring_stores.stores(settings) as (state, _):
            state.save_load_test(found)
    except StoreError as error:
        speed = f"{found.batch:g} at once at {found.tokens_per_second_per_sequence:.4g} tokens/s each"
        raise StoreUnavailableError(
            f"{found.service.name} was measured ({speed}), but the store did not take it: {error.message}",
            hint=f"the test is kept in {path}: outrider capacity calibrate --import {path} once the store is back",
        ) from error
    path.unlink(missing_ok=True)


def of_file(path: Path) -> LoadTestRecord | None:
    """The test that a file keeps, None for a file of another program. Raises UsageError."""
    return loadtest_record.read(input_files.text_of(path, "give the file that the load tester wrote"), str(path))


def _written(settings: Settings, test: LoadTestRecord) -> Path:
    """The file, in the folder for temporary files where the disk of the store takes nothing."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", test.service).strip("-.")[:60] or "service"
    name = f"{plain}-{test.measured_at:%Y%m%dT%H%M%S%fZ}.json"
    whole, first = loadtest_record.text(test), folder_of(settings) / name
    try:
        input_files.write(first, whole)
    except UsageError as error:
        _log.warning("load_test_kept_elsewhere", error=error.message)
    else:
        return first.resolve()
    second = Path(tempfile.gettempdir()) / f"outrider-{name}"
    input_files.write(second, whole)
    return second
