"""Makes external text storable as a name or key: replaces invalid characters, truncates long text.

PostgreSQL accepts neither NUL in a text nor an index entry beyond a third of a page; no driver encodes lone surrogates.
Pods and senders may produce all three. A changed text ends with ``~`` and a digest of the original, so that different
texts stay different.
"""

from __future__ import annotations

import hashlib
from typing import Final

MOST_NAME_BYTES: Final = 600
MOST_KEY_BYTES: Final = 1_300  # an entity's key with truncated names: cluster, kind, namespace and name
_SURE_CHARACTERS = 150  # of up to four bytes each
_DIGEST = 12


def is_storable(text: str) -> bool:
    """True for an ordinary name, tested in a fraction of a microsecond; False requires a full check."""
    return len(text) <= _SURE_CHARACTERS and text.isprintable()


def clean(text: str) -> str:
    """The text without NUL and lone surrogates, of any length."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\u2400").encode("utf-8", "replace").decode()


def fitted(text: str, most_bytes: int = MOST_KEY_BYTES) -> str:
    """The text as a key of at most so many bytes of UTF-8. A valid text stays unchanged."""
    cleaned = clean(text)
    packed = cleaned.encode()
    if cleaned == text and len(packed) <= most_bytes:
        return text
    mark = "~" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return packed[: most_bytes - len(mark)].decode(errors="ignore") + mark
