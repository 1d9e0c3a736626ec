"""From a campaign's configuration to its portfolio of proposers."""

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from tilewright.evolve.campaign.config import LlmConfig
from tilewright.evolve.campaign.resolve import Resolved
from tilewright.evolve.campaign.transfer import LeadsFirst, leads_of, read_earlier, records_of, related_campaigns
from tilewright.evolve.errors import UserError
from tilewright.evolve.proposers.crossover import ParameterCrossover, SourceCrossover
from tilewright.evolve.proposers.llm.client import (
    BudgetSpent,
    ChatClient,
    Exchange,
    ExchangeStore,
    OpenAIEndpoint,
    TokenBudget,
)
from tilewright.evolve.proposers.llm.prompt import Contract, facts_of
from tilewright.evolve.proposers.llm.proposer import LlmProposer
from tilewright.evolve.proposers.niches import NicheSearch
from tilewright.evolve.proposers.portfolio import Portfolio
from tilewright.evolve.proposers.rewrite.proposer import RewriteProposer, Rewrites
from tilewright.evolve.proposers.rewrite.registry import absent_rules, openings
from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, ParameterProposer
from tilewright.evolve.proposers.surrogate.proposer import SurrogateProposer
from tilewright.evolve.proposers.surrogate.records import SourceRecords
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import POINTS, Proposer, Searcher
from tilewright.evolve.record.home import JOURNAL, find_campaign
from tilewright.evolve.record.journal import TOKENS_SPENT, Journal
from tilewright.fitness import dialect
from tilewright.seeds.operator import HasContract

KEY_VARIABLES = ("TILEWRIGHT_LLM_API_KEY", "OPENAI_API_KEY")

_Builder = Callable[[Archive, KnownSpaces, Sequence[SourceRecords]], Proposer]

_BUILDERS: dict[str, _Builder] = {
    "parameters": lambda archive, spaces, _: ParameterProposer(archive, spaces),
    "surrogate": lambda _, spaces, earlier: SurrogateProposer(spaces, earlier),
    "crossover": lambda archive, spaces, _: ParameterCrossover(archive, spaces),
    "rewrite": lambda archive, spaces, _: Rewrites(archive, spaces.space_of, violations),
    "source_crossover": lambda archive, spaces, _: SourceCrossover(archive, spaces.space_of, violations),
}


def build_searcher(
    resolved: Resolved, archive: Archive, journal: Journal, home: Path, note: Callable[[str], None] = lambda text: None
) -> Searcher:
    """The proposers that the configuration names, over the campaign's archive. ``note`` shows a warning.

    Raises UserError.
    """
    search = resolved.config.search
    assert search.transfer != "auto"  # see ``with_earlier``
    sources = {start.genome.source for start in resolved.starts}
    earlier = read_earlier(home, search.transfer, resolved.config.operator, sources)
    records = records_of(earlier, resolved.space)
    if search.transfer and not records:
        raise UserError("search.transfer: these campaigns have no point that a seed's space knows.")
    spaces = KnownSpaces(resolved.space)
    without = {*search.without_rules, *absent_rules(resolved.target)}
    proposers = [_BUILDERS[name](archive, spaces, records) for name in search.proposers]
    for proposer in proposers:
        if isinstance(proposer, Rewrites):
            proposer.rules = RewriteProposer(without=tuple(without))
    if resolved.config.llm is not None:
        client = _chat_client(resolved.config.llm, journal, home, note)
        client.warn = note
        asks = LlmProposer(client, _contract(resolved), archive, resolved.space, violations)
        asks.alone = not proposers
        proposers.append(asks)
    if not proposers:
        raise UserError("search.proposers: needs at least one proposer when no llm proposes.")
    searcher: Searcher = Portfolio(proposers)
    if search.niches and "rewrite" in search.proposers:
        searcher = NicheSearch(searcher, spaces, violations, openings() - without)
    if earlier:
        searcher = LeadsFirst(leads_of(earlier, resolved.space), searcher)
    if resolved.given:
        searcher = LeadsFirst(resolved.given, searcher, POINTS, "a point given with its seed")
    return searcher


def with_earlier(resolved: Resolved, home: Path) -> Resolved:
    """With the campaigns that ``search.transfer: auto`` stands for, so that a resume uses the same.
    Raises UserError for a campaign that is named and unknown."""
    config = resolved.config
    if config.search.transfer != "auto":
        for named in config.search.transfer:
            find_campaign(home, named)
        return resolved
    sources = {start.genome.source for start in resolved.starts}
    if config.llm is not None and config.llm.replay is not None:
        found = _transfer_of(_recording(config.llm.replay, home))
    else:
        found = related_campaigns(home, config.operator, config.target, sources, resolved.space)
    search = config.search.model_copy(update={"transfer": found})
    return replace(resolved, config=config.model_copy(update={"search": search}))


def _transfer_of(recording: Path) -> tuple[str, ...]:
    """The earlier campaigns that a recorded one started from: its replay starts from the same."""
    with Journal(recording) as journal:
        search = (journal.meta("config") or {}).get("search") or {}
    named = search.get("transfer") or ()
    return () if isinstance(named, str) else tuple(named)


def _recording(source: str, home: Path) -> Path:
    """The journal of a recorded campaign: a path, or an id."""
    return Path(source) if Path(source).is_file() else find_campaign(home, source) / JOURNAL


def violations(source: str) -> list[str]:
    """Why a source is not of the dialect; empty when it is. A source with a ``launch`` is a Triton kernel's."""
    entry = "launch" if "\ndef launch(" in source else "build"
    return [f"line {violation.line}: {violation.what}" for violation in dialect.check(source, entry=entry)]


@dataclass(frozen=True)
class Replay:
    """Answers from a recorded campaign, copied into the journal of the one that replays it."""

    own: ExchangeStore
    recorded: dict[str, str]

    def exchanges(self) -> Iterator[tuple[str, str]]:
        return self.own.exchanges()

    def exchange(self, key: str) -> str | None:
        text = self.own.exchange(key)
        if text is None and (text := self.recorded.get(key)) is not None:
            self.own.add_exchange(key, text)
        return text

    def add_exchange(self, key: str, text: str) -> None:
        self.own.add_exchange(key, text)


@dataclass
class RecordedBudget(TokenBudget):
    """One whose end is in the journal, once."""

    journal: Journal | None = None

    def reserve(self, tokens: int) -> None:
        """Raises BudgetSpent."""
        try:
            super().reserve(tokens)
        except BudgetSpent as error:
            if self.journal is not None:
                self.journal.add_event(TOKENS_SPENT, said=str(error))
                self.journal = None
            raise


def _chat_client(config: LlmConfig, journal: Journal, home: Path, note: Callable[[str], None]) -> ChatClient:
    budget = RecordedBudget(config.total_tokens, journal=journal)
    if config.replay is not None:
        return _replaying(config.replay, config.model, journal, home, budget)
    assert config.model is not None
    key = next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
    if key is None and _on_this_machine(config.base_url):
        key = "none"  # a server of one's own asks for none, and the client will not go without
    if key is None:
        raise UserError(f"llm: no key for {config.base_url}; set {' or '.join(KEY_VARIABLES)} in the environment.")
    try:
        endpoint = OpenAIEndpoint(config.base_url, key, config.timeout_seconds, config.retries, note)
    except ModuleNotFoundError as error:
        raise UserError("llm: the openai client is not installed; pip install 'tilewright[llm]'.") from error
    place = urlsplit(config.base_url)
    try:  # before the first question, which waits for a seed's figures
        if not getproxies():
            port = place.port or (80 if place.scheme == "http" else 443)
            socket.create_connection((place.hostname or "", port), 5).close()
    except OSError as error:
        note(f"warning: no connection to the model endpoint {config.base_url}: {error.strerror or error}")
    return ChatClient(journal, config.model, budget, config.completion_tokens, endpoint)


def _on_this_machine(url: str) -> bool:
    """Whether a server is this machine's, or one of its own network: an address there, or a name without a domain."""
    host = urlsplit(url).hostname or ""
    try:
        return not ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal"))


def _replaying(source: str, model: str | None, journal: Journal, home: Path, budget: TokenBudget) -> ChatClient:
    """A client that only knows what the campaign ``source`` (an id or a journal's path) was answered."""
    with Journal(_recording(source, home)) as recording:
        recorded = dict(recording.exchanges())
        asked = (recording.meta("config") or {}).get("llm") or {}
    if not recorded:
        raise UserError(f"llm.replay: campaign {source} asked no model; there is nothing to replay.")
    model = model or asked.get("model") or Exchange.from_json(next(iter(recorded.values()))).model
    return ChatClient(Replay(journal, recorded), model, budget)


def _contract(resolved: Resolved) -> Contract:
    operator = resolved.operator
    contract = operator.contract if isinstance(operator, HasContract) else ""
    text = contract or sys.modules[type(operator).__module__].__doc__ or operator.name
    shapes = tuple(workload.id for workload in resolved.suite.workloads)
    checked = ", ".join(workload.id for workload in resolved.suite.check)
    facts = (*facts_of(resolved.target, operator.gates), f"Parameters must be legal at these shapes, too: {checked}.")
    return Contract(operator.name, text.strip(), resolved.target.label, shapes, facts)
