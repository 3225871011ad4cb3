"""Valid load tests of the store, for queries by model."""

from __future__ import annotations

from datetime import datetime

from outrider import log
from outrider.errors import StoreUnavailableError
from outrider.model import Calibration
from planner.performance import measured
from service.config.settings import Settings
from service.wiring import stores as wiring_stores
from store import migrate

_log = log.get("capacity")


def of_model(settings: Settings, name: str, now: datetime, bits: float = 16.0) -> list[Calibration]:
    """Returns the load tests of a model with ``bits`` per weight that are valid at ``now``, newest first.

    Logs a warning and returns none while the store is unavailable.
    """
    try:
        if None in migrate.revision(settings.store.url).values():
            return []  # no store yet; do not create one
        with wiring_stores.state_reader(settings) as state:
            tests = state.load_tests()
    except StoreUnavailableError as error:
        _log.warning("no_load_tests", error=error.message, hint=error.hint)
        return []
    valid = [test for test in tests if test.valid_until is not None and now < test.valid_until]
    return measured.matching_tests(valid, name, bits)
