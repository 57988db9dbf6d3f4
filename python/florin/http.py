"""Requests to a coordinator, with limits on time and size, on the standard library alone."""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import IO, Any

from florin.errors import FlorinError

# Longest JSON response that is read, and longest refusal.
JSON_BYTES_MAX, REFUSAL_BYTES_MAX = 64 << 20, 64 << 10
# Default limit on a response without data, and on a whole JSON response, in seconds.
TIMEOUT_S, JSON_TIMEOUT_S = 30.0, 120.0
# Attempts of a rate-limited request, and the longest wait that the coordinator may request.
RATE_LIMIT_TRIES_MAX, RETRY_AFTER_S_MAX = 10, 10.0
CHUNK_BYTES = 1 << 20
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A coordinator does not redirect: a redirect could lead anywhere."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


class Http:
    """The HTTP interface of one coordinator."""

    def __init__(self, url: str | None, certificate: str | Path | None = None, timeout: float = TIMEOUT_S) -> None:
        url = os.environ.get("FLORIN_MARKET") if url is None else url
        certificate = os.environ.get("FLORIN_CERTIFICATE") or None if certificate is None else certificate
        if not url:
            remedy = "give its URL, such as http://127.0.0.1:7700, or set FLORIN_MARKET"
            raise FlorinError("MARKET_NOT_SET", "no market is named", remedy=remedy)
        parts = _parsed(str(url))
        if not timeout > 0:
            raise FlorinError("SETTING_OUT_OF_RANGE", f"a timeout of {timeout} s; it must be positive")
        self.url = str(url).rstrip("/")
        self.timeout = timeout
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if parts.hostname in LOCAL_HOSTS:
            # Requests to this machine never use a proxy.
            handlers.append(urllib.request.ProxyHandler({}))
        if certificate is not None:
            handlers.append(urllib.request.HTTPSHandler(context=_context(parts.scheme, self.url, Path(certificate))))
        self._open = urllib.request.build_opener(*handlers)

    def json(self, path: str) -> Any:
        """The JSON that `GET /v1/PATH` returns."""
        name = f"GET {path}"
        text = b"".join(self._chunks(path, name, JSON_BYTES_MAX, JSON_TIMEOUT_S))
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as cause:
            raise invalid(name, f"it is no JSON: {cause}") from None

    def blob(self, digest: str, bytes_max: int, receive: Callable[[bytes], Any]) -> None:
        """Passes the bytes of a blob on, at most `bytes_max`. The caller checks their digest."""
        for chunk in self._chunks(f"blobs/{digest}", f"GET blobs/{digest[:8]}…", bytes_max, None):
            receive(chunk)

    def _chunks(self, path: str, name: str, bytes_max: int, limit_s: float | None) -> Iterator[bytes]:
        ends = None if limit_s is None else time.monotonic() + limit_s
        got = 0
        try:
            with self._answer(path, name) as body:
                while chunk := body.read(CHUNK_BYTES):
                    got += len(chunk)
                    if got > bytes_max:
                        raise invalid(name, f"it is longer than {bytes_max} bytes")
                    if ends is not None and time.monotonic() > ends:
                        raise self._unavailable(name, f"the response takes longer than {limit_s} s")
                    yield chunk
        except FlorinError:
            raise
        except Exception as cause:  # http.client raises many kinds for a connection that breaks
            raise self._failed(name, cause) from None

    def _answer(self, path: str, name: str) -> Any:
        request = urllib.request.Request(f"{self.url}/v1/{path}", headers={"User-Agent": "florin-python"})
        for attempt in range(1, RATE_LIMIT_TRIES_MAX + 1):
            try:
                return self._open.open(request, timeout=self.timeout)
            except urllib.error.HTTPError as answer:
                with answer:
                    if answer.code == 429 and attempt < RATE_LIMIT_TRIES_MAX:
                        time.sleep(_wait_s(answer.headers))
                        continue
                    raise _refusal(name, answer.code, answer) from None
        raise AssertionError("the last attempt returns or raises")

    def _unavailable(self, name: str, why: str) -> FlorinError:
        message = f"the coordinator at {self.url} does not answer {name}: {why}"
        remedy = "check the address (market=…, FLORIN_MARKET), and that `florin coordinate` runs there"
        return FlorinError("COORDINATOR_UNAVAILABLE", message, remedy=remedy)

    def _failed(self, name: str, cause: Exception) -> FlorinError:
        reason = cause.reason if isinstance(cause, urllib.error.URLError) else cause
        if isinstance(reason, ssl.SSLError):
            remedy = "for a self-signed certificate name its file: certificate=…, FLORIN_CERTIFICATE"
            return FlorinError("TLS_NOT_TRUSTED", f"no TLS connection for {name}: {reason}", remedy=remedy)
        return self._unavailable(name, str(reason) or type(reason).__name__)


def invalid(name: str, why: str) -> FlorinError:
    """A response that is not what the interface states."""
    remedy = "check that the URL is that of a coordinator, of the version of this package"
    return FlorinError("INVALID_RESPONSE", f"the response to {name} is invalid: {why}", remedy=remedy)


def _parsed(url: str) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        valid = valid and not (parts.query or parts.fragment or parts.username)
        valid = valid and url.isascii() and not any(letter <= " " for letter in url)
    except ValueError:
        valid = False
    if not valid:
        message = f"{url[:200]!r} is not a coordinator's URL"
        raise FlorinError("INVALID_URL", message, remedy="give http://HOST:PORT or https://HOST")
    return parts


def _context(scheme: str, url: str, certificate: Path) -> ssl.SSLContext:
    if scheme != "https":
        message = f"a certificate needs an https:// address, but {url} is not encrypted"
        raise FlorinError("CERTIFICATE_NOT_NEEDED", message)
    try:
        return ssl.create_default_context(cafile=str(certificate))
    except (OSError, ssl.SSLError) as cause:
        raise FlorinError("CERTIFICATE_UNREADABLE", f"{certificate} cannot be read as PEM: {cause}") from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _wait_s(headers: Message) -> float:
    try:
        return min(max(float(headers.get("Retry-After", "1")), 0.0), RETRY_AFTER_S_MAX)
    except ValueError:
        return 1.0


def _refusal(name: str, status: int, body: IO[bytes]) -> FlorinError:
    """The coordinator's own code and message, if the response has them."""
    try:
        found = json.loads(body.read(REFUSAL_BYTES_MAX))
        code, message = found["code"], found["message"]
        if isinstance(code, str) and isinstance(message, str) and code.isascii() and len(code) <= 64:
            return FlorinError(code, message)
    except Exception:  # the body is not that of a coordinator
        pass
    return invalid(name, f"HTTP status {status} without a code")
