"""Builds the documentation as a site: python scripts/build_docs.py [--serve | --publish DIRECTORY]. Needs the extra [docs].

Writes build/site; `--publish` adds it to a directory of versions, whose pages have a menu to go from one to the other.

Pages of docs/ are copied to build/docs with links to files of the repository changed into links to pages that show them; the API
pages are made by mkdocstrings from the docstrings. docs/site.md says how the site is made, and why so. Every internal link of the
result is followed: a broken one is an error, and so is a warning of the build.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
WHOLE = {name: name.lower() for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")} | {"README.md": "index.md"}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")


# --- pages


def stage(out: Path, *, versioned: bool = False) -> None:
    """Writes the Markdown that the site is built from, and the configuration for it."""
    import jupytext

    staged = out / "docs"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    for page in sorted((ROOT / "docs").rglob("*")):
        target = staged / page.relative_to(ROOT / "docs")
        target.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            text = page.read_text(encoding="utf-8")
            text = api_page(text) if target.parent.name == "api" else on_the_site(text, page)
            target.write_text(in_columns(text) if page.name.startswith(("from-", "tutorial-")) else text, encoding="utf-8")
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
    for notebook in notebooks():
        target = staged / "notebooks" / f"{notebook.stem}.ipynb"
        target.write_text(jupytext.writes(jupytext.read(notebook), fmt="ipynb"), encoding="utf-8")
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    if versioned:
        settings += '\n[project.extra.version]\nprovider = "mike"\n'  # the theme's menu, which reads ../versions.json
    for name, value in (("docs_dir", "docs"), ("site_dir", "site")):
        settings = re.sub(rf"^{name} = .*$", f'{name} = "{value}"', settings, flags=re.MULTILINE)
    settings = settings.replace('paths = ["."]', f'paths = ["{ROOT}"]').replace('"scripts/', f'"{ROOT}/scripts/')
    (out / "zensical.toml").write_text(settings, encoding="utf-8")


def programs() -> list[Path]:
    return sorted((ROOT / "examples").rglob("*.py"))


def notebooks() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.py"))


def source_page(path: Path) -> Path:
    """The page that shows a file of the repository."""
    return Path("source") / path.relative_to(ROOT).with_suffix(".md")


def gallery() -> str:
    """The page of the example programs: the README there, and a list of all files."""
    readme = ROOT / "examples" / "README.md"
    rows = [on_the_site(readme.read_text(encoding="utf-8"), readme, "."), "## All files", ""]
    rows += ["`oneflow train NAME` runs the training programs; `oneflow train --help` lists them.", ""]
    for program in programs():
        docstring = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
        rows.append(f"- [{program.relative_to(ROOT / 'examples')}]({source_page(program)}): {docstring.partition(chr(10))[0]}")
    return "\n".join(rows) + "\n"


_PAIR = re.compile(
    r"^(?P<theirs>(?:PyTorch|Keras|JAX|Then): [^`]*?(?:`[^`\n]+`[^`]*?)*\n\n```python\n.*?^```\n)\n"
    r"(?P<ours>(?:oneflow-jax|Today): .*?^```python\n.*?^```\n)",
    re.MULTILINE | re.DOTALL,
)


def in_columns(text: str) -> str:
    """A page that compares: their code at the left and ours at the right, where both follow each other."""

    def columns(found: re.Match[str]) -> str:
        return "\n".join(
            ['<div class="columns" markdown>', *(f"<div markdown>\n\n{part}\n</div>" for part in found.groups()), "</div>\n"]
        )

    changed = _PAIR.sub(columns, text)
    return changed if changed == text else f"---\nhide:\n  - navigation\n  - toc\n---\n\n{changed}"


def api_page(text: str) -> str:
    """The page of a namespace: its names, each with what mkdocstrings makes of its docstring."""
    title = re.match(r"# (flow[\w.]*)\n", text)
    if title is None:
        return text
    introduction = text[title.end() : text.find("\n## ")].strip()
    names = re.findall(r"^## `(\w+)`", text, re.MULTILINE)
    space = title[1].replace("flow", "oneflow", 1)
    return f"# {title[1]}\n\n{introduction}\n\n" + "\n\n".join(f"::: {space}.{name}" for name in names) + "\n"


def on_the_site(text: str, page: Path, directory: str | None = None) -> str:
    """A page's text with its links to files outside of docs/ changed. The page stands in ``directory`` of the site."""
    if directory is None:
        directory = page.parent.relative_to(ROOT / "docs").as_posix() if page.is_relative_to(ROOT / "docs") else "."

    def changed(found: re.Match[str]) -> str:
        path, mark, anchor = found[2].partition("#")
        file = (page.parent / path).resolve()
        if "://" in path or not path or not file.is_relative_to(ROOT):
            return found[0]
        if file.is_relative_to(ROOT / "docs"):
            target = file.relative_to(ROOT / "docs").as_posix()
        elif file.name in WHOLE and file.parent == ROOT:
            target = WHOLE[file.name]
        elif file in notebooks():
            target = f"notebooks/{file.stem}.ipynb"
        elif file.is_relative_to(ROOT / "examples"):
            target = "examples.md" if file.is_dir() else source_page(file).as_posix()
        else:
            return found[0]  # a broken link of the site: `check` names it
        return f"{found[1]}{os.path.relpath(target, directory)}{mark}{anchor}{found[3]}"

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


# --- versions


def release(version: str) -> tuple[int, ...]:
    """0.10.1 is newer than 0.9; a version that is no number, as "dev", is older than all."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+(\.\d+)*", version) else (-1,)


def publish(site: Path, directory: Path, version: str) -> list[str]:
    """Puts a built site into a directory of versions, in the place of an earlier one of the same version.

    Writes ``versions.json``, which the menu of each version reads, and an ``index.html`` that leads to the newest release.
    Returns: the versions that are there now, the newest first.
    """
    directory.mkdir(parents=True, exist_ok=True)
    new = directory / f".{version}"
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(site, new)
    shutil.rmtree(directory / version, ignore_errors=True)
    new.rename(directory / version)
    there = sorted((entry.parent.name for entry in directory.glob("[!.]*/index.html")), key=release, reverse=True)
    listed = [{"version": name, "title": name, "aliases": ["latest"] if name == there[0] else []} for name in there]
    (directory / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    (directory / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>oneflow-jax</title>'
        f'<meta http-equiv="refresh" content="0; url={there[0]}/index.html"><a href="{there[0]}/index.html">oneflow-jax</a>\n',
        encoding="utf-8",
    )
    return there


def project_version() -> str:
    """The version in pyproject.toml, without its patch: fixes replace the pages that they fix."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return ".".join(version.split(".")[:2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="serve the site at http://localhost:8000")
    parser.add_argument("--publish", type=Path, metavar="DIRECTORY", help="add the site to this directory of versions")
    parser.add_argument("--version", default=project_version(), help="the version that is published (%(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="where docs and site are written (%(default)s)")
    options = parser.parse_args()
    start, out = time.perf_counter(), options.out.resolve()
    stage(out, versioned=options.publish is not None)
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
    if wrong or "warning" in done.stdout.lower():
        return 1
    if options.publish:
        there = publish(out / "site", options.publish, options.version)
        print(f"published {options.version} in {options.publish}; versions there: {', '.join(there)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
