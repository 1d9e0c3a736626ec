"""Proposals from a language model: what rules cannot think of, under the same gates as everything else.

A model replies with search/replace blocks or a whole module. The reply is untrusted text: nothing of it is ever
executed here, and a block that does not match the parent exactly once is an error, since applying the rest would be
another kernel than the one described.
"""

import ast
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.evolve.proposers.llm import prompt as llm_prompt
from tilewright.evolve.proposers.llm.client import BudgetSpent, ChatClient, EndpointFailed, Messages
from tilewright.evolve.proposers.rewrite.proposer import inherit
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space, SpaceError
from tilewright.fitness.evaluation import Evaluation, Verdict

MAX_REPLY_CHARS = 200_000

_SEARCH = re.compile(r"<{5,9} SEARCH\n")
_DIVIDER = re.compile(r"={5,9}\n")
_REPLACE = re.compile(r">{5,9} REPLACE[ \t]*\n?")
_MARKER = re.compile(r"^(?:<{5,9} SEARCH|>{5,9} REPLACE)[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n")
_FENCE_END = re.compile(r"```[ \t]*\n?")
_SUMMARY = re.compile(r"^SUMMARY:[ \t]*(.+)$", re.MULTILINE)


class EditError(ValueError):
    """The reply holds no usable edit. The message is one sentence a model can act on."""


@dataclass(frozen=True)
class ReplyEdit:
    """A new module and one line about what changed."""

    source: str
    summary: str


def read_reply(reply: str, parent: str) -> ReplyEdit:
    """The module a reply describes, given its parent's source.

    Search/replace blocks win over a fenced whole module. Raises EditError.
    """
    if len(reply) > MAX_REPLY_CHARS:
        raise EditError(f"the reply has {len(reply)} characters; at most {MAX_REPLY_CHARS} are read")
    reply = reply.replace("\r\n", "\n")
    source = _apply_blocks(reply, parent) if _MARKER.search(reply) else _whole_module(reply)
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.args[0] if error.args else type(error).__name__
        raise EditError(f"the edited module does not parse: {what} at line {getattr(error, 'lineno', '?')}") from error
    summary = _SUMMARY.search(reply)
    return ReplyEdit(source, summary[1].strip()[:200] if summary else "no summary given")


def _apply_blocks(reply: str, parent: str) -> str:
    blocks = _blocks(reply)
    if len(_MARKER.findall(reply)) != 2 * len(blocks):
        raise EditError("a SEARCH/REPLACE block is not closed: each needs SEARCH, ======= and REPLACE lines")
    source = parent
    for number, (search, replace) in enumerate(blocks, start=1):
        if not search.strip():
            raise EditError(f"block {number} has an empty SEARCH part")
        found = source.count(search)
        if found != 1:
            where = "is not in the module" if found == 0 else f"occurs {found} times"
            raise EditError(f"the SEARCH text of block {number} {where}; it must occur exactly once")
        source = source.replace(search, replace)
    return source


def _blocks(reply: str) -> list[tuple[str, str]]:
    """(search, replace) of every whole block, in one pass over the lines."""
    blocks: list[tuple[str, str]] = []
    parts: list[list[str]] = []
    for line in _lines(reply):
        if not parts:
            if _SEARCH.fullmatch(line):
                parts = [[]]
        elif len(parts) == 1 and _DIVIDER.fullmatch(line):
            parts.append([])
        elif len(parts) == 2 and _REPLACE.fullmatch(line):
            blocks.append(("".join(parts[0]), "".join(parts[1])))
            parts = []
        else:
            parts[-1].append(line)
    return blocks


def _fences(reply: str) -> list[str]:
    """What stands between fences, in one pass over the lines."""
    found: list[str] = []
    inside: list[str] | None = None
    for line in _lines(reply):
        if inside is None:
            inside = [] if _FENCE.fullmatch(line) else None
        elif _FENCE_END.fullmatch(line):
            found.append("".join(inside))
            inside = None
        else:
            inside.append(line)
    return found


def _lines(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends a line."""
    *whole, last = text.split("\n")
    return [*(line + "\n" for line in whole), last]


def _whole_module(reply: str) -> str:
    fences = _fences(reply)
    if not fences:
        raise EditError("the reply has neither a SEARCH/REPLACE block nor a fenced Python module")
    return max(fences, key=len)


log = logging.getLogger(__name__)

ATTEMPTS = 2
"""Answers asked for one proposal: the first, and one more that is shown what was wrong with it."""

CONVERSATIONS = 4
"""Begun for one proposal by a model that proposes alone: without an answer that can be used the campaign would end."""

MEND_SHARE = 0.25
"""Share of proposals spent on mending a failed child, when there is one."""

_MENDABLE = (Verdict.REJECTED, Verdict.COMPILE_ERROR, Verdict.RESOURCE_ERROR, Verdict.INCORRECT)


@dataclass
class LlmProposer:
    """Implements ``Proposer``. ``violations`` is the dialect check: reasons why a source is not allowed."""

    client: ChatClient
    contract: llm_prompt.Contract
    archive: Archive
    space_of: Callable[[str], Space]
    violations: Callable[[str], Sequence[str]]
    name: str = "llm"
    kind: MutationKind = MutationKind.LLM
    alone: bool = False
    """Whether nobody else proposes."""

    _spent: bool = field(default=False)

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        """A new child, or None when the model has none, the endpoint fails, or the budget is spent."""
        failed = self._mendable(history)
        if failed is not None and rng.random() < MEND_SHARE:
            parent = failed[0]
            messages = llm_prompt.mend(self.contract, history, *failed)
        else:
            # alone, it is asked from the first seed on: an island that is still empty borrows another's
            around = [(island + step) % self.archive.islands for step in range(self.archive.islands)]
            chosen = next(filter(None, (self.archive.select(place, rng) for place in around)), None)
            if chosen is None:
                return None
            parent = chosen.candidate
            messages = llm_prompt.improve(self.contract, history, parent)
        return self._converse(history, parent, messages)

    def _converse(self, history: History, parent: Candidate, messages: Messages) -> Proposal | None:
        index, first = len(history.candidates), messages
        for attempt in range(ATTEMPTS * (CONVERSATIONS if self.alone else 1)):
            if attempt % ATTEMPTS == 0:
                messages = first
            try:
                reply = self.client.ask(messages, f"{index}.{attempt}")
            except BudgetSpent as error:
                if not self._spent:
                    log.warning("no more model calls: %s", error)
                self._spent = True
                return None
            except EndpointFailed:
                return None
            try:
                edit = read_reply(reply, parent.genome.source)
                return self._proposal(history, parent, edit)
            except EditError as error:
                log.info("model reply for candidate %d not used: %s", index, error)
                self.client.warn(f"language model: an answer for candidate {index} was refused: {error}")
                messages = llm_prompt.retry_messages(messages, reply, str(error))
        return None

    def _proposal(self, history: History, parent: Candidate, edit: ReplyEdit) -> Proposal:
        """Raises EditError when the edited module is not a new, legal genome."""
        if reasons := self.violations(edit.source):
            raise EditError(f"the module is not allowed: {reasons[0]}")
        try:
            genome = Genome(edit.source, inherit(self.space_of(edit.source), parent.genome.params))
        except SpaceError as error:
            raise EditError(str(error).rstrip(".")) from error
        if genome.id in history:
            raise EditError("this module, with these parameters, was tried before")
        return Proposal(genome, (parent.genome.id,), Mutation(self.kind, self.name, edit.summary))

    def _mendable(self, history: History) -> tuple[Candidate, Evaluation] | None:
        """The newest failed child of a rewrite or of a model that nobody has tried to mend."""
        tried = {parent for c in history.candidates if c.mutation.kind is self.kind for parent in c.parents}
        for candidate, evaluation in reversed(history.evaluated):
            rewritten = candidate.mutation.kind in (MutationKind.LLM, MutationKind.REWRITE)
            if rewritten and evaluation.verdict in _MENDABLE and candidate.genome.id not in tried:
                return candidate, evaluation
        return None
