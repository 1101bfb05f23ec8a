"""A trained model as one ONNX graph: raw data in; reconstruction, deviation, score, p-value, flag and reasons out.

The graph contains everything: scaling, encoder, decoder, the deviation (by `moments`, or by tangents of drawn weights),
the anomaly score and its calibration. It needs onnxruntime and numpy to run, and neither torch nor this package
(`lapae_runtime` takes raw rows and names reasons):

    session = onnxruntime.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x, "rate": rate, "level": level})

Inputs: x (n, *shape) float32 in the user's units, NaN where missing; rate (), at which new normal data are flagged;
level (), of the intervals. For a table with categories, booleans or dates, x and the outputs like x contain codes,
which the metadata explain. A row is flagged if and only if its p-value is at most the rate. Rows with missing values
are compared like complete ones, so their p-values are approximate. If nothing is observed, score and p-value are NaN.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lapae import __version__
from lapae.calibrate.calibration import ROUNDING, Calibration, comparable
from lapae.curvature import walk
from lapae.curvature.dense import walk_dense
from lapae.errors import ConfigError
from lapae.methods.laplace import with_posterior
from lapae.networks.missing import FillMissing, Observe
from lapae.posterior import Precision
from lapae.predict.closed_form import ClosedForm, to_prediction
from lapae.predict.deviation import Deviation
from lapae.predict.linearized_lowrank import DRAWS, draws, of_dense
from lapae.predict.moments import moments
from lapae.predict.prediction import Prediction
from lapae.runs.files import whole
from lapae.runs.parts import from_tensors, to_tensors, under
from lapae.score.unseen import differ
from lapae.space import Column
from lapae.space.columns import DAY, UNIVERSAL, UNSEEN, Spans
from lapae.space.scaling import FARTHEST

if TYPE_CHECKING:
    from lapae.model import Model

OPSET = 20
"""Version of the operators."""
TORCH = (2, 13)
"""The first release that can export: `torch.export` of earlier ones cannot record a computed index."""
OUTPUTS = (
    *("reconstruction", "low", "high", "deviation", "code", "code_deviation", "anomaly_score", "p_value", "flag"),
    *("raw_score", "contribution"),
)


IN_64_BITS = (
    *(nn.Linear, nn.Tanh, nn.ReLU, nn.Sigmoid, nn.SiLU, nn.LayerNorm, nn.Softmax, nn.Flatten, nn.Unflatten),
    *(nn.Identity, nn.Dropout, FillMissing, Observe, Precision, nn.Sequential),
)
"""Layers that onnxruntime also has in 64 bits. The model of a table predicts in 64 bits, where the distance of rows
with equal values is exactly 0; in 32 bits it is not."""


WHOLE = 1e-6
"""Tolerance for whole numbers, relative to them: the end of an interval that is this near to one is the number."""
EPSILON = torch.finfo(torch.float32).eps
"""Largest relative change of a number when it is rounded to 32 bits."""
TIE = 1e-5
"""Scores that differ by less are equal: they are of rows with the same values, added up in another order."""


class Codes(nn.Module):
    """`lapae.space.columns.Spans` in torch: codes (n, F) of the columns of a table to features (n, D), and back."""

    column: Tensor
    code: Tensor
    first: Tensor
    members: Tensor
    padding: Tensor
    order: Tensor
    count: Tensor
    whole: Tensor
    boolean: Tensor
    truth: Tensor
    words: Tensor
    values: Tensor
    carried: Tensor

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        starts = Spans(tuple(columns)).starts
        wide = [i for i, column in enumerate(columns) if column.one_hot]
        single = [i for i, column in enumerate(columns) if i not in wide and column.width]
        carried = [i for i, column in enumerate(columns) if not column.width]
        most = max((columns[i].width for i in wide), default=0)
        self.any_wide = bool(wide)
        indices = {
            "column": [i for i, column in enumerate(columns) for _ in range(column.width)],
            # the code that a feature of a category stands for; -1 of others
            "code": [c for k in columns for c in (range(k.width) if k.one_hot else [-1] * k.width)],
            "first": [int(starts[i]) for i in single],
            "members": [[int(starts[i]) + min(c, columns[i].width - 1) for c in range(most)] for i in wide],
            "order": np.argsort([*single, *wide, *carried]).tolist(),
            "carried": [columns[i].carried for i in carried],
        }
        marks = {
            "padding": [[c >= columns[i].width for c in range(most)] for i in wide],
            "count": [columns[i].kind == "count" for i in single],
            "whole": [columns[i].kind == "count" or columns[i].format == DAY for i in single],
            "boolean": [columns[i].kind == "boolean" for i in single],
            "truth": [column.kind == "boolean" for column in columns],
            "words": [column.kind in ("boolean", "category") for column in columns],
        }
        for name, value in (indices | marks).items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.bool if name in marks else torch.int64))
        self.numbered = [i for i, column in enumerate(columns) if column.values]
        levels = max((len(column.values) for column in columns), default=0)
        table = [[*columns[i].values, *[np.inf] * (levels - len(columns[i].values))] for i in self.numbered]
        self.register_buffer("values", torch.tensor(table, dtype=torch.float64))

    def expand(self, x: Tensor) -> Tensor:
        """Return features of codes: categories one-hot or as numbers, all NaN where missing."""
        x = torch.where(self.truth & (x == UNSEEN), 0.5, x)
        if self.numbered:
            codes = x[:, self.numbered]
            levels = codes.nan_to_num().long().clamp(0, self.values.shape[1] - 1)
            rows = torch.arange(len(self.numbered), device=x.device) * self.values.shape[1]
            values = self.values.to(x.dtype).reshape(-1)[levels + rows]
            values = torch.where(codes == UNSEEN, 0.0, values)
            x = with_columns(x, self.numbered, torch.where(codes.isnan(), codes, values))
        wide = x[:, self.column]
        one_hot = (wide == self.code).to(x.dtype)
        return torch.where((self.code >= 0) & ~wide.isnan(), one_hot, wide)

    def gather(self, x: Tensor, *, whole: bool = True) -> Tensor:
        """Return codes of features, with values that a column can have; the ends of an interval need not be `whole`."""
        found = x[:, self.first]
        if whole:
            found = torch.where(self.whole, found.round(), found)
        found = torch.where(self.count, found.clamp_min(0), found)
        found = torch.where(self.boolean, (found >= 0.5).to(x.dtype), found)
        parts = torch.where(self.padding, -torch.inf, x[:, self.members]) if self.any_wide else None
        found = self._in_order(found, None if parts is None else parts.argmax(2).to(x.dtype), self.carried)
        if self.numbered:
            apart = (found[:, self.numbered, None] - self.values.to(x.dtype)).abs()
            found = with_columns(found, self.numbered, apart.argmin(2).to(x.dtype))
        return found

    def deviation(self, x: Tensor) -> Tensor:
        """Return deviations of columns from those of features: for a category the root of the sum of squares."""
        parts = torch.where(self.padding, 0.0, x[:, self.members].square()) if self.any_wide else None
        return self._in_order(x[:, self.first], None if parts is None else parts.sum(2).sqrt(), 0 * self.carried)

    def add_up(self, x: Tensor) -> Tensor:
        """Add up features (n, D) of each column: (n, F)."""
        columns = torch.arange(len(self.order), device=x.device)
        return x @ (self.column[:, None] == columns).to(x.dtype)

    def _in_order(self, single: Tensor, wide: Tensor | None, carried: Tensor) -> Tensor:
        """Return columns in their order: (B, F)."""
        parts = [single, *([] if wide is None else [wide])]
        if len(carried):
            parts.append(carried.to(single.dtype).expand(len(single), -1))
        return torch.cat(parts, 1)[:, self.order] if len(parts) > 1 else single


def with_columns(x: Tensor, columns: Sequence[int], values: Tensor) -> Tensor:
    """Return x (B, F) with some of its columns replaced by `values` (B, N)."""
    place = list(range(x.shape[1]))
    for k, i in enumerate(columns):
        place[i] = x.shape[1] + k
    return torch.cat([x, values], 1)[:, place]


class NewLevels(nn.Module):
    """`lapae.score.unseen` in torch: levels that are not in the training data are marked and add to scores, as do
    values that contradict another column."""

    never: Tensor
    first: Tensor
    surprise: Tensor
    hidden: Tensor
    place: Tensor
    keys: Tensor
    levels: Tensor
    contradicts: Tensor
    words: Tensor
    lines: Tensor
    on_line: Tensor

    def __init__(self, calibration: Calibration, masks: Tensor, n_columns: int) -> None:
        super().__init__()
        unseen, tail = calibration.unseen, calibration.score.tail
        assert unseen is not None and tail is not None  # noqa: PT018
        self.columns = unseen.columns.tolist()
        needed, rules = unseen.needed, unseen.contradictions
        self.determined = [] if rules is None else rules.columns.tolist()
        self.sources = [] if rules is None else rules.sources.tolist()
        buffers = {
            "never": unseen.count.flatten() == 0,
            "first": torch.arange(len(self.columns)) * unseen.count.shape[1],
            "surprise": tail * unseen.surprise,
            # whether a column is hidden in each of the masks (k, C)
            "hidden": (masks[:, needed.clamp_min(0)] & (needed >= 0)).any(2),
            "place": torch.nn.functional.one_hot(torch.from_numpy(unseen.blamed), n_columns).to(tail.dtype),
        }
        if rules is not None:
            keys = rules.keys.float()  # as numbers come
            buffers |= {"keys": keys, "levels": rules.levels.nan_to_num(), "contradicts": tail * rules.surprise}
            buffers["words"] = rules.words
            lines = rules.keys.new_full((len(rules.columns), 3), torch.nan) if rules.lines is None else rules.lines
            buffers |= {"lines": lines.nan_to_num(), "on_line": ~lines[:, 0].isnan()}
        for name, value in buffers.items():
            self.register_buffer(name, value)
        self.most = unseen.count.shape[1] - 1

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return marked codes (n, F), and what their levels add to scores (n, S)."""
        codes = x[:, self.columns]
        level = codes.nan_to_num().long().clamp(0, self.most)
        new = ~codes.isnan() & ((codes == UNSEEN) | self.never[level + self.first])
        more = new.to(x.dtype) * self.surprise
        x = with_columns(x, self.columns, torch.where(new, UNSEEN, codes)) if self.columns else x
        if not self.determined:
            return x, more
        source, own = x[:, self.sources], x[:, self.determined]
        same = source[:, :, None].float() == self.keys
        a, b, reach = self.lines.unbind(1)
        expected = torch.where(self.on_line, a * source + b, torch.where(same, self.levels, 0.0).sum(2))
        known = self.on_line | (same.sum(2) == 1)
        wrong = ~((own == UNSEEN) & self.words) & known & differ(own, expected, reach)
        return x, torch.cat([more, wrong.to(x.dtype) * self.contradicts], 1)


def compared(calibration: Calibration) -> dict[str, Tensor]:
    """Return what `Reference.compare` uses for complete rows: scores of calibration rows (n,), the values to hide in
    turn (k, F) with weights (k,), and the line that makes scores comparable with those of all rows."""
    reference = calibration.reference
    chosen, masks, weights = reference.alike(torch.zeros(reference.rows[0].numel(), dtype=torch.bool))
    full, theirs = reference.scores.double().numpy(), reference.scores.double().numpy()[chosen]
    at_0, at_1 = comparable(np.array([0.0, 1.0]), theirs, full)
    line = {"middle": torch.tensor(at_0), "width": torch.tensor(at_1 - at_0)}
    return {"reference": torch.from_numpy(theirs), "masks": masks, "weights": weights, **line}


def in_precision(calibration: Calibration, dtype: torch.dtype) -> Calibration:
    """Return a calibration whose numbers have the type `dtype`."""
    saved = {name: t.to(dtype) if t.is_floating_point() else t for name, t in to_tensors(calibration).items()}
    return from_tensors(Calibration, saved, deviation=from_tensors(Deviation, under("deviation", saved)))


class Pipeline(nn.Module):
    """The computation of the graph as a module, which also serves to check the graph."""

    method: Any
    offset: Tensor
    scale: Tensor
    reference: Tensor
    middle: Tensor
    width: Tensor
    masks: Tensor
    weights: Tensor
    levels: Tensor
    radius: Tensor
    low_end: Tensor
    high_end: Tensor
    whole_end: Tensor
    """Limits of the values of table columns, and whether they are whole numbers."""
    words: Tensor
    """Features of categories and booleans: the interval of a word is the word itself."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        calibration = model.calibration
        if calibration is None:
            raise ConfigError("only a calibrated model can be exported")
        natural = model.natural and _is_dense(model)
        if model.config.method.options.predictive != "moments" and not natural:
            raise ConfigError(
                "only models that predict by moments can be exported, and networks of linear layers with "
                "hessian='lowrank': method online or posthoc, predictive='moments' or, of tables, the default"
            )
        self.dtype = torch.float64 if model.space.kind == "table" else torch.float32
        calibration = in_precision(calibration, self.dtype)
        self.model, self.method = model, copy.deepcopy(model.method).cpu()
        self.method.to(self.dtype if in_64_bits(model.method) else torch.float32)
        posterior = self.method.posterior
        drawn: list[Tensor] = []
        if natural:
            as_trained = with_posterior(model.method, "linearized")  # in 64 bits other numbers are drawn
            posteriors = as_trained.posterior_of_codes(), as_trained.posterior
            drawn = [torch.cat([*draws(each, range(DRAWS))]).cpu().to(posterior.prior.dtype) for each in posteriors]
        else:
            posterior.diagonal()  # what it looks up once is looked up before the graph is recorded
        self.drawn = nn.ParameterList([nn.Parameter(part, requires_grad=False) for part in drawn])
        self.deviation, self.score = calibration.deviation, calibration.score
        numbers = {
            "offset": model.space.offset,
            "scale": model.space.scale,
            **compared(calibration),
            "levels": calibration.intervals.radius.levels,
            "radius": calibration.intervals.radius.table,
        }
        for name, value in numbers.items():
            dtype = torch.bool if name == "masks" else self.dtype
            self.register_buffer(name, torch.as_tensor(np.asarray(value), dtype=dtype))
        self.hides = bool(self.masks.any())
        columns = model.space.columns if model.space.kind == "table" else None
        self.codes = Codes(columns) if columns and any(column.kind != "number" for column in columns) else None
        self.new_levels = None
        if calibration.unseen is not None and calibration.score.tail is not None:
            self.new_levels = NewLevels(calibration, self.masks, model.space.shape[0])
        words = [kind in ("bernoulli", "categorical") for kind, a, b in model.space.parts for _ in range(a, b)]
        self.register_buffer("words", torch.tensor(words).reshape(model.space.model_shape))
        possible = model._possible
        self.possible = possible is not None
        if possible is not None:
            for name in ("low", "high", "whole"):
                self.register_buffer(f"{name}_end", torch.as_tensor(getattr(possible, name)))

    def forward(self, x: Tensor, rate: Tensor, level: Tensor) -> tuple[Tensor, ...]:
        """(n, *shape), (), () -> `OUTPUTS`."""
        x, more = x.to(self.dtype), None
        if self.new_levels is not None:
            x, more = self.new_levels(x)
        scaled = (self._arranged(x) - self.offset) / self.scale
        scaled = scaled.clamp(-FARTHEST, FARTHEST).float().to(self.dtype)  # what the model gets: 32 bits
        scaled = self._as_known(scaled)
        found = self._found(scaled)
        deviation = self.deviation(found, scaled)
        reach = torch.where(self.words, 0.0, deviation * self._radius(level.to(deviation.dtype)) + ROUNDING)
        raw = self.score(found, scaled)
        score = self._score(scaled) if self.hides else raw
        if self.new_levels is not None and more is not None:
            shares = self.weights @ (~self.new_levels.hidden).to(self.dtype)  # of the masks that leave a column (C,)
            raw, score = raw + more.sum(1), score + more @ shares
        least = score - TIE * score.abs().clamp_min(1)
        p = (1 + (self.reference[None] >= least[:, None]).sum(1)) / (len(self.reference) + 1.0)
        empty = scaled.isnan().flatten(1).all(1)
        score = self.middle + self.width * score
        score, p = (torch.where(empty, torch.nan, value) for value in (score, p))
        low, high = found.x_mean - reach, found.x_mean + reach
        mean, low, high = (v * self.scale + self.offset for v in (found.x_mean, low, high))
        back = [self._given(mean), *self._ends(mean, low, high)]
        deviation = deviation * self.scale
        deviation = self._given(deviation) if self.codes is None else self.codes.deviation(deviation)
        outputs = [*back, deviation, found.z_mean, found.z_var.sqrt(), score, p]
        parts = self.score.explain(found, scaled).nan_to_num()
        parts = self._given(parts) if self.codes is None else self.codes.add_up(parts)
        if self.new_levels is not None and more is not None:
            parts = parts + more @ self.new_levels.place
        return (*(value.float() for value in outputs), p <= rate, raw.float(), parts.float())

    def _as_known(self, x: Tensor) -> Tensor:
        """Return rows x (n, D) with values of training rows instead of values that differ from them only by rounding to
        32 bits: ranks and distances of 0 depend on the last bit."""
        if self.score.marginals is None:
            return x
        known = self.score.marginals.ranks
        nearest = (known - x[..., None]).abs().nan_to_num(torch.inf).argmin(2)
        nearest = known.T.gather(0, nearest)
        rounding = EPSILON * ((self.offset / self.scale).abs() + 2 * x.abs())
        return torch.where((nearest - x).abs() <= rounding, nearest, x)

    def _ends(self, mean: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return intervals of possible values, as `Model.interval` does."""
        low, high = self._given(low, whole=False), self._given(high, whole=False)
        if not self.possible:
            return low, high
        tiny = WHOLE * low.abs().clamp_min(1)
        low = torch.where(self.whole_end, (low + tiny).floor(), low)
        high = torch.where(self.whole_end, (high - tiny).ceil(), high)
        low, high = (end.clamp(self.low_end.to(end.dtype), self.high_end.to(end.dtype)) for end in (low, high))
        if self.codes is not None:
            word = self._given(mean)
            low, high = torch.where(self.codes.words, word, low), torch.where(self.codes.words, word, high)
        return low, high

    def _found(self, x: Tensor, *, means: bool = False) -> Prediction:
        """Predict rows x (n, *model_shape); with `means`, variances may be omitted."""
        given = x.to(next(self.method.parameters()).dtype)
        natural = len(self.drawn) > 0
        statistics = self._linearized(given, means) if natural else moments(self.method, given)
        found = to_prediction(self.method.likelihood, given, statistics, delta=not natural)
        return found.replace(**{name: value.to(self.dtype) for name, value in found.values.items()})

    def _linearized(self, x: Tensor, means: bool) -> ClosedForm:
        """Predict rows x by the tangents of drawn weights, as `lapae.predict.linearized_lowrank` does."""
        with self.method.unfrozen():
            tape = walk(self.method.network, x)
        z = tape.nodes[sum(node.name.startswith("encoder") for node in tape.nodes) - 1].y
        if means:
            return ClosedForm(z, torch.zeros_like(z), None, tape.output, torch.zeros_like(tape.output))
        encoders, networks = (self.method.posterior.split(part) for part in self.drawn)
        of_codes = of_dense(self.method, tape, outputs=False)(encoders)[0]
        of_outputs = of_dense(self.method, tape, outputs=True)(networks)[1]
        return ClosedForm(z, of_codes.square().mean(0), None, tape.output, of_outputs.square().mean(0))

    def _score(self, x: Tensor) -> Tensor:
        """Return the mean score (n,) of rows x (n, *model_shape), in which the values missing in calibration rows are
        hidden in turn."""
        hidden = torch.where(self.masks, torch.nan, x.flatten(1)[:, None]).reshape(-1, *x.shape[1:])
        return (
            self.score(self._found(hidden, means=self.score.needs == ("means",)), hidden).reshape(-1, len(self.masks))
            @ self.weights
        )

    def _radius(self, level: Tensor) -> Tensor:
        """Return the radius of intervals at `level`, interpolated between those that are stored."""
        above = (self.levels < level).sum().clamp(1, len(self.levels) - 1)
        low, high = self.levels[above - 1], self.levels[above]
        part = ((level - low) / (high - low)).clamp(0, 1)
        return (1 - part) * self.radius[above - 1] + part * self.radius[above]

    def _arranged(self, x: Tensor) -> Tensor:
        if self.codes is not None:
            return self.codes.expand(x)
        layout = self.model.space.layout
        return x[:, None] if layout == "gray" else x.movedim(-1, 1) if layout == "last" else x

    def _given(self, x: Tensor, *, whole: bool = True) -> Tensor:
        if self.codes is not None:
            return self.codes.gather(x, whole=whole)
        layout = self.model.space.layout
        return x[:, 0] if layout == "gray" else x.movedim(1, -1) if layout == "last" else x


def _is_dense(model: Model) -> bool:
    """Return whether all weights of a network belong to linear layers, whose tangents can be recorded."""
    weight = next(model.method.parameters())
    x = torch.zeros(1, *model.space.model_shape, dtype=weight.dtype, device=weight.device)
    return walk_dense(with_posterior(model.method, "linearized").network, x) is not None


def in_64_bits(method: nn.Module) -> bool:
    """Return whether onnxruntime has the layers of a network in 64 bits."""
    return all(isinstance(layer, IN_64_BITS) for layer in method.modules() if not [*layer.children()])


def can_export() -> bool:
    """Return whether this release of torch can export."""
    return tuple(map(int, torch.__version__.split(".")[:2])) >= TORCH


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Keep back what torch says about its own code and about packages that the graph does not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def export(model: Model, path: str | Path) -> None:
    """Write `model` as an ONNX graph to `path`.

    Args:
        model: a calibrated model whose predictive is `moments`, or `linearized` with covariances of linear layers.
        path: a file that ends in .onnx.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError("export needs onnx and onnxscript: pip install 'lapae[export]'") from error
    if not can_export():
        raise ConfigError(f"export needs torch {TORCH[0]}.{TORCH[1]} or later, this is {torch.__version__}")
    place = Path(path)
    if place.suffix != ".onnx":
        raise ConfigError(f"{place}: expected a file that ends in .onnx")
    pipeline = Pipeline(model).eval()
    x = torch.zeros(3, *model.space.shape, dtype=torch.float32)
    names = ["x", "rate", "level"]
    given = (x, torch.tensor(0.05), torch.tensor(0.9))
    # constants of 64 bits that are infinite in 32
    with torch.no_grad(), np.errstate(over="ignore"), _without_remarks():
        program = torch.onnx.export(
            pipeline,
            given,
            dynamo=True,
            opset_version=OPSET,
            input_names=names,
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("n")}, {}, {}),
            optimize=False,  # the runtime does so when it reads the graph, faster
            verbose=False,
        )
    assert program is not None
    about = {
        "format": "lapae export 1",
        "version": __version__,
        "kind": model.space.kind,
        "shape": list(model.space.shape),
        "columns": list(model.space.names or ()),
        "hides": model.hides,
    }
    if pipeline.codes is not None:
        about["kinds"] = [column.kind for column in model.space.numbered]
        about["categories"] = {c.name: list(c.categories) for c in model.space.numbered if c.categories}
        about["unseen"] = pipeline.new_levels is not None
        forms = {c.name: c.format or (UNIVERSAL if ", " in c.dtype else "") for c in model.space.numbered}
        about["formats"] = {name: form for name, form in forms.items() if form}
    with whole(place) as temporary:
        graph = program.model_proto
        graph.metadata_props.add(key="lapae", value=json.dumps(about))
        onnx.checker.check_model(graph)
        temporary.write_bytes(graph.SerializeToString())
