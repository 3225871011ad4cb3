"""What a comparison of GPU offers says, line by line: as a manager follows it."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.text.i18n import Language, translate
from planner.cost.milp import Mix
from planner.cost.offers import Offer
from planner.cost.optimizer import Answer, Refusal, Request, Way, cost_per_1k_tokens, group_text
from planner.performance import measured
from planner.performance.gpu_catalog import Cut, source_text


def lines(request: Request, answer: Answer, language: Language = "en") -> tuple[str, ...]:
    """The need, each point of the front, where its figures come from, and why other offers are not in it."""
    need = {"qps": f"{request.qps:g}", "buffer": f"{request.buffer:g}", "need": f"{answer.need:g}"}
    said = [translate("capacity.cost_need", language, **need)]
    if not answer.slo_kept:
        said.append(translate("capacity.cost_slo_missed", language))
    if answer.nothing is not None:
        text = f"capacity.cost_nothing_{answer.nothing.reason.value}"
        said.append(translate(text, language, most=f"{answer.nothing.most:.4g}"))
    said += [_mix_line(request, answer, mix, language) for mix in answer.front]
    said += [translate(f"capacity.cost_note_{kind}", language) for kind in _cuts_of(answer)]
    said += _source_lines(request, answer, language)
    offers = {offer.name: offer for offer in answer.offers}
    for name, why, text in answer.refused:
        kind = "missed" if why is Refusal.SLO and not answer.slo_kept else f"refused_{why.value}"
        known = offers.get(name)
        shown = name if known is None else offer_text(known, language)
        said.append(translate(f"capacity.{kind}", language, offer=shown, detail=text))
    return tuple(said)


def offer_text(offer: Offer, language: Language, mark: str = "") -> str:
    """``H100 on demand eu-1``; ``mark`` stands behind the type."""
    contract = translate(f"capacity.purchase_{offer.purchase}", language)
    return " ".join(filter(None, (offer.gpu.name + mark, contract, offer.region)))


def _mix_line(request: Request, answer: Answer, mix: Mix, language: Language) -> str:
    if not mix.replicas:
        return translate("capacity.cost_no_load", language)
    parts = []
    for place, count in mix.replicas.items():
        way = answer.ways[place]
        said = {"count": count, "group": group_text(way.setup), "rate": f"{way.rate:.3g}"}
        offer = offer_text(way.offer, language, "*" if way.offer.assumed else "")
        text = translate("capacity.cost_way", language, offer=offer, **said)
        if way.offer.name in mix.slices:
            cut = {"gpus": mix.gpus[way.offer.name], "parts": way.offer.gpu.parts}
            text = translate("capacity.cost_cut", language, way=text, **cut)
        parts.append(text)
    tokens = cost_per_1k_tokens(mix.cost_per_hour, request.qps * request.work.output) or 0.0
    return translate(
        "capacity.cost_mix",
        language,
        cost=f"{mix.cost_per_hour:.2f}",
        currency=answer.currency,
        gpus=sum(mix.gpus.values()),
        latency=f"{mix.latency:.2f}",
        mix=" + ".join(parts),
        tokens=f"{tokens:.5f}",
    )


def _ways(answer: Answer) -> list[Way]:
    return [answer.ways[place] for mix in answer.front for place in mix.replicas]


def _cuts_of(answer: Answer) -> list[Cut]:
    """How GPUs of the front are cut."""
    cuts: set[Cut] = {way.offer.gpu.cut for way in _ways(answer) if way.offer.gpu.cut is not None}
    return sorted(cuts)


def _source_lines(request: Request, answer: Answer, language: Language) -> list[str]:
    """Where the step times and prices of the front come from, each source once, with what it is the source of."""
    times: dict[str, list[str]] = {}
    prices: dict[tuple[bool, str], list[str]] = {}
    for way in _ways(answer):
        source = way.source
        if way.offer.step_times is None:
            asked = (request.shape, way.offer.gpu, way.setup, request.work, request.tests)
            source = measured.step_times(*asked, language).source
        times.setdefault(source, []).append(f"{way.offer.gpu.name} {group_text(way.setup)}")
        if way.offer.price is None:
            text = source_text(way.offer.gpu.price_source, language)
            prices.setdefault((way.offer.assumed, text), []).append(way.offer.gpu.name)
    said = [
        translate("capacity.cost_source", language, ways=_once(names), source=source) for source, names in times.items()
    ]
    for (assumed, text), names in sorted(prices.items()):
        key = "capacity.cost_prices_assumed" if assumed else "capacity.cost_prices"
        said.append(translate(key, language, gpus=_once(names), source=text))
    return said


def _once(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
