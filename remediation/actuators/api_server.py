"""Reads and patches objects of one Kubernetes API server through the ``kubernetes`` client."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from outrider.errors import ActuationError, CollectError
from outrider.model import ActionRequest
from outrider.wire.http_auth import Access, Tls

FIELD_MANAGER = "outrider"
TIMEOUT_SECONDS = 10.0
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_HINTS = {
    401: "renew the token of its account, see docs/howto/act-on-kubernetes.md",
    403: "grant its account the verb, see deploy/rbac-act.yaml",
}
Query = tuple[tuple[str, str], ...]


class ConflictError(ActuationError):
    """The object changed between read and write."""


class TooManyRequestsError(ActuationError):
    """A PodDisruptionBudget forbids the eviction, or the server is overloaded."""


class ApiServer:
    """One API server, for one or more threads: credentials and certificates are read when it is created."""

    def __init__(self, url: str, access: Access, *, setting: str = "planner.scaling.kubernetes.url") -> None:
        """``url`` is empty without a configured server; ``setting`` is its configuration key.

        Raises ActuationError that names an unreadable file.
        """
        self._url, self._tls, self._setting = url, access.tls or Tls(), setting
        self._client: Any = None
        try:
            self._headers = access.sent()
            self._tls.context()  # names the unreadable file; the client does not
        except CollectError as error:
            raise ActuationError(error.message, retryable=False, hint=error.hint) from error

    def __enter__(self) -> Self:
        """Returns itself; connects with the first request."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()

    def get(self, path: str, *, query: Query = (), missing_is_empty: bool = False) -> dict[str, Any]:
        """Returns the object at ``path``; ``missing_is_empty``: an empty one for 404. Raises ActuationError."""
        return self._request("GET", path, query=query, missing_is_empty=missing_is_empty)

    def send(self, request: ActionRequest, *, dry_run: bool) -> dict[str, Any]:
        """Sends one write, as our field manager; a dry run is the server's own. Returns the reply.

        Raises ActuationError, ConflictError, TooManyRequestsError.
        """
        manager = (("fieldManager", FIELD_MANAGER),) if request.method != "DELETE" else ()
        query = (*manager, *((("dryRun", "All"),) if dry_run else ()))
        return self._request(
            request.method, request.url, query=query, body=request.body, content_type=request.content_type
        )

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Any = None,
        content_type: str = MERGE_PATCH,
        missing_is_empty: bool = False,
    ) -> dict[str, Any]:
        if not self._url:
            raise ActuationError("no Kubernetes API is configured", retryable=False, hint=f"set {self._setting}")
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415 - slow to import, rarely needed
        from urllib3.exceptions import HTTPError, LocationValueError, SSLError  # noqa: PLC0415

        client = self._connected()
        headers = {"Accept": "application/json", **({"Content-Type": content_type} if body else {})}
        request = client.param_serialize(method, path, query_params=list(query), header_params=headers, body=body)
        try:
            response = client.call_api(*request, _request_timeout=(TIMEOUT_SECONDS, TIMEOUT_SECONDS))
            content: bytes = response.read()
        except LocationValueError as error:
            raise self._not_a_url() from error
        except (HTTPError, ApiException) as error:  # the client reports a failed TLS handshake as ApiException
            name = SSLError.__name__ if isinstance(error, ApiException) else type(error).__name__
            host = urlsplit(self._url).hostname
            raise ActuationError(f"{host} cannot be reached ({name})", retryable=True) from error
        if response.status == 404 and missing_is_empty:
            return {}
        return checked(method, self._url + path, response.status, content)

    def _connected(self) -> Any:
        """Returns the client, created for the first request. It neither retries nor follows redirects."""
        if self._client is None:
            import urllib3  # noqa: PLC0415
            from kubernetes.client import ApiClient, Configuration  # noqa: PLC0415 - slow to import, rarely needed

            tls = self._tls
            try:
                configuration = Configuration(
                    host=self._url,
                    retries=False,
                    verify_ssl=not tls.insecure_skip_verify,
                    ssl_ca_cert=_name(tls.ca_file),
                    cert_file=_name(tls.cert_file),
                    key_file=_name(tls.key_file),
                    tls_server_name=tls.server_name,
                )
            except ValueError as error:
                raise self._not_a_url() from error
            if configuration.proxy:  # the client ignores the credentials in a proxy's URL
                user = urllib3.util.parse_url(configuration.proxy).auth
                configuration.proxy_headers = urllib3.make_headers(proxy_basic_auth=user and unquote(user))
            if tls.insecure_skip_verify:  # configured: a warning for each request is noise
                urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            client = ApiClient(configuration)
            client.user_agent = FIELD_MANAGER
            for name, value in self._headers.items():
                client.set_default_header(name, value)
            self._client = client  # complete before another thread can use it
        return self._client

    def _not_a_url(self) -> ActuationError:
        return ActuationError(f"{self._url!r} is not a URL", retryable=False)


def load_client() -> None:
    """Imports the client, which takes a second, before the first action needs it."""
    import kubernetes.client  # noqa: F401, PLC0415


def checked(method: str, url: str, status: int, content: bytes) -> dict[str, Any]:
    """Returns a response's JSON object, empty if it is none. Raises ActuationError for a status other than 2xx."""
    try:
        decoded = json.loads(content)
    except ValueError:
        decoded = None
    result = decoded if isinstance(decoded, dict) else {}
    if status // 100 != 2:
        text = content.decode("utf-8", errors="replace")[:120]
        sentence = (_owners(result) or str(result.get("message", "")))[:300] if isinstance(decoded, dict) else text
        retry = status >= 500 or status in (401, 409, 429)  # 401: the token file is read again for each attempt
        hint = _HINTS.get(status, "")
        error = {409: ConflictError, 429: TooManyRequestsError}.get(status, ActuationError)
        raise error(
            f"{method} {urlsplit(url).path} returned {status}: {sentence}", retryable=retry, hint=hint, status=status
        )
    return result


def _owners(result: dict[str, Any]) -> str:
    """The fields of an apply that other field managers own, each with its owner; empty for another error."""
    causes = (result.get("details") or {}).get("causes") or ()
    conflicts = (cause for cause in causes if cause.get("reason") == "FieldManagerConflict")
    return "; ".join(f"{cause.get('field')}: {cause.get('message')}" for cause in conflicts)


def _name(file: object) -> str | None:
    return None if file is None else str(file)
