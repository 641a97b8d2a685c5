"""A server of the built site, and a browser if there is one."""

import functools
import http.server
import importlib.util
import os
import pathlib
import shutil
import threading

import pytest

SITE = pathlib.Path(__file__).parents[2] / "build" / "site"
#: Names of browsers that Playwright can drive, as they are installed.
NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
#: No sandbox, as root in a container; nothing is asked of the network.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-sync",
    "--no-first-run",
)


def browser_path():
    """Return the path of a browser, or None; BROWSER_PATH names another."""
    named = [os.environ.get("BROWSER_PATH"), *map(shutil.which, NAMES)]
    return next((path for path in named if path), None)


HAS_BROWSER = bool(importlib.util.find_spec("playwright") and browser_path())
# Where there is no browser, test_pages.py tests what the pages hold.
collect_ignore = [] if HAS_BROWSER else ["test_browser.py"]


def pytest_terminal_summary(terminalreporter):
    with_ = browser_path() if HAS_BROWSER else "no browser: the pages alone"
    terminalreporter.write_line(f"tested with {with_}")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *arguments):
        """Say nothing where the browser has left a page before it was sent."""


@pytest.fixture(scope="session")
def address():
    """Where the site is served while the tests run, with a slash."""
    handler = functools.partial(_Quiet, directory=SITE)
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=browser_path(),
            args=list(ARGUMENTS),
            timeout=10 * 60 * 1000,
        )
        yield started
        started.close()
