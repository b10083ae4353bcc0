"""MkDocs hooks of the documentation site (mkdocs.yml).

- ``<!-- include: FILE -->`` is replaced by a page of the repository's root, and ``<!-- api: PACKAGE -->`` by its docstrings.
- Relative links out of ``docs/`` lead to the repository's host.
- Mermaid is served by the site itself where ``make docs`` has fetched it; else the browser fetches it from unpkg.com.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
MERMAID = ROOT / ".build" / "mermaid" / "package" / "dist" / "mermaid.min.js"
API = re.compile(r"<!-- api: (?P<package>\S+) -->")
INCLUDE = re.compile(r"<!-- include: (?P<file>\S+) -->")
GENERATED = re.compile(r"<!-- ((?:generated|table): .+?|end|bench.*?|fidelity.*?) -->\n?")
LINK = re.compile(r"(?P<head>\]\(|(?:src|href)=\")(?P<target>[^)\s\"#]+)(?P<anchor>#[^)\s\"]*)?(?P<tail>[)\"])")
SECOND_WORD = re.compile(r"^(```+\w+) \w+$", re.MULTILINE)
"""``text output``: the second word is for check_docs.py and the tests."""
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    if MERMAID.is_file():
        config.extra_javascript.append("assets/mermaid.min.js")
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    if MERMAID.is_file():
        files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(MERMAID)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  (as MkDocs calls it)
    source = ROOT / "docs" / page.file.src_uri

    def include(found: re.Match[str]) -> str:
        path = ROOT / found["file"]
        return outside_fences(path.read_text(encoding="utf-8"), lambda text: relink(text, path, source, config))

    markdown = SECOND_WORD.sub(r"\1", markdown)
    markdown = outside_fences(markdown, lambda text: relink(text, source, source, config))
    markdown = API.sub(r"::: \g<package>", markdown)
    return GENERATED.sub("", INCLUDE.sub(include, markdown))


def outside_fences(text: str, change: Any) -> str:
    """Apply ``change`` to what is outside of code blocks."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def relink(text: str, origin: Path, page: Path, config: MkDocsConfig) -> str:
    """Make links of ``origin`` right on ``page``: those out of docs/ lead to the repository's host."""
    included = {"CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing", "SECURITY.md": "security"}

    def mend(found: re.Match[str]) -> str:
        target = found["target"]
        if "://" in target or target.startswith(("mailto:", "#")):
            return found[0]
        full = Path(os.path.normpath(origin.parent / target))
        name = full.relative_to(ROOT).as_posix()
        if name in included:
            full = ROOT / "docs" / "project" / f"{included[name]}.md"
        elif name == "README.md":
            full = ROOT / "docs" / "index.md"
        if full.is_relative_to(ROOT / "docs"):
            target = os.path.relpath(full, page.parent)
        else:
            kind = "tree" if full.is_dir() else "blob"
            target = f"{config.repo_url}/{kind}/main/{name}"
        return f"{found['head']}{target}{found['anchor'] or ''}{found['tail']}"

    return LINK.sub(mend, text)
