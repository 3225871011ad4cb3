"""A model service on gRPC that streams its answer, with its metrics page on a separate port.

Run it with ``python grpc_app.py [GRPC_PORT [METRICS_PORT]]``; it prints both ports. Messages are UTF-8 texts,
so that the example needs no generated code: with generated stubs the decorator stays the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from concurrent import futures

import grpc
from prometheus_client import start_http_server

from outrider_sdk import ModelService, current

service = ModelService("translate", model="echo-1")


def tenant_of(_prompt: str, context: grpc.ServicerContext) -> str:
    """The tenant in the client's metadata."""
    return dict(context.invocation_metadata()).get("tenant", "none")


@service.watch(tenant=tenant_of)
def generate(prompt: str, context: grpc.ServicerContext) -> Generator[str, None, None]:
    request = current()
    if not prompt:
        if request:
            request.reject()  # an error of the client, not of the service
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an empty prompt")
    for word in prompt.split():
        time.sleep(0.005)  # the model works
        yield word + " "


def serve(grpc_port: int = 0, metrics_port: int = 0) -> tuple[grpc.Server, int, int]:
    """Starts the server and its metrics page; returns the server and both ports."""
    handler = grpc.unary_stream_rpc_method_handler(
        generate, request_deserializer=bytes.decode, response_serializer=str.encode
    )
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Model", {"Generate": handler}),))
    port = server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    server.start()
    page, _ = start_http_server(metrics_port, addr="127.0.0.1")
    return server, port, page.server_port


if __name__ == "__main__":
    started, rpc, page = serve(*(int(text) for text in sys.argv[1:3]))
    print(f"grpc 127.0.0.1:{rpc} metrics http://127.0.0.1:{page}/metrics", flush=True)  # noqa: T201
    started.wait_for_termination()
