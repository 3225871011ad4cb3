"""Names and labels that Kubernetes takes, of services and nodes called otherwise."""

from __future__ import annotations

import hashlib
import re

LABEL = "outrider.io/warm"
PART_OF = "app.kubernetes.io/part-of"
_LENGTH = 45  # so that "-pre-pull", a digest and the suffixes of pods still fit into 63


def name_of(given: str, most: int = _LENGTH) -> str:
    """A name as names of objects and values of labels take it; what had to be changed ends in a digest.

    Both allow at most 63 characters of a-z, 0-9 and '-' (RFC 1123); models are served under names such as
    Org/Qwen_2.5. ``most`` bounds what is kept of the name; the digest adds seven.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")[:most].strip("-")
    if plain == given:
        return given
    return f"{plain}-{short(given)}" if plain else f"service-{short(given)}"


def short(text: str, length: int = 6) -> str:
    """The first digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]
