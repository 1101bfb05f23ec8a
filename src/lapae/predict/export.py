"""A trained model as one ONNX graph: raw data in; reconstruction, deviation, score, p-value and flag out.

The graph holds everything: scaling, encoder, decoder, the one-pass deviation (`moments`), the surprise and its
calibration. It needs onnxruntime and numpy to run, and neither torch nor this package:

    session = onnxruntime.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x, "rate": rate, "level": level})

Inputs: x (n, *shape) float32 in the user's units, NaN where missing; rate (), at which new normal data are flagged;
level (), of the intervals. Data with missing values are compared with complete ones: for those the p-value is
approximate.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lapae import __version__
from lapae.errors import ConfigError
from lapae.predict.calibrate import from_file, to_file
from lapae.predict.closed_form import to_prediction
from lapae.predict.moments import moments
from lapae.runs.files import whole

if TYPE_CHECKING:
    from lapae.model import Model

OPSET = 20
"""Version of the operators."""
TORCH = (2, 13)
"""The first release that exports: `torch.export` of earlier ones cannot record an index that is computed."""
OUTPUTS = ("reconstruction", "low", "high", "deviation", "code", "code_deviation", "score", "p_value", "flag")


class Pipeline(nn.Module):
    """What the graph does, as a module: it also serves to check the graph."""

    method: Any
    offset: Tensor
    scale: Tensor
    reference: Tensor
    levels: Tensor
    radius: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        calibration = model.calibration
        if calibration is None:
            raise ConfigError("only a calibrated model can be exported")
        if model.config.method.options.predictive != "moments":
            raise ConfigError(
                "only models that predict by moments can be exported: method online or posthoc, predictive='moments'"
            )
        # 32 bits, which every runtime has
        calibration = from_file({name: value.float() for name, value in to_file(calibration).items()})
        self.model, self.method = model, copy.deepcopy(model.method).float().cpu()
        self.method.posterior.diagonal()  # what it looks up once is looked up before the graph is recorded
        self.spread, self.surprise = calibration.spread, calibration.surprise
        numbers = {
            "offset": model.space.offset,
            "scale": model.space.scale,
            "reference": calibration.reference,
            "levels": calibration.radius.levels,
            "radius": calibration.radius.table,
        }
        for name, value in numbers.items():
            self.register_buffer(name, torch.as_tensor(np.asarray(value), dtype=torch.float32))

    def forward(self, x: Tensor, rate: Tensor, level: Tensor) -> tuple[Tensor, ...]:
        """(n, *shape), (), () -> `OUTPUTS`."""
        scaled = (self._arranged(x.to(self.offset.dtype)) - self.offset) / self.scale
        found = to_prediction(self.method.likelihood, scaled, moments(self.method, scaled), delta=True)
        deviation = self.spread.deviation(found, scaled)
        reach = deviation * self._radius(level.to(deviation.dtype))
        surprise = self.surprise(found, scaled)
        p = (1 + (self.reference[None] >= surprise[:, None]).sum(1)) / (len(self.reference) + 1.0)
        low, high = found.x_mean - reach, found.x_mean + reach
        back = [self._given(v * self.scale + self.offset) for v in (found.x_mean, low, high)]
        outputs = [*back, self._given(deviation * self.scale), found.z_mean, found.z_var.sqrt(), -surprise, p]
        return (*(value.float() for value in outputs), p <= rate)

    def _radius(self, level: Tensor) -> Tensor:
        """The radius of intervals at `level`, between those that are kept."""
        above = (self.levels < level).sum().clamp(1, len(self.levels) - 1)
        low, high = self.levels[above - 1], self.levels[above]
        part = ((level - low) / (high - low)).clamp(0, 1)
        return (1 - part) * self.radius[above - 1] + part * self.radius[above]

    def _arranged(self, x: Tensor) -> Tensor:
        layout = self.model.space.layout
        return x[:, None] if layout == "gray" else x.movedim(-1, 1) if layout == "last" else x

    def _given(self, x: Tensor) -> Tensor:
        layout = self.model.space.layout
        return x[:, 0] if layout == "gray" else x.movedim(1, -1) if layout == "last" else x


def can_export() -> bool:
    """Whether this release of torch exports."""
    return tuple(map(int, torch.__version__.split(".")[:2])) >= TORCH


def export(model: Model, path: str | Path) -> None:
    """Write `model` as an ONNX graph to `path`.

    Args:
        model: a calibrated one whose predictive is `moments`.
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
    with torch.no_grad():
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
        "columns": list(model.space.feature_names or ()),
    }
    with whole(place) as temporary:
        graph = program.model_proto
        graph.metadata_props.add(key="lapae", value=json.dumps(about))
        onnx.checker.check_model(graph)
        temporary.write_bytes(graph.SerializeToString())
