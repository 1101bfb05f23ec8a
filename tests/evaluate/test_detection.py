"""Detection: by labels, by other samples, and the mistakes that one can make."""

from __future__ import annotations

import json

import numpy as np
import pytest
from known import all_to_test
from sklearn.metrics import roc_auc_score

from lapae.errors import ConfigError
from lapae.evaluate.detection import DetectionOptions, by_label, detect, evaluate

RNG = np.random.default_rng(0)
USUAL, FAR = RNG.normal(size=(300, 3)), 3 + RNG.normal(size=(100, 3))
BOTH, LABELS = np.concatenate([USUAL, FAR]), np.repeat([0, 1], [300, 100])


def test_a_column_of_labels(normal):
    found = evaluate(normal, all_to_test(BOTH, LABELS, ("0", "1")), DetectionOptions(bootstrap=20))
    assert found.detections["1"].auroc.value == pytest.approx(roc_auc_score(LABELS, np.abs(BOTH[:, 0])))
    assert found.normal.flagged == pytest.approx((np.abs(USUAL[:, 0]) >= 1.959964).mean())
    assert found.unusual["1"].flagged == pytest.approx((np.abs(FAR[:, 0]) >= 1.959964).mean())
    assert (len(found.normal.score), len(found.unusual["1"].score)) == (300, 100)
    json.dumps(found.to_dict(), allow_nan=False)
    assert set(found.figures()) == {"detection_roc", "detection_scores"}
    assert "flagged at 0.05" in str(found.table())


def test_other_samples_and_rows_with_nothing_observed(normal):
    empty = np.full((7, 3), np.nan)
    found = detect(normal, np.concatenate([USUAL, empty]), {"far": FAR, "same": USUAL[:50]}, bootstrap=0)
    assert len(found.normal.score) == 300
    assert found.detections["far"].auroc.value > 0.9
    assert found.detections["same"].auroc.value == pytest.approx(0.5, abs=0.1)
    with pytest.raises(ConfigError, match="gone: all values of all samples are missing"):
        detect(normal, USUAL, {"gone": empty})


def test_a_file(fitted, new, tmp_path):
    shifted = np.asarray(new.test.x)[:200].copy()
    shifted[:, 0] += 60
    path = tmp_path / "shifted.csv"
    kinds = fitted.space.columns[2].categories
    rows = [f"{a:.3f},{b:.3f},{kinds[int(k)]}" for a, b, k in shifted]
    path.write_text("\n".join(["length,width,kind", *rows]) + "\n")
    found = evaluate(fitted, new, DetectionOptions(against=(str(path),), limit=100, bootstrap=10))
    assert len(found.unusual[str(path)].score) == len(found.normal.score) == 100
    assert found.detections[str(path)].auroc.value > 0.95
    assert found.unusual[str(path)].flagged > 0.9


def test_labels_are_divided():
    x, y = np.arange(6.0)[:, None], np.array([0, 1, 2, 0, 1, 2])
    normal, unusual = by_label(x, y, ("a", "b", "c"), ("b", "c"))
    assert normal[:, 0].tolist() == [0, 3]
    assert {name: rows[:, 0].tolist() for name, rows in unusual.items()} == {"b": [1, 4], "c": [2, 5]}
    assert by_label(x, y % 2, ("no", "Yes"), ())[1].keys() == {"Yes"}


@pytest.mark.parametrize(
    ("y", "names", "unusual", "complaint"),
    [
        (None, None, (), "one label per row"),
        (np.array([0, 1, 2]), ("a", "b", "c"), (), "which labels are unusual.* there are a, b, c"),
        (np.array([0, 1, 1]), ("a", "b"), (), "which labels are unusual"),
        (np.array([0, 1, 1]), ("a", "b"), ("z",), "no label 'z': expected some of a, b"),
        (np.array([0, 0, 0]), ("0", "1"), (), "no held-out row is unusual"),
        (np.array([1, 1, 1]), ("0", "1"), (), "no held-out row is normal"),
    ],
)
def test_labels_that_say_too_little(y, names, unusual, complaint):
    with pytest.raises(ConfigError, match=complaint):
        by_label(np.zeros((3, 1)), y, names, unusual)


def test_without_unusual_samples(normal):
    with pytest.raises(ConfigError, match="--against FILE, or a column of labels"):
        evaluate(normal, all_to_test(USUAL), DetectionOptions())
