from __future__ import annotations

import json
import math

import numpy as np
import pytest

from outrider.errors import UsageError
from service.evaluation import detection, events, nab, recordings, vus

STEP = 300.0


def flags(size, *spans):
    result = np.zeros(size, dtype=bool)
    for first, last in spans:
        result[first : last + 1] = True
    return result


def counted(points, labels, step=STEP):
    return events.count(step * np.arange(points.size), points, labels, step)


def test_points_within_half_an_hour_are_one_alarm():
    times = STEP * np.arange(100)
    assert len(events.alarms(times, flags(100, (10, 10), (16, 16)))) == 1
    assert len(events.alarms(times, flags(100, (10, 10), (17, 17)))) == 2


def test_an_alarm_counts_again_every_four_hours():
    times = STEP * np.arange(400)
    assert len(events.alarms(times, flags(400, (0, 47)))) == 1
    assert len(events.alarms(times, flags(400, (0, 48)))) == 2
    alarms = events.alarms(times, flags(400, (0, 144)))
    assert alarms[:, 0].tolist() == [0.0, 14400.0, 28800.0, 43200.0]


def test_events_are_extended_by_a_quarter_of_an_hour():
    labels = flags(100, (20, 30))
    late = counted(flags(100, (33, 33)), labels)
    assert (late.recalled, late.true_alarms, late.delays) == (1, 1, (13 * STEP,))
    too_late = counted(flags(100, (34, 34)), labels)
    assert (too_late.recalled, too_late.true_alarms) == (0, 0)


def test_an_alarm_that_spans_an_event_without_a_point_in_it_is_true_but_recalls_nothing():
    counts = counted(flags(100, (20, 20), (26, 26)), flags(100, (22, 22)))
    assert (counts.alarms, counts.true_alarms, counts.recalled) == (1, 1, 0)


def test_delay_is_the_first_point_in_the_event_and_a_running_alarm_has_none():
    counts = counted(flags(100, (18, 25)), flags(100, (20, 30)))
    assert counts.delays == (0.0,)


def test_counts_are_summed_before_any_ratio():
    first = counted(flags(288, (20, 20), (100, 100)), flags(288, (20, 30)))
    second = counted(flags(288), flags(288, (5, 6), (50, 60)))
    both = events.total([first, second])
    assert both.precision == 0.5
    assert both.recall == pytest.approx(1 / 3)
    assert both.f1 == pytest.approx(0.4)
    assert both.false_alarms_per_day == pytest.approx(0.5)


def test_without_events_or_alarms_ratios_are_none():
    quiet = counted(flags(288), flags(288))
    assert (quiet.precision, quiet.recall, quiet.f1, quiet.median_delay_seconds) == (None, None, None, None)
    assert quiet.false_alarms_per_day == 0.0
    assert counted(flags(288), flags(288, (3, 4))).f1 == 0.0


def test_the_labels_as_score_have_the_full_volume_and_a_random_score_little():
    labels = flags(4000, (500, 560), (2000, 2100))
    assert vus.vus_pr(labels.astype(float), labels, buffers=(0,)) == pytest.approx(1.0, abs=0.01)
    random = vus.vus_pr(np.random.default_rng(1).random(4000), labels)
    assert random is not None
    assert random < 0.15
    assert vus.vus_pr(np.zeros(10), flags(10)) is None


def test_the_volume_equals_the_definition_written_out():
    rng = np.random.default_rng(5)
    labels = flags(300, (60, 75), (150, 155), (170, 171))
    scores = rng.random(300) + 0.7 * labels
    assert vus.vus_pr(scores, labels) == pytest.approx(np.mean([slow_area(scores, labels, b) for b in vus.BUFFERS]))


def slow_area(scores, labels, buffer):
    """The authors' loop, threshold by threshold."""
    runs = events.spans(labels)
    weight = vus.extended(labels.size, runs, buffer)
    parts = vus.segments(labels.size, runs, buffer)
    ranked = -np.sort(-scores)
    recalls, precisions = [0.0], []
    for rank in np.linspace(0, scores.size - 1, vus.THRESHOLDS).astype(int):
        chosen = scores >= ranked[rank]
        marked = np.where(labels, 1.0, weight * chosen)
        positives = (labels.sum() + marked.sum()) / 2.0
        seen = np.mean([chosen[first : last + 1].any() for first, last in parts])
        recalls.append(min((marked * chosen).sum() / positives, 1.0) * seen)
        precisions.append((marked * chosen).sum() / chosen.sum())
    return np.sum(np.diff(recalls) * np.array(precisions))


def test_a_missing_score_is_the_lowest():
    labels = flags(1000, (500, 520))
    scores = np.where(labels, 1.0, np.nan)
    assert vus.vus_pr(scores, labels, buffers=(0,)) == pytest.approx(1.0, abs=0.01)


def test_nab_scores_no_alarm_0_first_points_100_and_noise_below_0():
    windows = [(400, 499), (700, 799)]
    assert nab.count(flags(1000), windows).score == pytest.approx(0.0)
    assert nab.count(flags(1000, (400, 400), (700, 700)), windows).score == pytest.approx(100.0)
    noisy = nab.count(np.ones(1000, dtype=bool), windows)
    assert noisy.raw < 0


def test_nab_counts_the_first_point_of_a_window_and_later_ones_earn_less():
    windows = [(400, 499)]
    first = nab.count(flags(1000, (400, 400), (450, 480)), windows)
    assert first.score == pytest.approx(100.0)
    middle, end = (nab.count(flags(1000, (index, index)), windows).score for index in (450, 499))
    assert middle is not None
    assert end is not None
    assert 100 > middle > end > 50


def test_nab_false_alarms_cost_a_ninth_and_less_just_after_a_window():
    windows = [(400, 499)]
    before = nab.count(flags(1000, (300, 300)), windows).raw
    assert before == pytest.approx(-1.0 - 0.11)
    behind = nab.count(flags(1000, (510, 510)), windows).raw
    worth = 2 / (1 + math.exp(5 * 11 / 99)) - 1
    assert behind == pytest.approx(-1.0 + 0.11 * worth)
    assert nab.count(flags(1000, (999, 999)), windows).raw == pytest.approx(-1.11)


def test_nab_alarms_while_learning_do_not_count():
    assert nab.count(flags(1000, (0, 149)), [(400, 499)]).raw == -1.0
    assert nab.probation(1000) == 150
    assert nab.probation(22695) == 750


def test_nab_drops_a_second_alarm_within_half_a_day():
    assert np.flatnonzero(nab.spaced(flags(1000, (10, 300)))).tolist() == [10, 155, 300]


def save(folder, name="server-1", **changed):
    arrays = {
        "train": np.random.default_rng(1).random((20, 3)),
        "test": np.random.default_rng(2).random((10, 3)),
        "label": np.zeros(10),
    } | changed
    np.savez(folder / f"{name}.npz", **{key: value for key, value in arrays.items() if value is not None})


def test_servers_are_read_with_labels_for_the_test_part_only(tmp_path):
    save(tmp_path, label=np.arange(10) % 2)
    (recording,) = recordings.servers(tmp_path, 60.0)
    assert (recording.name, recording.values.shape, recording.train) == ("server-1", (30, 3), 20)
    assert recording.labels[20:].tolist() == [False, True] * 5
    assert not recording.labels[:20].any()
    assert recording.times[1] == 60.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": None}, "label"),
        ({"label": np.zeros(9)}, "0 or 1 for each of the 10"),
        ({"label": np.full(10, 2)}, "0 or 1"),
        ({"test": np.zeros((10, 4))}, "test"),
        ({"train": np.zeros(20)}, "train is"),
        ({"train": np.array([["a", "b", "c"]])}, "not an npz of numbers"),
    ],
)
def test_an_invalid_server_file_is_refused_with_its_name(tmp_path, changed, message):
    save(tmp_path, **changed)
    with pytest.raises(UsageError, match=message) as raised:
        recordings.servers(tmp_path, 60.0)
    assert "server-1.npz" in raised.value.message
    assert raised.value.hint


def test_a_missing_folder_or_npz_and_a_bad_archive_are_refused(tmp_path):
    for folder, message in ((tmp_path / "missing", "is not a folder"), (tmp_path, "has no")):
        with pytest.raises(UsageError, match=message):
            recordings.servers(folder, 60.0)
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(UsageError, match=r"x\.npz"):
        recordings.servers(tmp_path, 60.0)


def _torn(path):
    np.savez_compressed(path, train=np.arange(4000.0).reshape(-1, 2), test=np.ones((2, 2)), label=np.zeros(2))
    middle = bytearray(path.read_bytes())
    middle[100:400] = bytes(300)
    path.write_bytes(bytes(middle))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_text("train,test,label\n"), "is not an npz"),
        (lambda path: path.write_bytes(b""), "is not an npz"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00"), "is not an npz"),
        (lambda path: np.savez(path, train=np.array([[{}]]), test=np.zeros((1, 1)), label=np.zeros(1)), "train has"),
        (lambda path: np.savez(path, train=np.zeros((1, 1)), label=np.zeros(1)), "no array named test"),
        (_torn, "is truncated or damaged"),
    ],
)
def test_a_bad_npz_is_reported_without_numpys_unsafe_advice(tmp_path, write, message):
    write(tmp_path / "x.npz")
    with pytest.raises(UsageError, match=message) as raised:
        recordings.servers(tmp_path, 60.0)
    assert "pickle" not in raised.value.message
    assert "train (times, metrics)" in (raised.value.hint or "")


def nab_folder(tmp_path, rows=700):
    (tmp_path / "data" / "lab").mkdir(parents=True)
    moments = [np.datetime64("2026-01-01T00:00") + np.timedelta64(5 * index, "m") for index in range(rows)]
    values = 10 + np.random.default_rng(3).normal(size=rows)
    values[500:520] += 40
    lines = [f"{str(at).replace('T', ' ')}:00,{value}" for at, value in zip(moments, values, strict=True)]
    (tmp_path / "data" / "lab" / "one.csv").write_text("\n".join(["timestamp,value", *lines, ""]))
    window = [f"{str(moments[index]).replace('T', ' ')}:00.000000" for index in (490, 530)]
    (tmp_path / "combined_windows.json").write_text(json.dumps({"lab/one.csv": [window]}))
    return tmp_path


def test_nab_series_are_read_with_their_windows_and_an_obvious_anomaly_is_detected(tmp_path):
    folder = nab_folder(tmp_path)
    (recording,) = recordings.nab(folder)
    assert nab.windows(recording.labels) == [(490, 530)]
    result = detection.nab_corpus(folder, budget=0.25, progress=lambda stage, share: None)
    assert result["entities"] == 1
    assert result["recall"] == 1.0
    assert result["nab_standard"] > 50


def test_a_bad_row_of_a_series_is_reported_with_its_line(tmp_path):
    folder = nab_folder(tmp_path)
    path = folder / "data" / "lab" / "one.csv"
    path.write_text("timestamp,value\n2026-01-01 00:00:00,1\n2026-01-01 00:05:00,much\n")
    with pytest.raises(UsageError, match=r"one\.csv:3"):
        recordings.nab(folder)
    path.write_text("timestamp,value\n")
    with pytest.raises(UsageError, match="has no rows"):
        recordings.nab(folder)
    (folder / "combined_windows.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        recordings.nab(folder)


@pytest.mark.slow
def test_labels_change_no_score_and_servers_may_differ_in_length(tmp_path):
    rng = np.random.default_rng(4)
    for number, length in ((1, 700), (2, 500)):
        save(
            tmp_path, f"server-{number}", train=rng.random((length, 3)), test=rng.random((300, 3)), label=np.zeros(300)
        )
    plain = judged(tmp_path)
    with np.load(tmp_path / "server-2.npz") as read:
        arrays = dict(read)
    np.savez(tmp_path / "server-2.npz", **(arrays | {"label": np.arange(300) % 2}))
    marked = judged(tmp_path)
    for name, server in plain.items():
        assert server.scores.shape == (300,)
        assert np.isfinite(server.scores).all()
        np.testing.assert_array_equal(server.scores, marked[name].scores)
        np.testing.assert_array_equal(server.points, marked[name].points)


def judged(folder):
    return detection.judge_servers(recordings.servers(folder, STEP), STEP, 0.25, lambda stage, share: None)


def test_later_readings_do_not_change_earlier_scores(tmp_path):
    rng = np.random.default_rng(6)
    train, test = rng.random((600, 2)), rng.random((300, 2))
    save(tmp_path, train=train, test=test, label=np.zeros(300))
    whole = judged(tmp_path)["server-1"]
    test[200:] = 50.0
    save(tmp_path, train=train, test=test, label=np.zeros(300))
    other = judged(tmp_path)["server-1"]
    same = detection.BLOCK * (200 // detection.BLOCK)
    np.testing.assert_array_equal(whole.scores[:same], other.scores[:same])
    assert other.scores[210] > whole.scores[:200].max()
