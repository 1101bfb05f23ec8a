"""The site builds, has every public name, and asks nothing of the network."""

from __future__ import annotations

import inspect
import json
import math
import re
import runpy
from functools import cached_property
from importlib import import_module
from types import SimpleNamespace
from urllib.parse import quote

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
    pytest.importorskip("mkdocs", reason="the site is built by mkdocs: pip install --group docs")
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
    text = "".join(text for name, text in pages.items() if name == "reference.html")
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


def test_links_to_files_of_the_repository_lead_there(pages, site, monkeypatch):
    """To those of this checkout, which exist, or to where the repository is."""
    link = re.compile(r'href="([^":]*/benchmarks/\w+\.md)')
    found = [(site / name).parent / target for name, text in pages.items() for target in link.findall(text)]
    assert len(found) > 20
    assert not [path for path in found if not path.exists()]
    assert not [name for name, text in pages.items() if 'href="repository:' in text]
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    page = SimpleNamespace(file=SimpleNamespace(dest_uri="data.html"))
    config = SimpleNamespace(site_dir=str(ROOT / "site"), repo_url="")
    mark = '<a href="repository:benchmarks/adbench.md#one-class">'
    assert hooks["on_page_content"](mark, page, config) == '<a href="../benchmarks/adbench.md#one-class">'
    monkeypatch.setenv("LAPAE_REPOSITORY", "https://host/us/lapae/")
    there = "https://host/us/lapae/blob/main/benchmarks/adbench.md#one-class"
    assert hooks["on_page_content"](mark, page, config) == f'<a href="{there}">'


def test_links_of_pages_to_files_lead_somewhere():
    """MkDocs checks those between pages; these are to measurements, examples and code."""
    for path in OWN:
        targets = re.findall(r"\]\((?!\w+:)([^)#\s]+)", path.read_text(encoding="utf-8"))
        assert not [target for target in targets if not (path.parent / target).exists()], path.name


def test_every_page_is_built(pages):
    assert len(OWN) == 21
    assert set(pages) == {
        "404.html",
        *(path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in OWN),
    }


def test_every_page_is_in_the_navigation(pages):
    start = pages["index.html"]
    for path in OWN:
        place = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert f'href="{place}"' in start or place == "index.html", path.name


def test_formulas_are_drawn_without_a_script(pages):
    found = pages["mathematics.html"]
    assert found.count("<math") > 50
    assert not [name for name, text in pages.items() if 'class="arithmatex"' in text]


FIRST = {
    "embedding": "how_it_works.html",
    "tabular": "data.html",
    "hyperparameter": "networks.html",
    "anomaly detection": "tutorials/anomalies.html",
    "outlier": "tutorials/anomalies.html",
    "confidence": "uncertainty.html",
    "uncertainty": "uncertainty.html",
    "posterior": "uncertainty.html",
    "time series": "tutorials/time_series.html",
    "drift": "tutorials/time_series.html",
    "imputation": "tutorials/missing_values.html",
    "csv": "data.html",
    "onnx": "deploy.html",
    "gpu": "large_data.html",
}
"""The page that a search has to find first."""


def rank(index: dict, query: str) -> list[str]:
    """Pages in the order in which the site's search finds them.

    As lunr ranks in Material: words count by rarity, without regard to the length of a text, and a thousand times in a
    title; a section counts twice if it has all words, and once more if it is the head of its page, which is as good as
    its best section. Words are compared by their beginnings in place of stems.
    """
    split = re.compile(index["config"]["separator"])
    fields = [
        [split.split(re.sub(r"<[^>]+>", " ", doc[f]).lower()) for f in ("title", "text")] for doc in index["docs"]
    ]
    scores, every = [0.0] * len(fields), [True] * len(fields)
    for word in query.split():
        found = [[sum(other.startswith(word) for other in field) for field in own] for own in fields]
        having = sum(map(any, found))
        rarity = math.log(1 + abs((len(fields) - having + 0.5) / (having + 0.5)))
        for i, (title, text) in enumerate(found):
            scores[i] += rarity * (1000 * 2.2 * title / (1.2 + title) + 2.2 * text / (1.2 + text))
            every[i] &= title + text > 0
    best: dict[str, float] = {}
    for doc, score, whole in zip(index["docs"], scores, every, strict=True):
        page, _, section = doc["location"].partition("#")
        best[page] = max(best.get(page, 0), score * doc.get("boost", 1) * (1 + whole + (not section)))
    return sorted(best, key=lambda page: -best[page])


@pytest.mark.parametrize("query", FIRST)
def test_a_search_finds_the_right_page_first(site, query):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert rank(index, query)[0] == FIRST[query]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_search_works_in_pages_that_are_opened_from_disk(site, tmp_path):
    assert (site / "search" / "search_index.js").exists()
    with Browser(tmp_path) as browser:
        for query in ("embedding", "tabular", "hyperparameter", "anomaly detection", "confidence", "time series"):
            browser.open(f"file://{site / 'data.html'}?q={quote(query)}")
            browser.until(r"/\d+ matching document/.test(document.body.textContent)")
            found = browser.run("document.querySelector('.md-search-result__item a').href")
            assert found.partition("?")[0] == f"file://{site / FIRST[query]}", query


def test_every_picture_is_on_a_page():
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    pictures = [path for path in (ROOT / "docs" / "images").rglob("*.png") if not path.stem.endswith("-dark")]
    assert len(pictures) > 15
    assert not [path.name for path in pictures if f"/{path.name})" not in text]


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
    """Six minutes of reading: tables and code left out. What is looked up is not read."""
    for path in OWN:
        if path.name not in ("results.md", "reference.md", "mathematics.md"):
            text = re.sub(r"```.*?```|^\|.*?$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
            assert len(text.split()) < 1400, path.name


def test_every_page_opens_with_what_it_answers():
    """A sentence or two between the title and what follows."""
    for path in OWN:
        text = path.read_text(encoding="utf-8")
        opening = re.search(r"^# .+\n\n(?P<said>[A-Z`](?:.+\n)+)\n", text, re.M)
        assert opening is not None, path.name
        assert len(opening["said"].split()) < 60, path.name


VARIABLE = (
    r"\.\.\.|process \d+ on \w+|'[^']*'|\([\d, ]+\)|runs/\S+|[\d.]+(?:x\d+)?|\b(?:moments|network)\b"
    r"|\b(?:another range: |speed|VAE|Sine).*"
)
"""What a message fills in, and what follows where little is fixed after it."""


def test_the_reference_quotes_messages_that_there_are():
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # literals that are continued on the next line
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
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
