"""The site builds, has every public name, and asks nothing of the network."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from pages import PAGES, ROOT

OWN = PAGES[1:]
"""Those of the site: all but the README."""
PUBLIC = ("", ".curvature", ".posterior", ".methods", ".predict", ".tasks", ".data", ".models")
"""Modules whose `__all__` is the public interface."""
MEMBERS = {
    "lapae.LaplacianAutoencoder": ("fit", "transform", "reconstruct", "score_samples", "impute", "sample", "load"),
    "lapae.model": ("Model",),
    "lapae.storage": ("load_run",),
    "lapae.fit": ("fit", "load_data"),
    "lapae.config": ("Config", "TrainConfig"),
    "lapae.errors": ("LapaeError",),
}
"""Others that must be there."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it: in strict mode, where any warning is an error."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    out = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out))
    assert config.strict
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return out


@pytest.fixture(scope="module")
def pages(site) -> dict[str, str]:
    return {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


def test_every_public_name_has_its_place(pages):
    text = "".join(text for name, text in pages.items() if name.startswith("api"))
    there = set(re.findall(r'id="(lapae[\w.]*)"', text))
    public = {m: getattr(import_module(f"lapae{m}"), "__all__", ()) for m in PUBLIC}
    names = {f"lapae{m}.{name}" for m, own in public.items() for name in own if name[:2] != "__"}
    names |= {f"{owner}.{name}" for owner, members in MEMBERS.items() for name in members}
    assert not names - there


def test_the_pages_load_nothing_from_elsewhere(pages, site):
    loads = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
    found = {name: loads.findall(text) for name, text in pages.items()}
    assert not {name: urls for name, urls in found.items() if urls}
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")), path.name


def test_links_between_files_of_the_repository_are_links_of_the_site(pages):
    assert 'href="benchmarks/outliers.html"' in pages["outliers.html"]
    assert 'href="curvature.html"' in pages["networks.html"]
    assert "examples/sensors.html" in pages["examples.html"]
    assert "results/curvature.png" in pages["benchmarks/curvature.html"]


def test_every_page_is_in_the_navigation(pages):
    start = pages["index.html"]
    for path in OWN:
        place = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert f'href="{place}"' in start or place == "index.html", path.name


def test_no_page_is_long():
    """Five minutes of reading: about a thousand words, tables and code left out. Results are looked up, not read."""
    for path in OWN:
        if path.name == "results.md":
            continue
        text = re.sub(r"```.*?```|^\|.*?$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
        assert len(text.split()) < 1200, path.name


VARIABLE = (
    r"\.\.\.|process \d+ on \w+|'[^']*'|\([\d, ]+\)|runs/\S+|[\d.]+(?:x\d+)?|\b(?:moments|network)\b"
    r"|\b(?:another range: |speed|VAE|Sine).*"
)
"""What a message fills in, and what follows where little is fixed after it."""


def test_troubleshooting_quotes_messages_that_there_are():
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # literals that are continued on the next line
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\*\*`(.+?)`\*\*", text, re.M)
    assert len(quoted) > 10
    for message in quoted:
        fixed = [part.strip(" ,;:") for part in re.split(VARIABLE, message)]
        assert max(map(len, fixed)) > 8, message
        for part in (part for part in fixed if len(part) > 8):
            assert part in source, f"{message!r}: no {part!r} in the source"


def test_links_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert len(targets) > 10
    assert not [target for target in targets if not (ROOT / target).exists()]
