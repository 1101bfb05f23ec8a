"""What MkDocs needs besides the pages: the API reference, formulas, links to files of the repository.

Pages link to files as they lie in the repository, so that they can be read there; here links to files that are no pages
of the site (measurements, examples) are led to the repository, `$LAPAE_REPOSITORY`, or to the files of this checkout.
"""

from __future__ import annotations

import ast
import os
import re
from html import unescape
from os.path import relpath
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

ROOT = Path(__file__).parent.parent
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
SCHEME = "repository:"
"""Marks a link to a file of the repository, while MkDocs checks those between pages."""
ESTIMATOR = "LaplacianAutoencoder"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what is generated, and mark links to files of the repository that are no pages of the site."""
    if "<!-- commits since -->" in markdown:
        from lapae_paper.experiments.record import age

        markdown = markdown.replace("<!-- commits since -->", age(ROOT / "docs" / page.file.src_uri))
    markdown = markdown.replace("<!-- modules -->", "\n\n".join(map(reference, API)))
    if page.file.src_uri == "results.md":  # looked up by its name: it names every topic, and helps with none
        page.meta["search"] = {"boost": 0.3}
    here = ROOT / "docs" / page.file.src_uri

    def marked(match: re.Match) -> str:
        inside = (here.parent / match[1]).resolve()
        outside = inside.is_relative_to(ROOT) and not inside.is_relative_to(ROOT / "docs")
        return f"]({SCHEME}{inside.relative_to(ROOT).as_posix()}{match[2] or ''})" if outside else match[0]

    return re.sub(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)", marked, markdown)


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Turn formulas into MathML, which browsers draw by themselves, and lead links to where the repository is."""
    repository = address(config)
    here = Path(config.site_dir, page.file.dest_uri).parent

    def led(match: re.Match) -> str:
        to = f"{repository}/blob/main/{match[1]}" if repository else relpath(ROOT / match[1], here)
        return f'href="{to}'

    html = re.sub(rf'href="{SCHEME}([^"#]*)', led, html)

    def drawn(match: re.Match) -> str:
        block = match[1] == "div"
        formula = convert(unescape(match[2])[2:-2], display="block" if block else "inline")
        return f'<div class="math">{formula}</div>' if block else formula

    return re.sub(r'<(div|span) class="arithmatex">(.*?)</\1>', drawn, html, flags=re.S)


def address(config: Any) -> str:
    """Where the repository is, empty while nobody has said so."""
    return (os.environ.get("LAPAE_REPOSITORY") or config.repo_url or "").rstrip("/")


def dotted(name: str) -> str:
    """Full name of a module."""
    return f"lapae.{name}" if name else "lapae"


def reference(name: str) -> str:
    """The section of a module: its docstring, then every public name, in the order of `__all__` or of the source."""
    module = dotted(name)
    folder = ROOT / "src" / module.replace(".", "/")
    source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    exported = public_names(source)
    if exported is None and folder.is_dir():  # a package without names of its own: its modules
        parts = [f"{module}.{path.stem}" for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")]
        return "\n\n".join([f"### {module}", *(f"::: {part}" for part in parts)])
    if exported is None:
        return f"### {module}\n\n::: {module}\n    options: {{show_root_heading: false, inherited_members: true}}\n"
    intro = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    exported.sort(key=ESTIMATOR.__ne__)  # what most readers look for comes first
    entries = [f"::: {module}.{entry}" for entry in exported if not entry.startswith("__")]
    if ESTIMATOR in exported:  # its verbs are in several files
        entries[0] += "\n    options: {inherited_members: true}"
    return "\n\n".join([f"### {module}", intro, *entries])


def public_names(source: Path) -> list[str] | None:
    """`__all__` of a module, or None."""
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None
