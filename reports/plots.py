"""Contents of the charts of the reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.model import Forecast
from outrider.text.i18n import Language
from outrider.vocabulary.indicators import MEASURES
from reports.document import words
from reports.document.model import BarChart, Line, LineChart
from reports.inputs.figures import ServiceFigures
from reports.inputs.week import Week


def availability_chart(service: ServiceFigures, week: Week, language: Language) -> BarChart:
    """One bar per day of the week, with the target as a line; a day without data has no bar."""
    days = words.text("weekdays", language).split()
    values = [day.ratio for day in service.daily]
    values += [None] * (len(days) - len(values))
    known = [value for value in values if value is not None]
    target = MEASURES["availability"].target or 0.999
    title = words.text("chart_availability", language, service=words.name(service.service))
    low, high = (words.percent(bound(known)) if known else words.text("none", language) for bound in (min, max))
    return BarChart(
        id=f"availability-{week.services.index(service)}",
        title=title,
        text=words.text(
            "chart_availability_text",
            language,
            service=words.name(service.service),
            low=low,
            high=high,
            target=f"{target * 100:g} %",
        ),
        labels=tuple(days),
        values=tuple(values[: len(days)]),
        target=target,
        target_name=words.text("legend_target", language),
    )


def traffic_chart(service: ServiceFigures, forecast: Forecast | None, week: Week, language: Language) -> LineChart:
    """Hourly requests per second, then the newest forecast with its 95th percentile."""
    lines = [Line(words.text("legend_traffic", language), "measured", _floats(service.hours), _points(service.traffic))]
    if forecast is not None:
        for name, style, quantile in (("legend_forecast", "forecast", 0.5), ("legend_p95", "p95", 0.95)):
            values = forecast.quantiles.get(quantile)
            if values is not None:
                label = words.text(name, language)
                lines.append(
                    Line(label, "forecast" if style == "forecast" else "p95", _floats(forecast.times), _points(values))
                )
    days = words.text("weekdays", language).split()
    start = week.start.timestamp()
    return LineChart(
        id=f"traffic-{week.services.index(service)}",
        title=words.text("chart_traffic", language, service=words.name(service.service)),
        text=words.text(
            "chart_traffic_only_text" if forecast is None else "chart_traffic_text",
            language,
            service=words.name(service.service),
            peak=f"{float(np.nanmax(service.traffic)):,.1f}",
        ),
        unit=words.text("unit_rps", language),
        lines=tuple(lines),
        ticks=tuple((start + day * 86400.0, name) for day, name in enumerate([*days, *days[: len(lines) > 1]])),
    )


def _floats(values: Sequence[float] | np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _points(values: Sequence[float] | np.ndarray) -> tuple[float | None, ...]:
    return tuple(float(value) if np.isfinite(value) else None for value in values)
