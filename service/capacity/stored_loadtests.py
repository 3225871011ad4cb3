"""Load tests of the store that still count, for answers that name a model and no service."""

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
    """Those of a model with weights of so many bits that are valid at ``now``, the newest first.

    None, with a warning, while the store is away.
    """
    try:
        if None in migrate.revision(settings.store.url).values():
            return []  # no store yet, and a question of arithmetic makes none
        with wiring_stores.state_reader(settings) as state:
            kept = state.load_tests()
    except StoreUnavailableError as error:
        _log.warning("no_load_tests", error=error.message, hint=error.hint)
        return []
    valid = [one for one in kept if one.valid_until is not None and now < one.valid_until]
    return measured.matching_tests(valid, name, bits)
