"""Kernels as people write them, for tests: nothing of the dialect is asked of them."""

from pathlib import Path

HERE = Path(__file__).parent
TRITON = (HERE / "mine.txt").read_text(encoding="utf-8")


def write(folder: Path) -> Path:
    """The files ``mine.py`` and ``plain.py`` in a folder."""
    for name in ("mine", "plain"):
        (folder / f"{name}.py").write_bytes((HERE / f"{name}.txt").read_bytes())
    return folder
