"""Proposals from a language model: what rules cannot think of, under the same gates as everything else."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.evolve.proposers.llm import prompt as llm_prompt
from tilewright.evolve.proposers.llm.client import BudgetSpent, ChatClient, EndpointFailed, Messages
from tilewright.evolve.proposers.llm.edit import EditError, ReplyEdit, read_reply
from tilewright.evolve.proposers.rewrite.proposer import inherit
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space, SpaceError
from tilewright.fitness.evaluation import Evaluation, Verdict

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
                messages = llm_prompt.again(messages, reply, str(error))
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
            raise EditError("the module computes the same as one that was tried before")
        return Proposal(genome, (parent.genome.id,), Mutation(self.kind, self.name, edit.summary))

    def _mendable(self, history: History) -> tuple[Candidate, Evaluation] | None:
        """The newest failed child of a rewrite or of a model that nobody has tried to mend."""
        tried = {parent for c in history.candidates if c.mutation.kind is self.kind for parent in c.parents}
        for candidate, evaluation in reversed(history.evaluated):
            rewritten = candidate.mutation.kind in (MutationKind.LLM, MutationKind.REWRITE)
            if rewritten and evaluation.verdict in _MENDABLE and candidate.genome.id not in tried:
                return candidate, evaluation
        return None
