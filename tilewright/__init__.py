"""tilewright evolves GPU and TPU kernels: correctness-gated, recorded, resumable.

    import tilewright as tw
    campaign = tw.run("quickstart", budget__evaluations=8)
    campaign.winner["fitness"], campaign.history, campaign.frame()
    library = tw.load_library("library")

In a checkout the folders beside this file are links to those at its top: one name is installed, and the tree stays
flat to read.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.api import (
        Budget,
        RecordedCampaign,
        RunningCampaign,
        capture,
        load_library,
        open_campaign,
        program,
        resume,
        run,
        start,
        tune,
    )
    from tilewright.evolve.errors import UserError

    __version__: str

__all__ = [
    "Budget",
    "RecordedCampaign",
    "RunningCampaign",
    "UserError",
    "__version__",
    "capture",
    "load_library",
    "open_campaign",
    "program",
    "resume",
    "run",
    "start",
    "tune",
]

_HOMES = {"UserError": "tilewright.evolve.errors"}


def __getattr__(name: str) -> Any:
    """Imports with the first use: a child process that runs candidates needs none of it."""
    if name == "__version__":
        from importlib import metadata

        return metadata.version("tilewright")
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "tilewright.api")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
