"""How the libraries of an extra come: from the checkout, as Outrider itself; no registry has a package of it."""

from __future__ import annotations


def how(extra: str) -> str:
    """What to type for an extra of ``pyproject.toml``."""
    return f"in the checkout of Outrider: pip install '.[{extra}]', or uv sync --extra {extra}"
