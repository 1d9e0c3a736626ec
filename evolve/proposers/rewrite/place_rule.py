"""A base of rules that look at one kernel of a source at a time, find places in it and edit one of them."""

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, RewrittenKernel, Site, Unsupported
from tilewright.evolve.proposers.rewrite.edit import Edit


class NamedView(Protocol):
    """One kernel of a source, as the rules of its language read it."""

    @property
    def name(self) -> str: ...


View = TypeVar("View", bound=NamedView)
Place = TypeVar("Place")


class PlaceRule(Generic[View, Place]):
    """Finds places in every kernel of a source (``find``) and edits one place (``change``).

    ``Place`` is what ``find`` hands to ``change``.
    """

    name: str
    why: str
    language: Language

    def views(self, kernel: KernelSource) -> Iterable[View]:
        """The kernels that the rule looks at. Raises Unsupported where none can be followed."""
        raise NotImplementedError

    def find(self, view: View) -> Iterable[tuple[str, Place]]:
        """(description, place) of every place in ``view``. Raises Unsupported."""
        raise NotImplementedError

    def change(self, edit: Edit, view: View, payload: Place) -> bool | None:
        """Collect the edits of one place; False where a closer look shows that the rule does not apply."""
        raise NotImplementedError

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        """Places of all kernels; raises Unsupported where a kernel cannot be followed and no other has a place."""
        found: list[Site] = []
        problem: Unsupported | None = None
        for view in self.views(kernel):
            try:
                for number, (description, payload) in enumerate(self.find(view)):
                    key = f"{view.name}/{number}/{description}"[:120]
                    found.append(Site(key, f"{view.name}: {description}", (view, payload)))
            except Unsupported as error:
                problem = error
        if problem is not None and not found:
            raise problem
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        """The kernel with the edits of ``change`` at ``site``; None where nothing changes."""
        view, payload = site.payload
        edit = Edit(kernel)
        return None if self.change(edit, view, payload) is False else edit.finish()
