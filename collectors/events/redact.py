"""Redacts secrets, addresses of people and hosts, and prompts from log lines.

The error, figures, file and device names stay. Ambiguous text is removed: a line that shows too little costs
a check of the log, a line that shows too much cannot be recalled.
"""

from __future__ import annotations

import re

_NAMES = (  # fields that hold secrets
    r"(?:(?:api|access|secret|private|signing|encryption)[-_ ]?key|token(?!iz|s\b)|secret|passw(?:or)?d|credential"
    r"|authorization|cookie)"
)
_HEX = r"[0-9a-fA-F]{1,4}"
_TAIL = rf"(?:{_HEX}(?::{_HEX})*)?"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL), "[key]"),
    # prompts and completions: everything after the name, because nothing marks the end
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
    """Returns the redacted line, cut at ``MOST_CHARACTERS``: text beyond is not inspected."""
    line = line[:MOST_CHARACTERS]
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return line
