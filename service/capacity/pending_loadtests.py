"""Files of load tests not yet in the store: written before the store is called, removed once it has the test."""

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
    """Returns the folder, beside the store's other files."""
    return tokens.folder_of(settings) / "load-tests"


def store(settings: Settings, test: LoadTestRecord, calibration: Calibration) -> None:
    """Stores a test; a file keeps it if the store is unavailable.

    A test takes minutes, so the file is written first. Raises StoreUnavailableError with its path and the import
    command.
    """
    path = _write(settings, test)
    try:
        with wiring_stores.stores(settings) as (state, _):
            state.save_load_test(calibration)
    except StoreError as error:
        speed = f"batch {calibration.batch:g} at {calibration.tokens_per_second_per_sequence:.4g} tokens/s per sequence"
        raise StoreUnavailableError(
            f"{calibration.service.name} was measured ({speed}), but not stored: {error.message}",
            hint=f"the test is in {path}: once the store is available, run outrider capacity calibrate --import {path}",
        ) from error
    path.unlink(missing_ok=True)


def of_file(path: Path) -> LoadTestRecord | None:
    """Reads the test of a file; None for a file of another program. Raises UsageError."""
    return loadtest_record.read(input_files.text_of(path, "give the file that the load tester wrote"), str(path))


def _write(settings: Settings, test: LoadTestRecord) -> Path:
    """Writes the file, in the folder for temporary files if the store's disk is not writable."""
    safe_name = re.sub(r"[^A-Za-z0-9._-]+", "-", test.service).strip("-.")[:60] or "service"
    name = f"{safe_name}-{test.measured_at:%Y%m%dT%H%M%S%fZ}.json"
    text, path = loadtest_record.text(test), folder_of(settings) / name
    try:
        input_files.write(path, text)
    except UsageError as error:
        _log.warning("load_test_kept_elsewhere", error=error.message)
    else:
        return path.resolve()
    fallback = Path(tempfile.gettempdir()) / f"outrider-{name}"
    input_files.write(fallback, text)
    return fallback
