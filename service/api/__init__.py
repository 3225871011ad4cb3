"""The HTTP API: the only interface for the dashboard, the command line and buttons in chat.

Must not decide (the cycle does), hold texts (``outrider/text/i18n``) or import ``service.runtime``.
"""
