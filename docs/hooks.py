"""What MkDocs needs besides the pages: those that live elsewhere in the repository, the API reference, formulas.

Pages link to each other as files of the repository, so that they can be read there; here the links are turned to where
the site has these files.
"""

from __future__ import annotations

import ast
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

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
API = (
    "",
    "curvature",
    "posterior",
    "methods",
    "predict",
    "evaluate",
    "data",
    "networks",
    "train",
    "fit",
    "model",
    "storage",
    "config",
    "errors",
)
"""Modules of the public interface."""
ESTIMATOR = "LaplacianAutoencoder"


def on_config(config: Any) -> None:
    """Add the pages that the navigation of mkdocs.yml does not name, each to its section, so that all are found."""
    sections = {title: pages for entry in config.nav for title, pages in entry.items() if isinstance(pages, list)}
    named = re.findall(r"[\w/]+\.md", str(config.nav))
    found = (path.name for path in sorted(Path(config.docs_dir).glob("*.md")))
    sections["Guide"] += [*(name for name in found if name not in named), {"Changes": "changelog.md"}]
    sections["Results"] += [place for place in ELSEWHERE.values() if place.startswith("benchmarks/")]
    sections["API"] += [*(f"api/{page(name)}.md" for name in API), {"The curvature engine": "curvature.md"}]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and pictures from elsewhere, and a page of the API for each public module."""
    for source, place in (ELSEWHERE | PICTURES).items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for source, place in PROGRAMS.items():
        code = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=f"# {source}\n\n```python\n{code}```\n"))
    for name in API:
        files.append(File.generated(config, f"api/{page(name)}.md", content=reference(name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    if "<!-- commits since -->" in markdown:
        from lapae_paper.experiments.record import age

        markdown = markdown.replace("<!-- commits since -->", age(ROOT / "docs" / page.file.src_uri))
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


def on_page_content(html: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers draw by themselves."""

    def drawn(match: re.Match) -> str:
        block = match[1] == "div"
        formula = convert(unescape(match[2])[2:-2], display="block" if block else "inline")
        return f'<div class="math">{formula}</div>' if block else formula

    return re.sub(r'<(div|span) class="arithmatex">(.*?)</\1>', drawn, html, flags=re.S)


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
        return f"# {module}\n\n::: {module}\n    options: {{show_root_heading: false, inherited_members: true}}\n"
    intro = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    exported.sort(key=ESTIMATOR.__ne__)  # what most readers look for comes first
    entries = [f"::: {module}.{entry}" for entry in exported if not entry.startswith("__")]
    if ESTIMATOR in exported:  # its verbs are in several files
        entries[0] += "\n    options: {inherited_members: true}"
    return "\n\n".join([f"# {module}", intro, *entries])


def public_names(source: Path) -> list[str] | None:
    """`__all__` of a module, or None."""
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None
