"""``tilewright library``: list, verify, roll back and clean what has been promoted."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tilewright.evolve.campaign.targets import require_usable
from tilewright.evolve.errors import UserError
from tilewright.evolve.promote.library_writer import MAKING, TEMPORARY, Finding, LibraryError, LibraryWriter
from tilewright.evolve.report.bill import counted
from tilewright.fitness.targets import UnknownTarget, load_target
from tilewright.library import plan_shelf, store, warm

TEST_SECONDS = 600


def list_lines(writer: LibraryWriter) -> Iterator[str]:
    """One line for each operator and target."""
    for operator in writer.operators():
        index = writer.index(operator)
        if index["current"] is None:
            yield f"{operator}: rolled back, {len(writer.versions(operator))} versions kept"
            continue
        version, receipt, dispatch = writer.version(operator)
        for target, entry in receipt["targets"].items():
            gain, kernels = entry["gain"], dispatch["targets"][target]["kernels"]
            forced = f", forced: {entry['forced']}" if entry["forced"] else ""
            yield (
                f"{operator} version {version} for {target}: {counted(len(kernels), 'kernel')} over "
                f"{counted(len(dispatch['targets'][target]['regions']), 'shape')}, {gain['value']:.3f} x "
                f"{gain['incumbents']} "
                f"({gain['kind']}), campaign {entry['campaign']['id']}{forced}"
            )


# -- verify ------------------------------------------------------------------------------------------


def check(writer: LibraryWriter, operator: str | None, *, files_only: bool) -> Iterator[Finding]:
    """Every finding on the current versions: files against hashes, toolchain, and not ``files_only`` the kernels
    against their recipe. ``recheck`` repeats the receipts' figures."""
    names = writer.named(operator)
    if operator and operator not in writer.operators():
        raise LibraryError(f"{operator}: nothing is promoted in {writer.root}.")
    for fault in writer.runtime_faults():
        yield Finding(False, fault)
    for name in names:
        yield from _check_operator(writer, name, files_only=files_only)


def _check_operator(writer: LibraryWriter, operator: str, *, files_only: bool) -> Iterator[Finding]:
    try:
        version, receipt, dispatch = writer.version(operator)
        for name, sha256 in receipt["files"].items():
            writer.file(operator, version, name, sha256)
    except LibraryError as error:
        yield Finding(False, str(error))
        return
    yield Finding(True, f"{operator}: {len(receipt['files'])} files of version {version} are what was promoted.")
    folder = writer.place(operator) / "versions" / version
    strangers = {p.name for p in folder.iterdir() if p.is_file()} - set(receipt["files"]) - {store.RECEIPT}
    for name in sorted(strangers):
        yield Finding(False, f"{operator}: {name} in version {version} is in no receipt.")
    for target, entry in dispatch["targets"].items():
        fault = store.toolchain_fault(entry["toolchain"])
        if fault and files_only and not _runs_here(target):
            yield Finding(
                True, f"{operator}: its kernels for {target} were {fault}; this machine cannot run them with any."
            )
        elif fault:
            yield Finding(
                False,
                f"{operator}: its kernels for {target} were {fault}; install the verified version, or verify them on "
                f"this one with 'tilewright library recheck --target {target}'.",
            )
    if not files_only:
        yield _run_checks(writer, operator)


def _runs_here(target: str) -> bool:
    """Whether this machine can run a target's kernels: elsewhere its toolchain says nothing of the library."""
    try:
        require_usable(load_target(target), remote=False)
    except (UserError, UnknownTarget):
        return False
    return True


def _run_checks(writer: LibraryWriter, operator: str) -> Finding:
    command = [sys.executable, "-m", f"{writer.package}.checks", operator]
    environment = writer.environment(TRITON_INTERPRET="1", JAX_PLATFORMS="cpu")
    done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_SECONDS, env=environment, check=False)
    lines = done.stdout.splitlines()
    if done.returncode == 0:
        skipped = sum(": skipped: " in line for line in lines)
        rest = f", {skipped} need another device" if skipped else ""
        return Finding(True, f"{operator}: its kernels keep the recipe here ({len(lines) - skipped} checks{rest}).")
    faults = [line for line in lines if ": failed: " in line] or done.stderr.strip().splitlines()[-1:]
    return Finding(False, f"{operator}: a check fails: {(faults or ['no reason given'])[0]}.")


# -- changes -----------------------------------------------------------------------------------------


def rollback(writer: LibraryWriter, operator: str, to: str | None, reason: str | None) -> tuple[str | None, str | None]:
    """Make the version before the current one (or ``to``) current again; (from, to). Raises LibraryError."""
    writer.named()
    with writer.writing():
        index = writer.index(operator)
        now = index["current"]
        if now is None and to is None:
            raise LibraryError(
                f"{operator}: nothing is promoted now, so nothing can be rolled back; --to VERSION brings one back."
            )
        if to is not None:
            target: str | None = writer.version(operator, to)[0]
        else:
            made = [e for e in index["history"] if e["version"] == now and e.get("action") in MAKING]
            target = made[-1]["previous"] if made else now
            if target == now or (target is not None and target not in writer.versions(operator)):
                raise LibraryError(
                    f"{operator}: this library holds no version before {now}, so nothing can be rolled back."
                )
        writer.point(operator, target, {"action": "rollback", "reason": reason})
    return now, target


def collect(writer: LibraryWriter, keep: int) -> list[str]:
    """Remove versions that are neither current nor among the last ``keep`` promoted, and unfinished writing."""
    removed, names = [], writer.named()
    with writer.writing():
        for operator in names:
            index = writer.index(operator)
            promoted = [e["version"] for e in index["history"] if e.get("action") in MAKING]
            kept = {index["current"], *list(dict.fromkeys(reversed(promoted)))[:keep]}
            for folder in (writer.place(operator) / "versions").iterdir():
                if folder.name not in kept:
                    shutil.rmtree(folder)
                    removed.append(f"{operator} {folder.name}")
        for part in writer.root.rglob(f"{TEMPORARY}*"):
            if part.is_file():
                part.unlink()
        writer.update_runtime()
    return removed


WARM_SECONDS = 3600


def warm_library(
    writer: LibraryWriter, shapes: Path | None, device: str, say: Callable[[str], None]
) -> tuple[list[str], bool]:
    """Launch plans made ahead and kept in new versions: (operators that got some, whether every shape did).

    The library's own ``warm`` makes them in a child process that sees the library alone. The new version's receipt
    vouches for them, and a rollback takes them back; sources, table and figures are those of the version before.
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
