"""What of a campaign starts before the rest: the device's process and the compiler's, which take longest.

Imports little, since everything else waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tilewright.evolve.campaign.config import CampaignConfig
from tilewright.evolve.campaign.target_names import named_target
from tilewright.evolve.errors import UserError
from tilewright.fitness.targets import UnknownTarget, load_target
from tilewright.workers.device.warm import WarmDevice, started


@contextlib.contextmanager
def device_of(config: CampaignConfig) -> Iterator[WarmDevice | None]:
    """The device that a campaign on this machine measures on, being started; None where there is none to start.

    What is wrong with the target the campaign itself will say.
    """
    with contextlib.ExitStack() as stack:
        device = None
        if config.workers.address is None:
            with contextlib.suppress(UserError, UnknownTarget):
                device = stack.enter_context(started(load_target(named_target(config.target))))
        yield device
