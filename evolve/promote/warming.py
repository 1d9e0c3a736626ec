"""``tilewright library warm``: launch plans made ahead, kept in versions.

Plans are made by the library's own ``warm`` in a child process that sees the library alone. They become part of a new
version of their operator: its receipt vouches for them, and a rollback takes them back. Sources, table and figures are
those of the version before.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tilewright.evolve.errors import UserError
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.library import plan_shelf, warm

WARM_SECONDS = 3600


def warm_library(
    writer: LibraryWriter, shapes: Path | None, device: str, say: Callable[[str], None]
) -> tuple[list[str], bool]:
    """Make plans and write them into new versions: (operators that got some, whether every shape did).

    ``shapes``: a file as ``runtime.warm`` reads it; None: the verified shapes. Raises UserError.
    """
    writer.named()
    if shapes is not None:
        try:
            warm.read_shapes(shapes.read_text(encoding="utf-8"))
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            raise UserError(f"--shapes: {shapes}: {error}.") from error
    with tempfile.TemporaryDirectory() as folder:
        packs = Path(folder) / "packs"
        command = [sys.executable, "-m", f"{writer.package}.warm", "--device", device, "--packs", str(packs)]
        command += ["--shapes", str(shapes.absolute())] if shapes is not None else []
        environment = writer.environment(**{plan_shelf.CACHE_VARIABLE: str(Path(folder) / "cache")})
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WARM_SECONDS, env=environment, check=False
        )
        for line in done.stdout.splitlines():
            say(line)
        if done.returncode not in (0, 1):
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise UserError(f"library warm: the compiling process failed: {last}.")
        changed = []
        for place in sorted(packs.glob("*")) if packs.exists() else ():
            operator = place.name.replace("__", "/", 1)
            for path in sorted(place.iterdir()):
                add_plans(writer, operator, path.name, path.read_bytes())
            changed.append(operator)
    return changed, done.returncode == 0


def add_plans(writer: LibraryWriter, operator: str, name: str, data: bytes) -> str:
    """A new version of an operator with the plans of a pack beside those it has; its id. Raises LibraryError."""
    with writer.writing():
        current, receipt, dispatch = writer.version(operator)
        files = {n: writer.file(operator, current, n, sha256) for n, sha256 in receipt["files"].items()}
        fresh = plan_shelf.Pack(data, name)
        plans = fresh.everything()
        if name in files:
            plans = {**plan_shelf.Pack(files[name], name).everything(), **plans}
        files[name] = plan_shelf.packed(plans, fresh.toolchain, fresh.verified)
        packs = dict(receipt.get("plans", {}))
        packs[name] = {
            "toolchain": fresh.toolchain,
            "count": len(plans),
            "digests": sorted({plan.digest for plan in plans.values()}),
            "verified": fresh.verified,
        }
        kept = {key: value for key, value in receipt.items() if key != "files"}
        note = {"action": "warm", "plans": len(plans), "target": next(iter(dispatch["targets"]))}
        return writer.add(operator, files, {**kept, "plans": packs}, note)
