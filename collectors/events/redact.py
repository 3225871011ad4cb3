"""Takes out of a log line what must not leave the cluster: secrets, addresses of people and machines, prompts.

What stays is what an engineer needs: the error, the figures, file and device names. Whatever could be either
goes: a line that says too little costs a look at the log, one that says too much cannot be taken back.
"""

from __future__ import annotations

import re

_NAMES = (  # of fields that hold secrets
    r"(?:(?:api|access|secret|private|signing|encryption)[-_ ]?key|token(?!iz|s\b)|secret|passw(?:or)?d|credential"
    r"|authorization|cookie)"
)
_HEX = r"[0-9a-fA-F]{1,4}"
_TAIL = rf"(?:{_HEX}(?::{_HEX})*)?"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL), "[key]"),
    # what users wrote or were answered: everything behind it, because nothing marks where it ends
    (
        re.compile(
            r"(?i)[\"']?\b(prompt|prompts|prompt_token_ids|inputs?_text|messages|completion|generated_text|input_ids)\b"
            r"[\"']?\s*[:=]\s*[\[{(\"'`].*",
            re.DOTALL,
        ),
        r"\1=[prompt]",
    ),
    (re.compile(r"\bReceived request \S+: .*", re.DOTALL), "Received request [prompt]"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{6,}"), r"\1 [secret]"),
    (re.compile(rf"(?i)([\w.-]*{_NAMES}[\w.-]*)([\"']?\s*[:=]\s*|\s+(?=[^\s=:]*\d)(?=\S{{16,}}))"
                r"(?!\s*\[secret\])(\"[^\"]*\"|'[^']*'|[^\s,;)}\]]+)"), r"\1\2[secret]"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), "[secret]"),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}|"
                r"\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}|\bxox[abprs]-[\w-]{10,}|\bAKIA[0-9A-Z]{12,}|"
                r"\bnvapi-[\w-]{16,}|\bLTAI[A-Za-z0-9]{12,}"), "[secret]"),
    (re.compile(r"(?<=://)[^/\s@]+(?=@)"), "[secret]"),
    (re.compile(r"(?<=[?&])([\w.-]+)=[^&\s'\"#]+"), r"\1=[secret]"),
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "[email]"),
    (re.compile(r"(?<![\d.])(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\d.]*\d)"), "[ip]"),
    (re.compile(rf"(?<![\w:])(?:{_HEX}:){{3,7}}:?{_TAIL}(?![\w:.])"), "[ip]"),
    (re.compile(rf"(?<![\w:])(?:{_HEX}:){{1,6}}:{_TAIL}(?![\w:])"), "[ip]"),
    (re.compile(rf"(?<![\w:])::(?:ffff:)?(?:{_HEX}:)*{_HEX}(?![\w:])"), "[ip]"),
)  # fmt: skip
MOST_CHARACTERS = 8_000


def redacted(line: str) -> str:
    """The line without what must not leave. Cut at ``MOST_CHARACTERS``: behind them nothing was looked at."""
    line = line[:MOST_CHARACTERS]
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return line
