"""Counts what a model service answers, on one Prometheus page.

``ModelService`` is the way in: ``with service.request(...) as r`` or ``@service.watch(...)``. Nothing in
here raises into the code that is watched, and nothing depends on more than prometheus-client.
"""

from outrider_sdk.request import Request, current
from outrider_sdk.service import ModelService
from outrider_sdk.validity import Reason, check

__all__ = ["ModelService", "Reason", "Request", "check", "current"]
__version__ = "0.1.0"
