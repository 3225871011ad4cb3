"""The HTTP API: the only interface for the dashboard, the command line and buttons in chat.

Contains routers under ``/api/v1``, access control, health endpoints and the uvicorn runner. Must not decide anything
(the cycle does) and holds no texts (``outrider/text/i18n``).
"""
