"""A headless Chromium for tests. Needs the ``dev`` extra and a Chromium on the PATH."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing_browser() -> str | None:
    """Why no browser can be driven here, or None."""
    if chromium() is None:
        return f"none of {', '.join(CHROMIUM)} is on the PATH"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed (extra 'dev')"
    return None


def chromium() -> str | None:
    return next((path for name in CHROMIUM if (path := shutil.which(name))), None)


@dataclass
class Watched:
    """A page with what it complained about and what it asked the network for."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def browser_page(
    width: int = 1280,
    height: int = 900,
    scheme: Literal["light", "dark"] = "light",
    storage: dict[str, str] | None = None,
) -> Iterator[Watched]:
    """One page in a fresh headless browser. ``storage`` is put into the local storage of every page opened."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), headless=True, args=flags)
        try:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            for key, value in (storage or {}).items():
                context.add_init_script(f"try {{ localStorage.setItem({key!r}, {value!r}) }} catch (e) {{}}")
            page = context.new_page()
            watched = Watched(page)
            page.on("console", lambda m: watched.errors.append(m.text) if m.type == "error" else None)
            page.on("pageerror", lambda error: watched.errors.append(str(error)))
            page.on("request", lambda request: watched.requests.append(request.url))
            yield watched
        finally:
            browser.close()
