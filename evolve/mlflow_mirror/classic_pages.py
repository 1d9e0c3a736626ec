"""MLflow's server whose pages show runs first, as ``tilewright ui`` starts it (an ``mlflow.app`` of this package).

MLflow 3.17 opens every run below "GenAI > Evaluation runs" unless the browser remembers another choice. This app puts a
script into the page that makes the classic pages the first choice; a user's own choice stays.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

APP_NAME = "tilewright"
"""The name for ``mlflow server --app-name``."""

SCRIPT = b"""<script>try { const k = "mlflow.workflowType_v1";
localStorage.getItem(k) || localStorage.setItem(k, '"machine_learning"') } catch (e) {}</script>"""
_CACHE_HEADERS = {b"if-none-match", b"if-modified-since"}

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def classic_pages(served: App) -> App:
    """The ASGI app ``served`` with ``SCRIPT`` in the head of its one page, ``/``."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/":
            return await served(scope, receive, send)
        start: Message = {}
        body = b""

        async def collect(message: Message) -> None:
            nonlocal body
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            whole = body.replace(b"<head>", b"<head>" + SCRIPT, 1)
            headers = [
                pair for pair in start["headers"] if pair[0].lower() not in (b"content-length", b"etag")
            ]
            await send({**start, "headers": [*headers, (b"content-length", str(len(whole)).encode())]})
            await send({"type": "http.response.body", "body": whole})

        # an answer "not modified" would leave the browser with a page without the script
        headers = [pair for pair in scope["headers"] if pair[0] not in _CACHE_HEADERS]
        await served({**scope, "headers": headers}, receive, collect)

    return answer


def make() -> App:
    """The app, for the server that MLflow starts."""
    from mlflow.server.fastapi_app import app

    return classic_pages(app)
