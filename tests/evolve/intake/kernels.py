"""Kernels as people write them, for tests: nothing of the dialect is asked of them."""

from pathlib import Path

HERE = Path(__file__).parent
TRITON = (HERE / "mine.txt").read_text(encoding="utf-8")


def write(folder: Path) -> Path:
    """The files ``mine.py`` and ``plain.py`` in a folder, as another system writes them: byte order mark, CRLF."""
    for name in ("mine", "plain"):
        text = (HERE / f"{name}.txt").read_bytes().replace(b"\n", b"\r\n")
        (folder / f"{name}.py").write_bytes(b"\xef\xbb\xbf" + text)
    return folder
