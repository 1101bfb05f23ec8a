"""What MkDocs needs besides the pages: those that live elsewhere in the repository, and the API reference.

Pages link to each other as files of the repository, so that they can be read there; here the links are turned to where
the site has these files.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "src/lapae/curvature/README.md": "curvature.md",
    "CHANGELOG.md": "changelog.md",
    **{str(path.relative_to(ROOT)): f"benchmarks/{path.name}" for path in sorted(ROOT.glob("benchmarks/*.md"))},
}
"""Pages of the repository outside of docs/, and their places in the site."""
PROGRAMS = {str(path.relative_to(ROOT)): f"examples/{path.stem}.md" for path in sorted(ROOT.glob("examples/*.py"))}
PICTURES = {
    str(path.relative_to(ROOT)): f"benchmarks/results/{path.name}" for path in ROOT.glob("benchmarks/results/*.png")
}
STYLE = """
.wy-nav-content { max-width: 60rem; }
.rst-content .highlight pre { padding: 12px; border: 0; line-height: 1.4; overflow-x: auto; }
.rst-content .highlight code { border: 0; padding: 0; }
.rst-content .doc-contents { padding-left: 1.2rem; border-left: 2px solid #e1e4e5; }
.rst-content table.docutils td { white-space: normal; }
@media (prefers-color-scheme: dark) {
  html { color-scheme: dark; }
  .wy-body-for-nav, .wy-nav-content-wrap, .wy-nav-content { background: #16191d; }
  .rst-content, .rst-content :is(h1, h2, h3, h4, p, li, td, th, dt, dd, strong, blockquote) { color: #d8dde3; }
  .rst-content a, .rst-content a:visited { color: #6db3f2; }
  .rst-content :is(code, pre, .highlight) { background: #20252b; color: #e3e7eb; border-color: #39414a; }
  .rst-content table.docutils:not(.field-list) tr:nth-child(2n-1) td { background: #1c2026; }
  .rst-content table.docutils, .rst-content table.docutils :is(td, th), .rst-content hr { border-color: #39414a; }
  .rst-content .doc-contents { border-color: #39414a; }
  .rst-content img { background: #fff; border-radius: 4px; }
  .wy-side-nav-search { background: #1d4e74; }
  input[type="text"] { background: #20252b; color: #e3e7eb; }
}
"""
API = (
    "",
    "curvature",
    "posterior",
    "methods",
    "predict",
    "tasks",
    "data",
    "models",
    "train",
    "fit",
    "model",
    "storage",
    "config",
    "errors",
)
"""Modules of the public interface."""


def on_config(config: Any) -> None:
    """Pages that the navigation does not name go to the end of the guide, so that none is built and not found."""
    guide = next(section["Guide"] for section in config.nav if "Guide" in section)
    named = {next(iter(entry.values())) for entry in guide} | {"index.md"}
    for path in sorted(Path(config.docs_dir).glob("*.md")):
        if path.name not in named:
            guide.append(path.name)
    config.nav.append({"API": [f"api/{page(name)}.md" for name in API]})
    places = [place for place in ELSEWHERE.values() if place.startswith("benchmarks/")]
    config.nav += [{"The curvature engine": "curvature.md"}, {"Measurements": places}, {"Changes": "changelog.md"}]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and pictures from elsewhere, and a page of the API for each public module."""
    for source, place in (ELSEWHERE | PICTURES).items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "style.css", content=STYLE + colours()))
    for source, place in PROGRAMS.items():
        code = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=f"# {source}\n\n```python\n{code}```\n"))
    for name in API:
        files.append(File.generated(config, f"api/{page(name)}.md", content=reference(name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    places = {place: source for source, place in ELSEWHERE.items()}
    here = Path(places.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    up = "../" * page.file.src_uri.count("/")

    def turned(match: re.Match) -> str:
        target, anchor = match[1], match[2] or ""
        inside = (ROOT / here.parent / target).resolve()
        if "://" in target or not inside.is_relative_to(ROOT):
            return match[0]
        name = str(inside.relative_to(ROOT))
        own = name.removeprefix("docs/") if name.startswith("docs/") else None
        place = (ELSEWHERE | PICTURES | PROGRAMS).get(name, own)
        return match[0] if place is None else f"]({up}{place}{anchor})"

    return re.sub(r"\]\(([^)#\s]+)(#[^)\s]*)?\)", turned, markdown)


def colours() -> str:
    """Of code, on a light page and on a dark one."""
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return HtmlFormatter().get_style_defs(".highlight") + f"\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def page(name: str) -> str:
    """File name of a module's page."""
    return f"lapae.{name}" if name else "lapae"


def reference(name: str) -> str:
    """The page of a module: its docstring, then every public name, in the order of `__all__` or of the source."""
    module = page(name)
    folder = ROOT / "src" / module.replace(".", "/")
    source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    exported = public_names(source)
    if exported is None and folder.is_dir():  # a package without names of its own: its modules
        parts = [f"{module}.{path.stem}" for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")]
        return "\n\n".join([f"# {module}", *(f"::: {part}" for part in parts)])
    if exported is None:
        return f"# {module}\n\n::: {module}\n    options: {{show_root_heading: false}}\n"
    intro = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    exported.sort(key="LaplacianAutoencoder".__ne__)  # what most readers look for comes first
    entries = [f"::: {module}.{entry}" for entry in exported if not entry.startswith("__")]
    return "\n\n".join([f"# {module}", intro, *entries])


def public_names(source: Path) -> list[str] | None:
    """`__all__` of a module, or None."""
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None
