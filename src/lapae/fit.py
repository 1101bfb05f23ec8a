"""From a configuration and data to a trained model, for the command line, the estimator and the experiments."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lapae.calibrate.calibration import MOST_CALIBRATION_ROWS, Calibration, Tiles
from lapae.calibrate.conformal import by_chance, correlation_time
from lapae.calibrate.temperature import ROWS, fit_drawn, fit_temperature
from lapae.config import Config, DataConfig, MethodConfig
from lapae.curvature.likelihoods import Likelihood
from lapae.data import Batches, Data, Split, load
from lapae.data.source import Source, Streamed, sampled
from lapae.data.splits import check_enough
from lapae.errors import UNFINISHED, ConfigError, DataError, RunError
from lapae.generate.rows import MOST_COLUMNS, MOST_SAMPLED, RowSampler
from lapae.impute import rows_to_impute
from lapae.methods import Method
from lapae.methods.building import Modules, build_method, make_likelihood, restart
from lapae.methods.own import gives_logits
from lapae.model import Model, settle
from lapae.networks.principal import MOST_PCA_VALUES
from lapae.networks.threads import few_threads
from lapae.predict import Prediction
from lapae.runs import CHECKPOINT, CONFIG, METRICS, Run
from lapae.runs.files import remove, write_whole
from lapae.runs.toml import config_from_dict, config_to_dict, write_config
from lapae.score.code_density import MOST_CODES
from lapae.score.latent_codes import LatentCodes
from lapae.score.unseen import Unseen
from lapae.space import Space, for_trained
from lapae.space.scaling import chunks
from lapae.storage import load_run, save
from lapae.train.checkpoint import load_shared_checkpoint
from lapae.train.choose import choose
from lapae.train.distributed import from_first, node_first, rank, take_place, world_size
from lapae.train.finish import finish
from lapae.train.float_precision import matrix_products
from lapae.train.held_out import evaluate, set_noise
from lapae.train.loop import train
from lapae.train.messages import ending, outcome, understood
from lapae.train.progress import Observer, TensorBoard
from lapae.train.resume import as_before, check_same_data, data_digest, has_config, saved_config
from lapae.train.select import select
from lapae.train.stream import held_out, learn

VALIDATION_BATCH = 256
"""Minimum number of samples in a validation batch, which may be larger because there are no gradients."""

STARTED_FROM = 4000
"""Maximum number of samples of a split used for the principal components from which a network starts."""

WINDOW = 200
"""Minimum number of samples of a stream held out for calibration, once there have been that many."""

CHECKED = 1000
"""Number of rows used to check that the likelihood suits the data."""

RATES, COMPARED, CHANCE = (0.05, 0.2), 200, 1e-3
"""Rates at which held-out rows are flagged to see whether p-values hold, rows, and chance of a false warning."""

LONG_MEMORY = 0.2
"""Correlation time of a channel, as a share of the training windows, above which p-values of new windows may not hold.
It was chosen by the simulation in tests/calibrate/test_series_rates.py."""

WHOLE = 1e-4
"""Tolerance with which a value of a command is 0 or 1: data are stored in single precision."""

MOST_READ = 2**26
"""Maximum number of values of training samples that are read to learn the density of codes, beyond those read
anyway."""


def load_data(config: DataConfig) -> Data:
    """Load the data that a configuration names."""
    same = ("data_dir", "limit", "label_column", "group_column", "columns", "drop", "window", "stride")
    return load(
        config.source,
        validation=config.validation_fraction,
        calibration=config.calibration_fraction,
        test=config.test_fraction,
        seed=config.split_seed,
        **{name: getattr(config, name) for name in (*same, "image_size", "fit", "tile", "features", "skip_bad")},
    )


def some_rows(space: Space, *splits: Split) -> torch.Tensor:
    """Return samples of splits to compute principal components from, in the model's space: (n, *model_shape)."""
    most = min(STARTED_FROM, max(STARTED_FROM // 16, MOST_PCA_VALUES // math.prod(space.model_shape)))
    rows = [sampled(split.x, most) for split in splits]
    return torch.from_numpy(space.convert(np.concatenate(rows)))


def check_values(data: Data, likelihood: Likelihood) -> None:
    """Raise ConfigError if the data, as the model sees them, have no density under `likelihood`."""
    least, most = (np.asarray(bound) for bound in likelihood.support)
    if np.isinf(least).all() and np.isinf(most).all():
        return
    x = data.space.convert(np.asarray(data.train.x[:CHECKED]))
    if not ((x >= least) & (x <= most) | np.isnan(x)).all():
        low, high = np.nanmin(x), np.nanmax(x)
        as_given = data.kind == "image" or data.space.unit is not None
        scaled = "" if as_given else " (all but images are standardised)"
        name = type(likelihood).__name__.lower()
        raise ConfigError(
            f"the {name} likelihood takes values from 0 to 1, such as images; these run from {low:.3g} to "
            f"{high:.3g}{scaled}. Use likelihood='gaussian'"
        )


def check_varies(data: Data) -> None:
    """Raise DataError if no column of a table has two values."""
    if data.kind != "table" or len(data.train) < 2:
        return
    x = data.train.x
    rows = x.sample if isinstance(x, Streamed) else x
    low, high = np.full((2, x.shape[1]), [[np.inf], [-np.inf]])
    for _, part in chunks(rows):
        low, high = np.fmin(low, np.fmin.reduce(part)), np.fmax(high, np.fmax.reduce(part))
        if (low < high).any():
            return
    raise DataError(f"{data.space.name}: has no column that can be learned: each has a single value")


def as_it_is(data: Data, likelihood: Likelihood, integers: bool | None) -> Data:
    """Return data whose values a trained network gets as they are, except integer images, which are divided by 255 with
    a message."""
    if integers is None:  # booleans are held as bytes, with a scale of 1
        integers = data.train.x.dtype.kind in "iu" and bool(np.any(data.space.scale != 1))
    space = for_trained(data.space, integers=integers, logits=gives_logits(likelihood))
    if space.unit != 1 and rank() == 0:
        print(f"the images are whole numbers: the network gets them divided by {space.unit:g}", file=sys.stderr)
    return replace(data, space=space)


def fit(
    config: Config,
    data: Data | None = None,
    *,
    run: Run | None = None,
    resume: bool = False,
    network: Modules | torch.nn.Module | None = None,
    likelihood: Likelihood | None = None,
    observers: Sequence[Observer] = (),
    integers: bool | None = None,
) -> Model:
    """Train a model. The state of torch's global generators is restored.

    Args:
        config: what to train, and how; options that it leaves open are chosen from the data.
        data: the data to learn; default: the data that `config` names.
        run: folder for checkpoints and the trained model; default: none.
        resume: continue from the last checkpoint of `run`.
        network: encoder and decoder, in place of the network that `config` names.
        likelihood: in place of the one that `config` names.
        observers: are told how training goes.
        integers: whether the type of the user's values is one of whole numbers; default: determined from `data`. A
            network that is not trained (`epochs = 0`) gets the values as they are, with integer images divided by 255.
    """
    config = config.resolved()
    device = take_place(config.train)
    if run is not None and resume and from_first(lambda: has_config(run)):
        config, done = resumed(run, config, network, likelihood)
        if done is not None:
            return done
    data = node_first(lambda: load_data(config.data)) if data is None else data
    check_enough(sum(len(split.x) for split in (data.train, data.valid, data.calib)), data.space.name)
    if network is None:
        check_varies(data)
    config = choose(config, data.space, own=network is not None, portion=data.portion)
    starts_from = config.method.options.starts_from
    if config.train.epochs == 0 and network is not None and starts_from is None:
        data = as_it_is(data, likelihood or make_likelihood(config.model, data.space), integers)
    if config.train.epochs == 0 and network is None and not config.model.linear and not starts_from:
        raise ConfigError(
            "epochs = 0 is for a network that is trained already: this one would keep its random initial weights"
        )
    observers = observers if rank() == 0 else ()
    trained = train_method(config, data, device, run, resume, network, likelihood, observers)
    method = settle(trained.method, data.space)
    model = Model(method, config, data.space, metrics=trained.metrics, history=trained.history)
    if config.model.latent_dim is None:  # modules of the user's own say it
        config = replace(config, model=replace(config.model, latent_dim=math.prod(model.code_shape)))
        model = replace(model, config=config)
    for observer in observers:
        observer.say(ending(trained.metrics, config))
        observer.say(outcome(trained.metrics, config.model.latent_dim))
    model = calibrate(with_temperature(model, data), data)
    assert model.calibration is not None
    if rank() == 0 and (unmet := model.calibration.unmet(model.rule().rate, tiles=model.space.tile)):
        warnings.warn(unmet, stacklevel=2)
    return save(model, run) if run is not None and rank() == 0 else model


def resumed(
    run: Run, config: Config, network: Modules | torch.nn.Module | None, likelihood: Likelihood | None
) -> tuple[Config, Model | None]:
    """Return the configuration with which a run continues, and its model if there is nothing left to do.

    Args:
        run: the run folder.
        config: the user's present options.
        network: modules of the user's own.
        likelihood: likelihood of the user's own.
    """
    saved = config_from_dict(from_first(lambda: config_to_dict(saved_config(run))), str(run.path))
    config = as_before(saved, config)
    done: list[Model] = []

    def finished() -> bool:
        if not run.finished or config_to_dict(saved) != config_to_dict(config):
            return False
        try:
            done.append(load_run(run.path, network=network, likelihood=likelihood))
        except RunError as error:
            if not (run / CHECKPOINT).exists():
                raise
            warnings.warn(str(error), stacklevel=3)
        return bool(done)

    if not from_first(finished):
        return config, None
    return config, done[0] if done else load_run(run.path, network=network, likelihood=likelihood)


@dataclass(frozen=True)
class TrainedMethod:
    """A trained method, its final numbers, and one record per epoch."""

    method: Method
    metrics: dict[str, Any]
    history: list[dict[str, Any]]


def train_method(
    config: Config,
    data: Data,
    device: torch.device,
    run: Run | None,
    resume: bool,
    network: Modules | torch.nn.Module | None,
    likelihood: Likelihood | None,
    observers: Sequence[Observer],
) -> TrainedMethod:
    """Build a method, train it, select its weights and finish its posterior.

    Args:
        config: what to train, and how, with nothing left open.
        data: what to learn.
        device: where.
        run: folder to write checkpoints into, if any.
        resume: continue from the last checkpoint of `run`.
        network: encoder and decoder, in place of the network that `config` names.
        likelihood: in place of the one that `config` names.
        observers: are told how training goes.
    """
    options: Any = config.train
    began = time.monotonic()
    share: dict[str, Any] = {"device": device, "seed": options.seed, "rank": rank(), "world_size": world_size()}
    generators = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with generators, matrix_products(options), ExitStack() as small:
        check_values(data, make_likelihood(config.model, data.space) if likelihood is None else likelihood)
        linear = bool(config.model.linear)
        fresh = linear and config.method.options.starts_from is None
        first = some_rows(data.space, data.train) if linear else None
        method = build_method(config, data.space, network=network, likelihood=likelihood, start=first)
        small.enter_context(few_threads(method, options.batch_size))
        batches = Batches(data.train.x, data.space, options.batch_size, shuffle=True, **share)
        valid = Batches(data.valid.x, data.space, max(options.batch_size, VALIDATION_BATCH), **share)
        digest = from_first(lambda: data_digest(data)) if run is not None else ""
        checkpoint = load_shared_checkpoint(run) if run is not None and resume else None
        if checkpoint is not None:
            check_same_data(checkpoint, data, digest)
        elif config.method.options.starts_from is not None:
            start(method, config.method.options.starts_from)
        if run is not None and rank() == 0:  # now that the configuration is known to work
            write_whole(run / CONFIG, write_config(config).encode())
            remove(run / METRICS)
            if options.tensorboard:
                observers = [*observers, TensorBoard(run / "tensorboard")]
        for observer in observers:
            observer.say(understood(config, data))
        result = train(
            method,
            batches,
            valid,
            options,
            run=run,
            about={"config": config_to_dict(config), "space": data.space.to_dict(), "data": digest},
            device=device,
            resume=checkpoint,
            observers=observers,
            by_width=linear,
        )

        def rival(method: Method) -> None:
            """Set the weights that one would get without holding out rows for calibration; a trained network is its own
            rival."""
            if fresh:
                restart(method, some_rows(data.space, data.train, data.calib))

        chosen = select(method, result, rival if linear else None)

        def refit(method: Method) -> None:
            """Compute principal components that are kept from the validation set too, now that it has decided."""
            if fresh and chosen.weights == "rival":
                restart(method, some_rows(data.space, data.train, data.valid))

        final = finish(method, batches, options, result.held_out, refit)
    metrics = {
        "epochs": len(result.history),
        "best_epoch": result.best_epoch if chosen.weights == "trained" else 0,
        "best_loss": result.best_loss,
        "stopped": result.stopped,
        "explained": final.explained,
        **({"explained_by_pca": chosen.rival_explained} if fresh else {}),
        "seconds": time.monotonic() - began,
        "device": str(device),
        **({"processes": world_size()} if world_size() > 1 else {}),
        **final.report,
    }
    if len(data.test.x):
        metrics["test"] = evaluate(method, Batches(data.test.x, data.space, VALIDATION_BATCH, **share))
    return TrainedMethod(method, metrics, result.history)


def with_temperature(model: Model, data: Data) -> Model:
    """Return a trained model with the temperature that predicts held-out rows best, unless one was given."""
    method, options = model.method, model.config.method
    if method.temperature is None:
        return model
    rows = some(model, data.valid.x if len(data.valid.x) else data.train.x, ROWS)
    with few_threads(method, model.config.train.batch_size or 1):
        fit_drawn(method, rows, seed=model.seed)
        if options.temperature is not None:
            return model
        linearized = model.predictive.kind == "linearized"
        found = fit_temperature(method, rows, seed=model.seed, linearized=linearized)
    config = replace(model.config, method=MethodConfig(options.method, options.options, temperature=found))
    return replace(model, config=config)


def calibrate(model: Model, data: Data) -> Model:
    """Return a trained model with the parts that calibrate its numbers.

    An imputer is fitted here if rows have missing values; otherwise when missing values are first filled in.
    """
    if model.space.kind == "table":
        held_out = np.concatenate([np.asarray(sampled(split.x, MOST_SAMPLED)) for split in (data.valid, data.calib)])
        model = replace(model, space=model.space.confirmed(held_out.astype(np.float64)))
    unseen = None
    if model.space.kind == "table" and model.config.train.unseen == "unusual":
        unseen = Unseen.fit(model.space.columns, [data.train.x, data.valid.x, data.calib.x])
    train, valid, calib = (some(model, split.x) for split in (data.train, data.valid, data.calib))
    surprises = surprises_of(data.calib if len(calib) else data.valid if len(valid) else data.train, unseen)
    most = min(MOST_CODES, max(MOST_CALIBRATION_ROWS, MOST_READ // train[0].numel()))
    many = some(model, data.train.x, most) if len(data.train.x) > MOST_CALIBRATION_ROWS else None
    learned = bool(model.config.model.linear) and model.metrics.get("best_epoch") == 0
    model = calibrate_on(model, train, valid, calib, many, learned=learned, unseen=unseen, surprises=surprises)
    if model.space.kind == "table" and model.space.shape[0] <= MOST_COLUMNS:
        splits = (data.train, data.valid, data.calib)
        every = np.concatenate([sampled(split.x, MOST_SAMPLED) for split in splits])[:MOST_SAMPLED]
        rows = torch.from_numpy(model.space.known(every.astype(np.float64)))
        of = [sampled(split.together, MOST_SAMPLED) for split in splits if split.together is not None]
        groups = torch.from_numpy(np.concatenate(of)[: len(rows)]) if of else None
        model = replace(model, sampler=RowSampler(rows, groups))
    if data.calib.groups is not None:
        model = with_images(model, data.calib)
    if model.space.stride:
        check_memory(model, train)
    if len(data.calib.x):
        check_rates(model, data)
    else:
        warnings.warn(
            "no rows are held out to calibrate: p-values and intervals are based on rows that were trained on, "
            "and do not hold for new ones",
            stacklevel=2,
        )
    return model.with_imputer() if model.space.kind == "table" and bool(train.isnan().any()) else model


def calibrate_on(
    model: Model,
    train: torch.Tensor,
    valid: torch.Tensor,
    calib: torch.Tensor,
    many: torch.Tensor | None = None,
    *,
    learned: bool = False,
    unseen: Unseen | None = None,
    surprises: torch.Tensor | None = None,
) -> Model:
    """Return a trained model with parts fitted to rows (n, *model_shape) in its space.

    Args:
        model: the trained model.
        train: some of the rows that training has seen.
        valid: the validation set.
        calib: rows that training has not seen.
        many: more rows of `train`, if there are any.
        learned: whether the model was fitted to `valid` as well.
        unseen: what levels that are not in the training data add to scores.
        surprises: surprises of the calibration rows, as `Calibration.fit` takes them.
    """
    method, table = model.method, model.space.kind == "table"
    with few_threads(method, model.config.train.batch_size or 1):
        codes = LatentCodes.fit(method, train if many is None else many, valid)
        how: dict[str, Any] = {"table": table, "learned": learned, "adds_variance": model.natural}
        how["judged"] = not_commands(model.space, train) if len(model.space.model_shape) == 2 else None
        how["apart"] = overlap(model)
        how["maps"] = model.space.features is not None
        how |= {"unseen": unseen, "surprises": surprises}

        def means(x: torch.Tensor) -> Prediction:
            return model.predict(x, ("means",))

        found = Calibration.fit(model.predict, train, valid, calib, **how, means=means if table else None)
    rows = None  # maps are not imputed
    if not model.space.features:
        rows = rows_to_impute(method, model.space, train, valid, len(found.reference.rows))
    return replace(model, calibration=found, codes=codes, rows=rows, imputer=None, sampler=None)


def not_commands(space: Space, windows: torch.Tensor) -> torch.Tensor | None:
    """Return the channels (J,) of training windows (n, T, C) that are not commands; None if all are, or none.

    A command is 0 or 1 in every step. The model reads commands, because they determine what the sensors do, but an
    unusual command is not a fault of the machine: in telemetry, rare commands drown out the sensors.
    """
    values = np.nan_to_num(space.to_user(windows.double().numpy()))
    apart = np.minimum(np.abs(values), np.abs(values - 1)).max((0, 1)) > WHOLE
    return None if apart.all() or not apart.any() else torch.from_numpy(np.flatnonzero(apart))


def some(model: Model, x: Source, most: int = MOST_CALIBRATION_ROWS) -> torch.Tensor:
    """Return at most `most` rows, evenly spaced, in the model's space: (n, *model_shape)."""
    rows = model.space.convert(sampled(x, most))
    return torch.from_numpy(rows).to(next(model.method.parameters()).dtype)


def surprises_of(
    split: Split, unseen: Unseen | None, most: int = MOST_CALIBRATION_ROWS, *, counted: bool = True
) -> torch.Tensor | None:
    """Return the surprises (n, C) of levels that no other row has, in the rows that `some` takes from a split.

    Args:
        split: the split.
        unseen: defines what is a surprise; None if nothing is.
        most: maximum number of rows.
        counted: whether the levels of the split were counted.
    """
    if unseen is None:
        return None
    rows = sampled(split.x, most)
    return unseen.surprises(unseen.among(rows) if counted else unseen.marked(rows))


def overlap(model: Model) -> int | None:
    """Return how many windows of a series lie between two that share no step; None for other data."""
    return -(-model.space.shape[0] // model.space.stride) if model.space.stride else None


def check_rates(model: Model, data: Data) -> None:
    """Warn if held-out rows that are compared with the calibration rows are flagged more often than chance allows.

    These are rows of the test split, else of the validation set.
    """
    assert model.calibration is not None
    split, name = (data.test, "test") if len(data.test.x) else (data.valid, "validation")
    if not len(split.x):
        return
    surprises = surprises_of(split, model.calibration.unseen, COMPARED, counted=name != "test")
    p = model.calibration.compare(model.for_score, some(model, split.x, COMPARED), surprises)[1]
    p, n = p[~np.isnan(p)], len(model.calibration.reference.scores)
    for rate in RATES:
        flagged = int((p <= rate).sum())
        if by_chance(flagged, len(p), rate, n, overlap(model) or 1) < CHANCE:
            warnings.warn(
                f"{flagged} of {len(p)} {name} rows have p <= {rate}, where {rate * len(p):.0f} are expected: p-values "
                "do not hold for rows like these. The rows may have changed over time, or belong to groups",
                stacklevel=2,
            )
            return


def check_memory(model: Model, windows: torch.Tensor) -> None:
    """Warn if a series remembers so much of its training part that new data may be elsewhere without a fault.

    Args:
        model: the trained model.
        windows: training windows in the order of time, evenly spaced, (n, T, C).
    """
    judged = not_commands(model.space, windows)
    channels = range(windows.shape[2]) if judged is None else judged.tolist()
    values = windows[:, 0].double().numpy()
    known = {i: values[~np.isnan(values[:, i]), i] for i in channels}
    time = {i: correlation_time(x) / len(values) if len(x) else 0.0 for i, x in known.items()}
    longest = max(time, key=lambda i: time[i])
    if time[longest] <= LONG_MEMORY:
        return
    warnings.warn(
        f"channel {model.space.numbered[longest].name!r} remembers a large part of the training data "
        f"({time[longest]:.0%} of it), so new data may be different without a fault: of such series, on average 8 to "
        "16 % of normal windows have p <= 0.05, and of some 30 % or more. Train on a longer record; lapae score also "
        "writes p_adaptive, which follows slow changes",
        stacklevel=2,
    )


def with_images(model: Model, held: Split) -> Model:
    """Return a model of tiles that is calibrated for whole images, by the most unusual tile of each."""
    assert model.calibration is not None
    assert held.groups is not None
    blocks = np.array_split(np.arange(len(held.x)), -(-len(held.x) // MOST_CALIBRATION_ROWS)) if len(held.x) else []
    found = [model.calibration.compare(model.for_score, some(model, held.x[block]))[0] for block in blocks]
    image = np.unique(held.groups, return_inverse=True)[1]
    most = np.full(image.max(initial=-1) + 1, -np.inf)
    np.maximum.at(most, image, np.concatenate([*found, np.empty(0)]))
    return replace(model, calibration=replace(model.calibration, tiles=Tiles(torch.from_numpy(most))))


def learn_on(model: Model, X: Any) -> Model:
    """Return a trained model after the next rows of a stream: it learns from most of them, the others calibrate it.

    The calibration uses a window of the newest rows held out, as long as the one after training. The method of `model`
    is changed in place.
    """
    config, known = model.config, model.calibration
    if config.method.method != "online":
        raise ConfigError("only the online method can continue to learn: it updates its posterior as it trains")
    if known is None:
        raise RunError(UNFINISHED)
    x, turn = model.tensor(X), model.metrics.get("portions", 0)
    x = x[~x.isnan().flatten(1).all(1)]  # there is nothing to learn from a row without a value
    held = held_out(len(x), model.seed, turn)
    if not held.all():
        learn(model.method, x[~held], config.train, turn, by_width=bool(config.model.linear))
    # half of the window fits the score, the other half calibrates it
    before = in_turn(known.intervals.more, known.reference.rows)
    newest = torch.cat([before, x[held]])[-max(len(before), WINDOW) :]
    newest = newest[len(newest) % 2 :]
    valid, calib = newest[::2], newest[1::2]
    recent = torch.cat([x[:0] if model.recent is None else model.recent, x[~held]])[-MOST_CALIBRATION_ROWS:]
    set_noise(model.method, lambda: [valid], next(model.method.parameters()).device, per_feature=True)
    model = replace(model, recent=recent, metrics={**model.metrics, "portions": turn + 1}, as_saved=False)
    # the levels of the window's rows are not counted, because surprising new levels are rare among them
    return calibrate_on(model, recent, valid, calib, unseen=known.unseen)


def in_turn(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Join two halves of a window (n, …): alternately if they were split alternately, else one after the other."""
    if len(first) != len(second):
        return torch.cat([first, second])
    return torch.stack([first, second], 1).flatten(0, 1)


def start(method: Method, run: str) -> None:
    """Start a method from the trained one of a run."""
    try:
        method.start_from(load_run(run).method)
    except ConfigError as error:
        raise ConfigError(f"cannot start from {run!r}: {error}") from error
