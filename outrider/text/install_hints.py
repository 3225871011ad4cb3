"""Install hints for extras. They are installed from the checkout, like Outrider itself; no registry has a package."""

from __future__ import annotations


def how(extra: str) -> str:
    """The install command for an extra of ``pyproject.toml``."""
    return f"in the checkout of Outrider: pip install '.[{extra}]', or uv sync --extra {extra}"
