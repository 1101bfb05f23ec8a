"""The code in the README runs, in order."""

from __future__ import annotations

import re
from pathlib import Path

import lapae.curvature
from lapae.curvature import register


def test_the_code_in_the_readme_runs():
    text = (Path(lapae.curvature.__file__).parent / "README.md").read_text("utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code) >= 4
    names: dict = {}
    with register():
        for block in code:
            exec(compile(block, "README.md", "exec"), names)
    assert names["h"]["0.weight"].shape == (16, 8)
    assert names["blocks"]["0"].shape == (144, 144)
    assert set(names["factors"]) == set(names["h"])
