"""Request metrics of a model service on one exposition page: ``ModelService``.

Must not raise into the instrumented code or depend on a package other than prometheus-client.
"""

from outrider_sdk.request import Request, current
from outrider_sdk.service import ModelService
from outrider_sdk.validity import Reason, check

__all__ = ["ModelService", "Reason", "Request", "check", "current"]
__version__ = "0.1.0"
