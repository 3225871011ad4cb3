"""Choice of the tier for each part of a read."""

from __future__ import annotations

import pytest

from store.schema.metadata import RAW
from store.tsdb.tiers import DAY, HOUR, MINUTE, ONE_HOUR, TEN_MINUTES, Segment, TierStatus, segments

T = 20_000 * DAY
SECOND = MINUTE // 60


def segments_in_hours(status: TierStatus, start: int, end: int, step: int) -> list[tuple[str, float, float]]:
    """(tier, start, end) with hours since T."""
    return [
        (segment.tier, (segment.start - T) / HOUR, (segment.end - T) / HOUR)
        for segment in segments(status, T + start, T + end, step)
    ]


@pytest.mark.parametrize(
    ("step", "tier"),
    [
        (15 * SECOND, RAW),
        (MINUTE, RAW),
        (10 * MINUTE, TEN_MINUTES),
        (15 * MINUTE, RAW),
        (30 * MINUTE, TEN_MINUTES),
        (HOUR, ONE_HOUR),
        (DAY, ONE_HOUR),
        (90 * MINUTE, TEN_MINUTES),
    ],
)
def test_the_coarsest_tier_whose_spacing_divides_the_step_is_read(step: int, tier: str) -> None:
    assert segments_in_hours(TierStatus(), 0, DAY, step) == [(tier, 0, 24)]


def test_a_grid_not_aligned_with_the_cells_reads_a_finer_tier() -> None:
    assert segments_in_hours(TierStatus(), MINUTE, HOUR, HOUR) == [(RAW, 1 / 60, 1)]
    assert segments_in_hours(TierStatus(), 10 * MINUTE, 2 * HOUR, HOUR) == [(TEN_MINUTES, 1 / 6, 2)]


def test_the_end_of_a_span_is_read_from_finer_tiers() -> None:
    assert segments_in_hours(TierStatus(), 0, 2 * HOUR + 25 * MINUTE, HOUR) == [
        (ONE_HOUR, 0, 2),
        (TEN_MINUTES, 2, 2 + 20 / 60),
        (RAW, 2 + 20 / 60, 2 + 25 / 60),
    ]


def test_hours_with_pending_roll_ups_are_read_from_the_finer_tier() -> None:
    status = TierStatus(due_ten_minutes=[T + 3 * HOUR], due_hours=[T + 1 * HOUR])
    assert segments_in_hours(status, 0, 4 * HOUR, HOUR) == [
        (ONE_HOUR, 0, 1),
        (TEN_MINUTES, 1, 2),
        (ONE_HOUR, 2, 3),
        (RAW, 3, 4),
    ]
    assert segments_in_hours(status, 0, 4 * HOUR, 10 * MINUTE) == [(TEN_MINUTES, 0, 3), (RAW, 3, 4)]


def test_a_fine_step_over_old_hours_reads_the_tiers_that_remain() -> None:
    status = TierStatus(kept_from={RAW: T + 20 * HOUR, TEN_MINUTES: T + 10 * HOUR})
    assert segments_in_hours(status, 0, DAY, MINUTE) == [(ONE_HOUR, 0, 10), (TEN_MINUTES, 10, 20), (RAW, 20, 24)]
    assert segments_in_hours(status, 0, DAY, 10 * MINUTE) == [(ONE_HOUR, 0, 10), (TEN_MINUTES, 10, 24)]
    assert segments_in_hours(status, 9 * HOUR + MINUTE, 10 * HOUR + 5 * MINUTE, MINUTE) == [
        (ONE_HOUR, 9 + 1 / 60, 10),
        (TEN_MINUTES, 10, 10 + 5 / 60),
    ]


def test_late_values_of_hours_without_raw_values_are_not_read_before_the_roll_up() -> None:
    status = TierStatus(due_ten_minutes=[T], due_hours=[T + HOUR], kept_from={RAW: T + 20 * HOUR})
    assert segments_in_hours(status, 0, 2 * HOUR, 10 * MINUTE) == [(TEN_MINUTES, 0, 2)]
    assert segments_in_hours(status, 0, 2 * HOUR, HOUR) == [(ONE_HOUR, 0, 1), (TEN_MINUTES, 1, 2)]


def test_history_written_late_is_read_raw_until_it_is_rolled_up() -> None:
    status = TierStatus(due_ten_minutes=[T, T + HOUR], kept_from={RAW: T + 20 * HOUR}, first=[T + HOUR])
    assert segments_in_hours(status, 0, 2 * HOUR, 10 * MINUTE) == [(TEN_MINUTES, 0, 1), (RAW, 1, 2)]
    assert segments_in_hours(status, 0, 2 * HOUR, MINUTE) == [(TEN_MINUTES, 0, 1), (RAW, 1, 2)]


def test_an_empty_span_has_no_segments() -> None:
    assert segments(TierStatus(), T, T, MINUTE) == []
    assert segments(TierStatus(), T, T + 1, MINUTE) == [Segment(RAW, T, T + 1)]
