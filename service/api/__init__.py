"""The HTTP API: the one door for the dashboard, the command line and buttons in chat.

What lives here: routers under ``/api/v1``, who may read and write, health pages, the uvicorn runner.
What must not: decisions (they are made in the cycle) and texts (``outrider/text/i18n``). Called by ``service``.
"""
