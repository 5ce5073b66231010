"""Builds the documentation as a site: python scripts/build_docs.py [--serve]. Needs the extra [docs]; writes build/site.

Pages of docs/ are copied to build/docs with links to files of the repository changed into links to pages that show them; the API
pages are made by mkdocstrings from the docstrings. docs/site.md says how the site is made, and why so. Every internal link of the
result is followed: a broken one is an error, and so is a warning of the build.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
WHOLE = {name: name.lower() for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")} | {"README.md": "index.md"}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")


# --- pages


def stage(out: Path) -> None:
    """Writes the Markdown that the site is built from, and the configuration for it."""
    staged = out / "docs"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    for page in sorted((ROOT / "docs").rglob("*")):
        target = staged / page.relative_to(ROOT / "docs")
        target.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            text = page.read_text(encoding="utf-8")
            target.write_text(api_page(text) if target.parent.name == "api" else on_the_site(text, page), encoding="utf-8")
        elif page.is_file():
            shutil.copyfile(page, target)
    for name, page_name in WHOLE.items():
        if (ROOT / name).exists() and name != "README.md":
            (staged / page_name).write_text(on_the_site((ROOT / name).read_text(encoding="utf-8"), ROOT / name), encoding="utf-8")
    (staged / "examples.md").write_text(gallery(), encoding="utf-8")
    for program in programs():
        page = staged / source_page(program)
        page.parent.mkdir(parents=True, exist_ok=True)
        code = program.read_text(encoding="utf-8")
        page.write_text(f"# {program.relative_to(ROOT)}\n\n`````python\n{code}`````\n", encoding="utf-8")
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    for name, value in (("docs_dir", "docs"), ("site_dir", "site")):
        settings = re.sub(rf"^{name} = .*$", f'{name} = "{value}"', settings, flags=re.MULTILINE)
    settings = settings.replace('paths = ["."]', f'paths = ["{ROOT}"]').replace('"scripts/', f'"{ROOT}/scripts/')
    (out / "zensical.toml").write_text(settings, encoding="utf-8")


def programs() -> list[Path]:
    return sorted((ROOT / "examples").rglob("*.py"))


def source_page(path: Path) -> Path:
    """The page that shows a file of the repository."""
    return Path("source") / path.relative_to(ROOT).with_suffix(".md")


def gallery() -> str:
    """The page that lists the example programs."""
    rows = ["# Examples", "", "`oneflow train NAME` runs the training programs; `oneflow train --help` lists them.", ""]
    for program in programs():
        docstring = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
        rows.append(f"- [{program.relative_to(ROOT / 'examples')}]({source_page(program)}): {docstring.partition(chr(10))[0]}")
    return "\n".join(rows) + "\n"


def api_page(text: str) -> str:
    """The page of a namespace: its names, each with what mkdocstrings makes of its docstring."""
    title = re.match(r"# (flow[\w.]*)\n", text)
    if title is None:
        return text
    introduction = text[title.end() : text.find("\n## ")].strip()
    names = re.findall(r"^## `(\w+)`", text, re.MULTILINE)
    space = title[1].replace("flow", "oneflow", 1)
    return f"# {title[1]}\n\n{introduction}\n\n" + "\n\n".join(f"::: {space}.{name}" for name in names) + "\n"


def on_the_site(text: str, page: Path) -> str:
    """A page's text with its links to files outside of docs/ changed."""

    def changed(found: re.Match[str]) -> str:
        path, mark, anchor = found[2].partition("#")
        file = (page.parent / path).resolve()
        if "://" in path or not path or not file.is_relative_to(ROOT):
            return found[0]
        if file.is_relative_to(ROOT / "docs"):
            target = file.relative_to(ROOT / "docs").as_posix()
        elif file.name in WHOLE and file.parent == ROOT:
            target = WHOLE[file.name]
        elif file.is_relative_to(ROOT / "examples"):
            target = "examples.md" if file.is_dir() else source_page(file).as_posix()
        else:
            return found[0]  # a broken link of the site: `check` names it
        return f"{found[1]}{target}{mark}{anchor}{found[3]}"

    return _LINK.sub(changed, text)


# --- links


class Page(HTMLParser):
    """The links of a page, and the anchors in it."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "href" or name == "src"):
                self.links.append(value)
            elif value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Internal links, of pages, images, styles and anchors, that lead nowhere: ``page: link``."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = path
            if parts.path:
                base = site if parts.path.startswith("/") else path.parent
                target = (base / unquote(parts.path).lstrip("/")).resolve()
                target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            missing = anchor and target in pages and anchor not in pages[target].anchors and not anchor.startswith("__")
            if not target.is_file() or missing:
                wrong.append(f"{path.relative_to(site)}: {link}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="serve the site at http://localhost:8000")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="where docs and site are written (%(default)s)")
    options = parser.parse_args()
    start, out = time.perf_counter(), options.out.resolve()
    stage(out)
    command = [sys.executable, "-m", "zensical", "serve" if options.serve else "build", "-f", str(out / "zensical.toml")]
    if options.serve:
        return subprocess.call(command, cwd=out)
    shutil.rmtree(out / "site", ignore_errors=True)
    done = subprocess.run([*command, "--clean", "--strict"], cwd=out, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout, end="")
    if done.returncode:
        return done.returncode
    wrong = broken_links(out / "site")
    print("\n".join(f"broken link: {link}" for link in wrong), end="\n" if wrong else "")
    count = len(list((out / "site").rglob("*.html")))
    print(f"{count} pages in {time.perf_counter() - start:.1f} s: {out / 'site' / 'index.html'}; {len(wrong)} broken links")
    return 1 if wrong or "warning" in done.stdout.lower() else 0


if __name__ == "__main__":
    sys.exit(main())
