"""Text of a comparison of GPU offers, line by line."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.text.i18n import Language, translate
from planner.cost.milp import Mix
from planner.cost.offers import Offer
from planner.cost.optimizer import CostComparison, CostOption, CostRequest, Refusal, cost_per_1k_tokens, group_text
from planner.performance import measured
from planner.performance.gpu_catalog import Cut, source_text


def lines(request: CostRequest, answer: CostComparison, language: Language = "en") -> tuple[str, ...]:
    """Returns the need, each point of the front, the sources of its figures, and the reasons of refused offers."""
    need = {"qps": f"{request.qps:g}", "buffer": f"{request.buffer:g}", "need": f"{answer.need:g}"}
    text_lines = [translate("capacity.cost_need", language, **need)]
    if not answer.slo_kept:
        text_lines.append(translate("capacity.cost_slo_missed", language))
    if answer.nothing is not None:
        text = f"capacity.cost_nothing_{answer.nothing.reason.value}"
        text_lines.append(translate(text, language, most=f"{answer.nothing.most:.4g}"))
    text_lines += [_mix_line(request, answer, mix, language) for mix in answer.front]
    text_lines += [translate(f"capacity.cost_note_{kind}", language) for kind in _cuts_of(answer)]
    text_lines += _source_lines(request, answer, language)
    offers = {offer.name: offer for offer in answer.offers}
    for name, reason, text in answer.refused:
        kind = "missed" if reason is Refusal.SLO and not answer.slo_kept else f"refused_{reason.value}"
        known = offers.get(name)
        shown = name if known is None else offer_text(known, language)
        text_lines.append(translate(f"capacity.{kind}", language, offer=shown, detail=text))
    return tuple(text_lines)


def offer_text(offer: Offer, language: Language, mark: str = "") -> str:
    """``H100 on demand eu-1``; ``mark`` follows the type."""
    contract = translate(f"capacity.purchase_{offer.purchase}", language)
    return " ".join(filter(None, (offer.gpu.name + mark, contract, offer.region)))


def _mix_line(request: CostRequest, answer: CostComparison, mix: Mix, language: Language) -> str:
    if not mix.replicas:
        return translate("capacity.cost_no_load", language)
    parts = []
    for index, count in mix.replicas.items():
        option = answer.options[index]
        text_lines = {"count": count, "group": group_text(option.setup), "rate": f"{option.rate:.3g}"}
        offer = offer_text(option.offer, language, "*" if option.offer.assumed else "")
        text = translate("capacity.cost_way", language, offer=offer, **text_lines)
        if option.offer.name in mix.slices:
            cut = {"gpus": mix.gpus[option.offer.name], "parts": option.offer.gpu.parts}
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


def _front_options(answer: CostComparison) -> list[CostOption]:
    return [answer.options[index] for mix in answer.front for index in mix.replicas]


def _cuts_of(answer: CostComparison) -> list[Cut]:
    """Cuts of the GPUs of the front."""
    cuts: set[Cut] = {option.offer.gpu.cut for option in _front_options(answer) if option.offer.gpu.cut is not None}
    return sorted(cuts)


def _source_lines(request: CostRequest, answer: CostComparison, language: Language) -> list[str]:
    """Sources of the step times and prices of the front, each source once with the groups or GPUs it applies to."""
    times: dict[str, list[str]] = {}
    prices: dict[tuple[bool, str], list[str]] = {}
    for option in _front_options(answer):
        source = option.source
        if option.offer.step_times is None:
            model_inputs = (request.shape, option.offer.gpu, option.setup, request.work, request.tests)
            source = measured.step_times(*model_inputs, language).source
        times.setdefault(source, []).append(f"{option.offer.gpu.name} {group_text(option.setup)}")
        if option.offer.price is None:
            text = source_text(option.offer.gpu.price_source, language)
            prices.setdefault((option.offer.assumed, text), []).append(option.offer.gpu.name)
    text_lines = [
        translate("capacity.cost_source", language, ways=_once(names), source=source) for source, names in times.items()
    ]
    for (assumed, text), names in sorted(prices.items()):
        key = "capacity.cost_prices_assumed" if assumed else "capacity.cost_prices"
        text_lines.append(translate(key, language, gpus=_once(names), source=text))
    return text_lines


def _once(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
