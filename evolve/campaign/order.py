"""Orders in which a campaign takes up what its workers bring (see ``evolve.campaign.loop``)."""

from __future__ import annotations

from enum import StrEnum


class Order(StrEnum):
    """``index``: as proposed. ``arrival``: as they come."""

    INDEX = "index"
    ARRIVAL = "arrival"
