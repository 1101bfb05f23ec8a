"""Files sent to the browser: the pages of the report and the explorer, and the scripts and styles that they share.

shared.css, map.js, numbers.js    both pages
report.html, report.js            the report, which has everything in one file
explore.html, .css, .js, path.js, sample.js the explorer, served file by file
"""

from __future__ import annotations

from importlib.resources import files

REPORT = "report.html"
"""Name of the report in the folder of a run."""
LINK = 'target="lapae-explorer" href="http://127.0.0.1:8765/'
"""Beginning of a link from the report into the explorer: its default address, where browsers that have opened it are
known by a cookie. An explorer that serves the report itself puts its own address there."""


def asset(name: str) -> str:
    """Read the text of a file in this folder."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
