"""Coverage-guided fuzzing of the parser: ``python tests/fuzz/exposition.py -max_total_time=600 [CORPUS]``.

For any bytes, the parser returns a page or a CollectError, and its cached path gives the same result as its full path.
Pages written by the grammar below must be read as by prometheus_client.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["collectors"]):
    from collectors.exposition.parser import Page, Parser
from prometheus_client.parser import text_string_to_metric_families

from outrider.errors import CollectError

_VALUES = ["0", "1.5", "-2e9", "NaN", "+Inf", "-Inf", "1_0", "0x1", "1e400"]
_LETTERS = ["a", "le", "}", "{", ",", "=", " ", "#", "\\\\", "\\n", '\\"', "é", "\t"]  # as they stand on a page


def rows(page: Page) -> Counter[Any]:
    """Returns the samples of a page in a comparable form."""
    counts: Counter[Any] = Counter()
    for series, value, stamp in zip(page.series, page.values, page.timestamps, strict=True):
        renamed = page.types.get(series.name) == "counter" and not series.name.endswith("_total")
        number, at = float(value), float(stamp)
        key = series.name + "_total" * renamed, tuple(sorted(series.labels.items()))
        counts[(*key, "NaN" if math.isnan(number) else number, None if math.isnan(at) else at)] += 1
    return counts


def outcome(parser: Parser, body: bytes, source: str = "") -> Any:
    """Returns the rows, or the reason for none."""
    try:
        return rows(parser.parse(body, source=source))
    except CollectError as error:
        return error.reason, error.message


def written(data: atheris.FuzzedDataProvider) -> str:
    """Returns a page by the rules of the format; some values may not be numbers."""
    lines = []
    for _ in range(data.ConsumeIntInRange(0, 6)):
        labels = {
            f"l{number}": "".join(data.PickValueInList(_LETTERS) for _ in range(data.ConsumeIntInRange(0, 4)))
            for number in range(data.ConsumeIntInRange(0, 3))
        }
        name = "m" + str(data.ConsumeIntInRange(0, 3))
        inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
        stamp = f" {data.ConsumeIntInRange(0, 10**13)}" if data.ConsumeBool() else ""
        lines.append(f"{name}{{{inside}}} {data.PickValueInList(_VALUES)}{stamp}\n" if labels else f"{name} 1{stamp}\n")
    return "".join(lines)


def one_input(raw: bytes) -> None:
    """Checks one input of atheris."""
    data = atheris.FuzzedDataProvider(raw)
    if data.ConsumeBool():
        body, other = data.ConsumeBytes(200), data.ConsumeBytes(200)
    else:
        text = written(data)
        body, other = text.encode(), written(data).encode()
        ours = outcome(Parser(), body)
        if isinstance(ours, Counter):
            theirs = Counter(
                (
                    one.name,
                    tuple(sorted(one.labels.items())),
                    "NaN" if math.isnan(one.value) else one.value,
                    one.timestamp,
                )
                for family in text_string_to_metric_families(text)
                for one in family.samples
            )
            assert ours == theirs, (text, ours, theirs)
        else:
            assert any(f" {value}" in text for value in ("1_0", "0x1")), (text, ours)
    warm = Parser()
    for _ in range(3):
        assert outcome(warm, body, "s") == outcome(Parser(), body)
    assert outcome(warm, other, "s") == outcome(Parser(), other)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
