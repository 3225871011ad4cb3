"""Detects the adapter of a page by the names of its metrics. Pure."""

from __future__ import annotations

import re

from collectors.mapping.signatures import adapter_of_page

_NAME = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?=[{ \t])", re.MULTILINE)


def detect_adapter(page: str) -> str | None:
    """The adapter of a page; None if no adapter reads it, or several read it equally well."""
    return adapter_of_page(set(_NAME.findall(page)))
