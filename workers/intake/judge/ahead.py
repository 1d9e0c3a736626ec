"""Work that forked processes begin before it is asked for, where a machine has processors for it."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Hashable, Iterable
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

T = TypeVar("T")

PROCESSORS = 8  # of fewer none is idle while a function is read in


class Ahead(Generic[T]):
    """Answers of ``work``. A key that was begun is answered by a process of its own, which knows what this one knew
    then.
    """

    def __init__(self, work: Callable[..., T]) -> None:
        self._work = work
        self._begun: dict[tuple[Hashable, ...], Connection] = {}

    def begin(self, keys: Iterable[tuple[Hashable, ...]]) -> None:
        """Begin to answer these, unless processors are few."""
        fork = multiprocessing.get_context("fork")
        for key in keys if len(os.sched_getaffinity(0)) >= PROCESSORS else ():
            self._begun[key], theirs = fork.Pipe(duplex=False)
            fork.Process(target=lambda to, key: to.send(self._work(*key)), args=(theirs, key), daemon=True).start()
            theirs.close()

    def has(self, *key: Hashable) -> bool:
        """Whether a process was begun for a key, and its answer not asked for."""
        return key in self._begun

    def __call__(self, *key: Hashable) -> T:
        """The answer to a key; made here if no process was begun for it, or that one failed."""
        with contextlib.suppress(KeyError, EOFError, OSError), self._begun.pop(key) as answers:
            answer: T = answers.recv()
            return answer
        return self._work(*key)
