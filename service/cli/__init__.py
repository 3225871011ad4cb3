"""The command line. Names and JSON keys are a contract: people script against them."""

from __future__ import annotations

from service.cli.main import main

__all__ = ["main"]
