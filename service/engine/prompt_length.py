"""Mean length of the prompts of each service, recently and usually, from its counters of tokens and requests."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from outrider import windows
from outrider.model import EntityKind, EntityRef, Floats, signal_keys
from remediation.decide.service_load import PromptLength
from service.engine.detect import RecentValues

KEYS = signal_keys("svc_prompt_tokens_total", "svc_requests_total")
SPAN = timedelta(minutes=30)
_LEAST_MINUTES = 3  # with requests, for a usual length
_USUAL_QUANTILE = 0.25  # of the minutes: the usual length also while most of them had long prompts


def lengths(values: RecentValues) -> dict[EntityRef, PromptLength]:
    """Returns the length of the last minute and the usual one of each service that has both."""
    window = values.window(EntityKind.SERVICE, KEYS, SPAN)
    if not window.times.size:
        return {}
    tokens, requests = (np.nan_to_num(windows.believed(window, key)) for key in KEYS)
    minute = ((window.times[-1] - window.times) // 60.0).astype(int)
    result = {}
    for row, service in enumerate(window.entities):
        mean = _mean_by_minute(tokens[row], requests[row], minute)
        before = mean[1:][np.isfinite(mean[1:])]
        if np.isfinite(mean[0]) and before.size >= _LEAST_MINUTES:
            usual = float(np.quantile(before, _USUAL_QUANTILE, method="lower"))
            result[service] = PromptLength(float(mean[0]), usual)
    return result


def _mean_by_minute(tokens: Floats, requests: Floats, minute: np.ndarray) -> Floats:
    """Tokens per request in each minute, newest first; NaN without requests or tokens."""
    summed, count = (np.bincount(minute, part, minute[0] + 1) for part in (tokens, requests))
    known = (count > 0) & (summed > 0)
    return np.asarray(np.divide(summed, count, out=np.full(count.size, np.nan), where=known), dtype=np.float64)
