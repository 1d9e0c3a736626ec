"""A local server that speaks the OpenAI chat protocol and answers from a script."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    """One scripted answer: ``text`` as a chat completion, or a raw body with a status and headers."""

    text: str = ""
    status: int = 200
    raw: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    tokens: tuple[int, int] = (100, 50)


Scripted = Answer | Callable[[dict], Answer]
"""An answer, or what makes one from the request's body."""


@dataclass
class ScriptedServer:
    """Answers requests in order and repeats the last answer; keeps every request for inspection."""

    answers: Sequence[Scripted]
    requests: list[dict] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""


@contextmanager
def scripted_server(answers: Sequence[Scripted]) -> Iterator[ScriptedServer]:
    script = ScriptedServer(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            scripted = script.answers[min(len(script.requests), len(script.answers) - 1)]
            answer = scripted if isinstance(scripted, Answer) else scripted(body)
            script.requests.append(body)
            script.keys.append(self.headers.get("Authorization"))
            time.sleep(answer.delay_seconds)
            payload = answer.raw if answer.raw is not None else _completion(answer, body["model"])
            try:
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)
            except BrokenPipeError:
                return

        def log_message(self, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()


def _completion(answer: Answer, model: str) -> bytes:
    prompt, completion = answer.tokens
    return json.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer.text}}
            ],
            "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
        }
    ).encode()
