"""A model service on FastAPI: one complete and one streamed answer, and its metrics page.

Run it with ``uvicorn fastapi_app:app``; Outrider's adapter ``sdk`` reads ``GET /metrics``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import FastAPI, Header, Response
from fastapi.responses import StreamingResponse

from outrider_sdk import ModelService

service = ModelService("chat", model="echo-1")
app = FastAPI()
Tenant = Annotated[str, Header()]
gate = asyncio.Semaphore(8)


@app.post("/answer")
async def answer(prompt: str, x_tenant: Tenant = "none") -> dict[str, str]:
    async with service.request(tenant=x_tenant) as request:
        async with request.stage("queue"):
            await gate.acquire()
        try:
            with request.stage("preprocess"):
                words = prompt.split()
                request.input_tokens(len(words))
            with request.stage("compute"):
                await asyncio.sleep(0.01)  # the model works
                request.tokens(len(words))
            text = " ".join(reversed(words))
            request.output(text)
            return {"text": text}
        finally:
            gate.release()


@service.watch(tenant=lambda _prompt, tenant: tenant)
async def words_of(prompt: str, tenant: str) -> AsyncGenerator[str, None]:  # noqa: ARG001 - the decorator reads it
    """Each yielded piece counts as a token; the pieces together are the answer."""
    for word in prompt.split():
        await asyncio.sleep(0.005)
        yield word + " "


@app.post("/stream")
async def stream(prompt: str, x_tenant: Tenant = "none") -> StreamingResponse:
    return StreamingResponse(words_of(prompt, x_tenant), media_type="text/plain")


@app.post("/vote")
async def vote(up: bool) -> None:
    service.feedback(up=up)


@app.get("/metrics")
async def metrics() -> Response:
    return Response(service.page(), media_type=service.content_type)
