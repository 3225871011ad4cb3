"""The vendor of each channel type that speaks HTTP."""

from __future__ import annotations

from tests.support.vendors.chat import DingTalk, Feishu, SlackBot, SlackWebhook, Teams, WeCom
from tests.support.vendors.on_call import Alertmanager, AppriseService, Opsgenie, PagerDuty, Webhook
from tests.support.vendors.phones import AliyunSms, AliyunVoice, TencentSms, TencentVoice, TwilioSms, TwilioVoice
from tests.support.vendors.server import Vendor

VENDORS: dict[str, type[Vendor]] = {
    vendor.channel_type: vendor
    for vendor in (
        DingTalk, Feishu, WeCom, SlackWebhook, SlackBot, Teams, Webhook, PagerDuty, Opsgenie, AliyunSms, AliyunVoice,
        TencentSms, TencentVoice, TwilioSms, TwilioVoice, Alertmanager, AppriseService,
    )
}  # fmt: skip
