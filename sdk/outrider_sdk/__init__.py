"""Request metrics of a model service on one exposition page.

The entry point is ``ModelService``: ``with service.request(...) as r`` or ``@service.watch(...)``. It never raises into
the instrumented code, and depends only on prometheus-client.
"""

from outrider_sdk.request import Request, current
from outrider_sdk.service import ModelService
from outrider_sdk.validity import Reason, check

__all__ = ["ModelService", "Reason", "Request", "check", "current"]
__version__ = "0.1.0"
