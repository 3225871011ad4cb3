from __future__ import annotations

import pytest

from outrider.vocabulary.reliability import Bin, calibration_error, curve


def test_each_bin_has_mean_confidence_and_accuracy():
    bins = curve([0.1, 0.55, 0.58, 0.95, 1.0], [False, True, False, True, True], edges=(0.0, 0.5, 0.9, 1.0))
    assert bins == (
        Bin(0.0, 0.5, 1, 0.1, 0.0),
        Bin(0.5, 0.9, 2, pytest.approx(0.565), 0.5),
        Bin(0.9, 1.0, 2, pytest.approx(0.975), 1.0),
    )
    assert calibration_error(bins) == pytest.approx((0.1 + 2 * 0.065 + 2 * 0.025) / 5)


def test_a_confidence_on_an_edge_belongs_to_the_upper_bin():
    assert curve([0.5], [True], edges=(0.0, 0.5, 1.0))[0].low == 0.5


def test_no_answer_has_no_curve_and_no_error():
    assert curve([], []) == ()
    assert calibration_error(()) is None


def test_confidences_outside_0_to_1_are_rejected():
    with pytest.raises(ValueError, match=r"1\.2 lies outside"):
        curve([1.2], [True])
    with pytest.raises(ValueError, match="nan lies outside"):
        curve([float("nan")], [True])
    with pytest.raises(ValueError, match="rise"):
        curve([0.5], [True], edges=(0.0, 0.0, 1.0))
    with pytest.raises(ValueError, match="zip"):
        curve([0.5], [True, False])
