"""What a measured record says of itself."""

from datetime import UTC, datetime
from typing import Any

import torch
import triton


def stamp(command: str) -> dict[str, Any]:
    """Kind of figures, device, versions, date and command."""
    return {
        "kind": "measured",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
    }
