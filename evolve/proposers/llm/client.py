"""Talking to an OpenAI-compatible endpoint: every exchange is paid for once, stored, and replayable."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

Messages = list[dict[str, str]]

ADVICE = {401: "; put a valid key into TILEWRIGHT_LLM_API_KEY", 404: "; check the URL and the model's name"}
"""What a user can do about a status."""

LONGEST_REASON = 120
"""Letters of a server's own words that are shown."""

CHARS_PER_TOKEN = 3
"""A cautious guess for source text, used only to reserve budget before the true count is known."""


class BudgetSpent(Exception):
    """The token budget cannot cover another call."""


class EndpointFailed(Exception):
    """The endpoint gave no usable answer. The message is one line; ``billed``: whether it may have been paid for."""

    def __init__(self, message: str, *, billed: bool = True) -> None:
        super().__init__(message)
        self.billed = billed


@dataclass(frozen=True)
class Exchange:
    """One question and its answer. ``error`` is set instead of ``reply`` when there was no answer.

    ``salt`` says which proposal asked, and ``seconds`` how long the endpoint took: neither is asked of a replay.
    """

    key: str
    model: str
    messages: tuple[dict[str, str], ...]
    reply: str = ""
    error: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    salt: str = ""
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """What it was charged at."""
        return self.prompt_tokens + self.completion_tokens

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "Exchange":
        data = json.loads(text)
        return Exchange(**{**data, "messages": tuple(data["messages"])})


class ExchangeStore(Protocol):
    """Where exchanges are kept; the journal."""

    def exchange(self, key: str) -> str | None: ...

    def exchanges(self) -> Iterator[tuple[str, str]]: ...

    def add_exchange(self, key: str, text: str) -> None: ...


@dataclass
class TokenBudget:
    """Tokens that may still be spent. A call reserves its worst case and settles to what it used.

    A call whose usage never came back (a time-out, a broken connection) stays charged at its worst case:
    the endpoint may well have billed it.
    """

    total: int
    spent: int = 0
    reserved: int = 0

    def reserve(self, tokens: int) -> None:
        """Raises BudgetSpent when calls in flight and spent tokens leave no room."""
        if self.spent + self.reserved + tokens > self.total:
            left = max(0, self.total - self.spent - self.reserved)
            raise BudgetSpent(f"{tokens} tokens are needed and {left} of {self.total} are left")
        self.reserved += tokens

    def settle(self, reservation: int, used: int | None) -> None:
        self.reserved -= reservation
        self.spent += reservation if used is None else used


@dataclass
class ChatClient:
    """Asks, stores, replays. ``endpoint`` None means replay only.

    What the store already holds counts against the budget, so that stopping and resuming does not refill it.
    """

    store: ExchangeStore
    model: str
    budget: TokenBudget
    max_completion_tokens: int = 8192
    endpoint: "Endpoint | None" = None
    warn: Callable[[str], None] = log.warning
    """Told the first failure, and each answer that cannot be used."""

    calls: int = 0
    _seen: set[str] = field(default_factory=set)
    _warned: bool = False

    def __post_init__(self) -> None:
        for key, text in self.store.exchanges():
            self._charge(key, Exchange.from_json(text))

    def ask(self, messages: Messages, salt: str) -> str:
        """The model's reply to ``messages``. ``salt`` tells apart questions that are worded the same.

        Raises BudgetSpent or EndpointFailed.
        """
        key = _key(self.model, messages, salt)
        stored = self.store.exchange(key)
        if stored is not None:
            exchange = Exchange.from_json(stored)
            self._charge(key, exchange)
        else:
            exchange = self._call(key, messages, salt)
            # under a key of its own: a resume asks again what was refused, as nobody was paid for it
            kept = key if exchange.tokens or not exchange.error else f"{key}-{len(self._seen)}"
            self.store.add_exchange(kept, exchange.to_json())
            self._seen.add(kept)
        if exchange.error:
            raise EndpointFailed(exchange.error)
        return exchange.reply

    def _charge(self, key: str, exchange: Exchange) -> None:
        if key not in self._seen:
            self._seen.add(key)
            self.budget.spent += exchange.tokens

    def _call(self, key: str, messages: Messages, salt: str) -> Exchange:
        if self.endpoint is None:
            self._warn("a question is not in the record that is replayed: another proposer takes the turn")
            raise EndpointFailed("the exchange is not in the record that is replayed")
        worst = sum(len(m["content"]) for m in messages) // CHARS_PER_TOKEN + self.max_completion_tokens
        self.budget.reserve(worst)
        self.calls += 1
        used: int | None = None
        began = time.monotonic()
        try:
            reply, prompt_tokens, completion_tokens = self.endpoint.complete(
                self.model, messages, self.max_completion_tokens
            )
            used = prompt_tokens + completion_tokens
            return Exchange(
                key,
                self.model,
                tuple(messages),
                reply,
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                salt=salt,
                seconds=time.monotonic() - began,
            )
        except EndpointFailed as error:
            log.warning("the model endpoint failed: %s", error)
            self._warn(f"warning: the language model does not answer: {error}")
            used = None if error.billed else 0
            return Exchange(
                key,
                self.model,
                tuple(messages),
                error=str(error),
                prompt_tokens=worst if error.billed else 0,
                salt=salt,
                seconds=time.monotonic() - began,
            )
        finally:
            self.budget.settle(worst, used)

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            self.warn(text)


class Endpoint(Protocol):
    def complete(self, model: str, messages: Messages, max_tokens: int) -> tuple[str, int, int]:
        """(reply, prompt tokens, completion tokens). Raises EndpointFailed."""
        ...


class OpenAIEndpoint:
    """Any server that speaks the OpenAI chat protocol, through the ``openai`` client.

    The client itself retries 408, 409, 429 (honouring Retry-After) and 5xx with growing pauses.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        timeout_seconds: float = 120.0,
        retries: int = 3,
        note: Callable[[str], None] = log.warning,
    ) -> None:
        """``note`` is told each refusal that the client may try again."""
        import openai

        self._openai, self._note = openai, note
        parts = urlsplit(base_url)
        self._place = f"the model endpoint {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout_seconds,
            max_retries=retries,
            http_client=openai.DefaultHttpxClient(event_hooks={"response": [self._tell]}),
        )

    def _tell(self, response: Any) -> None:
        if response.status_code in (408, 409, 429) or response.status_code >= 500:
            wait = response.headers.get("Retry-After", "")
            asks = f", which asks for {wait} s" if wait.isdigit() else ""
            self._note(f"language model: HTTP {response.status_code} from {self._place}{asks}")

    def complete(self, model: str, messages: Messages, max_tokens: int) -> tuple[str, int, int]:
        arguments: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": max_tokens}
        try:
            answer = self._client.chat.completions.create(**arguments)
            choices = answer.choices
            reply = choices[0].message.content if choices else None
            usage = answer.usage
        except self._openai.APIStatusError as error:
            refused = 400 <= error.status_code < 500
            reason = f"HTTP {error.status_code} from {self._place}{ADVICE.get(error.status_code, '')}"
            if words := self._server_reason(error.body):
                reason += f" ({words})"
            raise EndpointFailed(reason, billed=not refused) from error
        except self._openai.APIError as error:
            unreached = type(error.__cause__).__name__ == "ConnectError"
            slow = isinstance(error, self._openai.APITimeoutError) and "no answer in time"
            name = "no connection to" if unreached else f"{slow or type(error).__name__} from"
            raise EndpointFailed(f"{name} {self._place}", billed=not unreached) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise EndpointFailed(f"no chat completion from {self._place}; does the address end in /v1?") from error
        if not isinstance(reply, str) or not reply:
            raise EndpointFailed(f"an answer without text from {self._place}")
        counts = [getattr(usage, f"{part}_tokens", -1) for part in ("prompt", "completion")]
        if not all(isinstance(count, int) and count >= 0 for count in counts):  # a server may say anything
            asked = sum(len(message["content"]) for message in messages)
            counts = [asked // CHARS_PER_TOKEN, len(reply) // CHARS_PER_TOKEN]
        return reply, counts[0], counts[1]

    def _server_reason(self, body: Any) -> str:
        """What a server says of its refusal, on one short line and without the key."""
        inner = body.get("error", body) if isinstance(body, dict) else body
        text = inner.get("message", "") if isinstance(inner, dict) else inner
        key = self._client.api_key
        plain = " ".join(str(text or "").replace(key, "…" if len(key) > 8 else key).split())
        return plain if len(plain) <= LONGEST_REASON else f"{plain[:LONGEST_REASON]}…"


def _key(model: str, messages: Messages, salt: str) -> str:
    text = json.dumps([model, messages, salt], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
