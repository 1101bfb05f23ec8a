"""The site builds, has every public name, and asks nothing of the network."""

from __future__ import annotations

import inspect
import os
import re
from functools import cached_property
from importlib import import_module

import pytest
from browser import CHROMIUM, Browser
from pages import PAGES, ROOT

from lapae import LaplacianAutoencoder
from lapae.model import Model

OWN = PAGES[1:]
"""Those of the site: all but the README."""
REQUESTS = ("set_fit_request", "set_inverse_transform_request", "set_transform_request")
"""Methods that scikit-learn adds for metadata, of which there are none."""
PUBLIC = ("", ".curvature", ".posterior", ".methods", ".predict", ".evaluate", ".data", ".networks")
"""Modules whose `__all__` is the public interface."""
MEMBERS = {
    "lapae.LaplacianAutoencoder": ("fit", "transform", "reconstruct", "score_samples", "impute", "sample", "load"),
    "lapae.model": ("Model",),
    "lapae.model.Model": ("reconstruct", "impute", "counterfactual"),
    "lapae.storage": ("load_run",),
    "lapae.fit": ("fit", "load_data"),
    "lapae.config": ("Config", "TrainConfig"),
    "lapae.errors": ("LapaeError",),
}
"""Others that must be there."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it: in strict mode, where any warning is an error."""
    pytest.importorskip("mkdocs", reason="the site is built by mkdocs: pip install 'lapae[docs]'")
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


def test_formulas_are_drawn_without_a_script(pages):
    found = pages["mathematics.html"]
    assert found.count("<math") > 50
    assert not [name for name, text in pages.items() if 'class="arithmatex"' in text]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_search_works_in_pages_that_are_opened_from_disk(site, tmp_path):
    assert (site / "search" / "search_index.js").exists()
    page = f"file://{site / 'tutorials' / 'anomalies.html'}?q=posterior"
    with Browser(tmp_path) as browser:
        browser.open(page)
        browser.until(r"/\d+ matching documents/.test(document.body.textContent)")


def test_every_picture_is_in_the_gallery():
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    pictures = [*(ROOT / "docs" / "images").rglob("*.png"), *(ROOT / "benchmarks" / "results").glob("*.png")]
    assert len(pictures) > 20
    for path in pictures:
        assert f"]({os.path.relpath(path, ROOT / 'docs')})" in text, path.name


def test_every_method_is_in_the_table_with_its_parameters():
    text = (ROOT / "docs" / "api_estimator.md").read_text(encoding="utf-8")
    estimator, model = text.split("## The model behind it")
    for owner, part in ((LaplacianAutoencoder, estimator), (Model, model)):
        for name, found in inspect.getmembers(owner, inspect.isroutine):
            if (
                name.startswith("_")
                or name in ("get_metadata_routing", *REQUESTS)
                or isinstance(found, cached_property)
            ):
                continue
            row = next((line for line in part.splitlines() if f"`{name}(" in line), "")
            assert row, f"{owner.__name__}.{name}"
            for parameter in set(inspect.signature(found).parameters) - {"self", "kwargs", "fit_params"}:
                assert parameter in row, f"{owner.__name__}.{name}: {parameter}"


@pytest.mark.parametrize("owner", [LaplacianAutoencoder, Model])
def test_methods_of_several_arguments_explain_each(owner):
    for name, found in inspect.getmembers(owner, inspect.isroutine):
        if name.startswith("_") or not inspect.unwrap(found).__module__.startswith("lapae"):
            continue
        parameters = set(inspect.signature(found).parameters) - {"self"}
        told = re.findall(r"^    (\w+): ", (inspect.getdoc(found) or "").partition("Args:")[2], re.M)
        assert len(parameters) < 2 or parameters <= set(told), f"{owner.__name__}.{name}"


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
