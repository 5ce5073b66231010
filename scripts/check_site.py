"""Checks the built site in a browser: python scripts/check_site.py. Needs the extra [browser], and a Chromium.

Follows every internal link from the first page, searches for ten terms, and takes screenshots of pages in light and dark. The
exit status is 1 where a page cannot be reached, a script fails, a request fails, or a term is not found; 2 where there is no
browser that starts.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

SITE = Path(__file__).resolve().parent.parent / "build" / "site"
# what a newcomer would type, and a word of the page that should come up
TERMS = {
    "install": "Start", "placement": "Many devices", "checkpoint": "Job functions", "pytorch": "PyTorch", "onnx": "Export",
    "conv2d": "flow", "early stopping": "Training", "ofrecord": "Data", "profile": "Looking inside", "oneflow serve": "Serving",
}  # fmt: skip
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 120_000  # milliseconds: a busy machine is no defect of the site
TYPES_INTO_AN_INPUT = """() => {
    let element = document.activeElement;
    while (element && element.shadowRoot) element = element.shadowRoot.activeElement;  // the dialog has a tree of its own
    return element && element.tagName === "INPUT";
}"""
SCREENSHOTS = (
    "index.html", "start.html", "from-pytorch.html", "devices.html", "api/flow.nn.html", "command-line.html", "examples.html",
    "performance.html", "tutorial-results.html", "notebooks/mnist_in_five_minutes.html", "notebooks/many_devices_and_plans.html",
)  # fmt: skip


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def failed(request: Any) -> list[str]:
    """The line about a request that failed; none where the browser itself gave it up, to go to another page."""
    return [] if "ERR_ABORTED" in str(request.failure) else [f"request: {request.url}: {request.failure}"]


def crawl(page: Any, start: str, problems: list[str]) -> int:
    """Visits every page of the site that a link leads to. Returns how many."""
    waiting, seen = [start], {start}
    while waiting:
        url = waiting.pop()
        answer = page.goto(url, wait_until="domcontentloaded")
        if answer is None or not answer.ok:
            problems.append(f"{url}: {answer and answer.status}")
            continue
        for link in page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)"):
            target = urldefrag(link)[0]
            if target.startswith(start.rsplit("/", 1)[0]) and target.endswith((".html", "/")) and target not in seen:
                seen.add(target)
                waiting.append(target)
    return len(seen)


def search(page: Any, start: str, problems: list[str]) -> None:
    """Types each term into the search of the first page."""
    for term, title in TERMS.items():
        page.goto(start)
        page.get_by_role("button", name="Search").first.click()
        page.wait_for_function(TYPES_INTO_AN_INPUT)
        page.keyboard.type(term, delay=20)
        try:
            page.wait_for_function(
                "title => [...document.querySelectorAll('*')].some(e => e.shadowRoot"  # the search dialog has a tree of its own
                " && [...e.shadowRoot.querySelectorAll('a')].some(a => a.textContent.toLowerCase().includes(title)))",
                arg=title.lower(), timeout=TIMEOUT / 2,
            )  # fmt: skip
        except Exception as error:  # playwright's own classes are imported where they are used
            problems.append(f"search for {term!r}: {str(error).splitlines()[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    parser.add_argument("--browser", default=found, help="path of a Chromium (default: the one on the PATH)")
    parser.add_argument("--site", type=Path, default=SITE, help="what build_docs.py has written (%(default)s)")
    parser.add_argument("--screenshots", type=Path, help="where screenshots are written (default: beside the site)")
    options = parser.parse_args()
    if options.browser is None:
        parser.error("there is no Chromium on the PATH; name one with --browser")
    if not (options.site / "index.html").is_file():
        parser.error(f"there is no site in {options.site}; build it with scripts/build_docs.py")
    screenshots = options.screenshots or options.site.parent / "screenshots"
    from playwright.sync_api import sync_playwright

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(options.site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    start = f"http://127.0.0.1:{server.server_port}/index.html"
    problems: list[str] = []
    screenshots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        try:
            flags = ["--no-sandbox", "--disable-dev-shm-usage"]
            browser = playwright.chromium.launch(executable_path=options.browser, args=flags)
        except Exception as error:  # playwright's own classes are imported where they are used
            print(f"{options.browser} does not start: {str(error).splitlines()[0]}")
            return 2
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})
            page.set_default_timeout(TIMEOUT)
            page.on("pageerror", lambda error: problems.append(f"script: {error}"))
            page.on("requestfailed", lambda request: problems.extend(failed(request)))
            for name in SCREENSHOTS:
                page.goto(start.replace("index.html", name))
                page.screenshot(path=screenshots / f"{name.replace('/', '-').removesuffix('.html')}-{scheme}.png")
        page = browser.new_page(java_script_enabled=False)  # links are in the HTML, and 130 pages are read twice as fast
        page.set_default_timeout(TIMEOUT)
        count = crawl(page, start, problems)
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT)
        search(page, start, problems)
        browser.close()
    server.shutdown()
    print("\n".join(problems), end="\n" if problems else "")
    taken = 2 * len(SCREENSHOTS)
    print(f"{count} pages, {len(TERMS)} searches, {taken} screenshots in {screenshots}; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
