"""Mistakes that the tests must see: each is one small change of the source, and the test that has to fail with it.

A file that moves is one line here: paths stand once, below. `test_mutants.py` says what no longer fits.
"""

from __future__ import annotations

from typing import NamedTuple

# sources, under src/lapae
CONFORMAL = "calibrate/conformal.py"
CALIBRATE = "calibrate/calibration.py"
NEIGHBOURS = "score/neighbours.py"
TEMPERATURE = "calibrate/temperature.py"
IMPUTER = "impute/imputer.py"
FIT = "fit.py"
SPLITS = "data/splits.py"
SEMI = "../lapae_paper/tasks/semi_supervised.py"
AFFINE = "curvature/rules/affine.py"
CONVOLUTION = "curvature/rules/convolution.py"
ACTIVATIONS = "curvature/rules/activations.py"
LINEAR_MAPS = "curvature/rules/linear_maps.py"
NORM = "curvature/rules/norm.py"
CONTINUOUS = "curvature/likelihoods/continuous.py"
DISCRETE = "curvature/likelihoods/discrete.py"
STUDENT = "curvature/likelihoods/student.py"
FORMS = "curvature/forms.py"
SKETCH = "curvature/sketch.py"
COLLECT = "curvature/collect.py"
EXTRACT = "curvature/extract.py"
BACKWARD = "curvature/walked.py"
ONLINE = "methods/online.py"
POSTHOC = "methods/posthoc.py"
UPDATE = "posterior/update.py"
EVIDENCE = "posterior/evidence.py"
PRECISION = "posterior/precision.py"
BLOCK = "posterior/block.py"
KRON = "posterior/kron.py"
GAUSSIAN = "posterior/gaussian.py"
NOISE = "posterior/noise.py"
FILES = "runs/files.py"
RUN = "runs/run.py"
STORAGE = "storage.py"
SERVER = "view/explore/server.py"
HANDLER = "view/explore/handler.py"
REQUESTS = "view/explore/requests.py"

# tests, under tests
T_CONFORMAL = "calibrate/test_conformal.py"
T_CALIBRATE = "calibrate/test_calibrate.py"
T_NEIGHBOURS = "score/test_neighbours.py"
T_TEMPERATURE = "calibrate/test_temperature.py"
T_HELD_OUT = "train/test_held_out.py"
T_STREAM = "estimator/test_stream.py"
T_SPLITS = "data/test_splits.py"
T_SEMI = "paper/tasks/test_semi_supervised.py"
T_SQUARES = "curvature/test_squares.py"
T_LAYERS = "curvature/test_layers.py"
T_METHODS = "curvature/test_methods.py"
T_SKETCH = "curvature/test_sketch.py"
T_PEERS = "curvature/test_peers.py"
T_ANY_MODULE = "curvature/test_any_module.py"
T_LIKELIHOODS = "networks/test_likelihoods.py"
T_ONLINE = "methods/test_online.py"
T_POSTHOC = "methods/test_posthoc.py"
T_UPDATE = "posterior/test_update.py"
T_EVIDENCE = "posterior/test_evidence.py"
T_PRECISION = "posterior/test_precision.py"
T_GAUSSIAN = "posterior/test_gaussian.py"
T_NOISE = "posterior/test_noise.py"
T_RUNS = "runs/test_runs.py"
T_DAMAGE = "faults/test_damage.py"
T_SERVER = "view/explore/test_explore_server.py"


class Mutant(NamedTuple):
    """One change of one file."""

    name: str
    source: str
    """The file, under src/lapae."""
    original: str
    """Text that stands there once."""
    mutated: str
    """What it is replaced by."""
    file: str
    """The test file, under tests."""
    test: str
    """The function in it that must fail."""


MUTANTS = (
    # --- conformal -------------------------------------------------------------------------------------------------
    Mutant(
        "p-value: ties count as below",
        CONFORMAL,
        'np.searchsorted(known, scores, side="left")',
        'np.searchsorted(known, scores, side="right")',
        T_CONFORMAL,
        "test_p_values_are_the_definition",
    ),
    Mutant(
        "p-value: the new row itself is not counted",
        CONFORMAL,
        "(1.0 + at_least) / (len(known) + 1.0)",
        "at_least / (len(known) + 1.0)",
        T_CONFORMAL,
        "test_p_values_are_the_definition",
    ),
    Mutant(
        "p-value: a share of n instead of n + 1",
        CONFORMAL,
        "(1.0 + at_least) / (len(known) + 1.0)",
        "(1.0 + at_least) / max(len(known), 1.0)",
        T_CONFORMAL,
        "test_p_values_are_the_definition",
    ),
    Mutant(
        "p-value: held-out rows without a score count as extreme",
        CONFORMAL,
        "known = np.sort(held_out[~np.isnan(held_out)])",
        "known = np.sort(held_out)",
        T_CONFORMAL,
        "test_held_out_rows_without_a_score_do_not_count",
    ),
    Mutant(
        "verdict: p below the rate, not at most",
        CONFORMAL,
        "np.where(p <= self.rate, np.minimum",
        "np.where(p < self.rate, np.minimum",
        T_CONFORMAL,
        "test_the_decision_is_below_0_if_and_only_if_p_is_at_most_the_rate",
    ),
    Mutant(
        "verdict: the rank by a product that rounds",
        CONFORMAL,
        "return int((np.arange(1.0, self.n + 1.0) / (self.n + 1.0) <= self.rate).sum())",
        "return int(self.rate * (self.n + 1))",
        T_CONFORMAL,
        "test_the_decision_is_below_0_if_and_only_if_p_is_at_most_the_rate",
    ),
    Mutant(
        "verdict: the threshold one rank too low",
        CONFORMAL,
        "np.sort(self.held_out[~np.isnan(self.held_out)])[-self.rank]",
        "np.sort(self.held_out[~np.isnan(self.held_out)])[-min(self.rank + 1, self.n)]",
        T_CONFORMAL,
        "test_the_decision_is_below_0_if_and_only_if_p_is_at_most_the_rate",
    ),
    Mutant(
        "verdict: a row compared with others keeps the sign of its score",
        CONFORMAL,
        "np.maximum(gap, 0.0))",
        "gap)",
        T_CONFORMAL,
        "test_the_decision_is_below_0_if_and_only_if_p_is_at_most_the_rate",
    ),
    Mutant(
        "discoveries: ranks from 0",
        CONFORMAL,
        "rate * np.arange(1, len(order) + 1)",
        "rate * np.arange(0, len(order))",
        T_CONFORMAL,
        "test_discoveries_control_the_false_discovery_rate",
    ),
    Mutant(
        "discoveries: only p-values below their own bound",
        CONFORMAL,
        "flagged[order[: below[-1] + 1]] = True",
        "flagged[order[below]] = True",
        T_CONFORMAL,
        "test_discoveries_control_the_false_discovery_rate",
    ),
    Mutant(
        "discoveries: rows without a p-value count",
        CONFORMAL,
        "/ max(len(order), 1)",
        "/ max(len(p), 1)",
        T_CONFORMAL,
        "test_discoveries_control_the_false_discovery_rate",
    ),
    Mutant(
        "interval: the quantile of n values, not of n + 1",
        CONFORMAL,
        "(1 + 1 / np.maximum(independent, 1)) * counts",
        "1.0 * counts",
        T_CONFORMAL,
        "test_the_level_is_met_on_average_for_few_data",
    ),
    Mutant(
        "interval: one rank too far",
        CONFORMAL,
        "* counts[None] - 1\n",
        "* counts[None]\n",
        T_CONFORMAL,
        "test_the_level_is_met_on_average_for_few_data",
    ),
    Mutant(
        "interval: the rank is rounded up",
        CONFORMAL,
        "part = np.clip(place - low, -1.0, 1.0)",
        "part = np.clip(np.ceil(place - low - 1e-9), -1.0, 1.0)",
        T_CONFORMAL,
        "test_the_level_is_met_on_average_for_few_data",
    ),
    Mutant(
        "interval: copies of a row count as rows",
        CONFORMAL,
        "            there = each\n",
        "",
        T_CONFORMAL,
        "test_values_of_one_row_count_once",
    ),
    Mutant(
        "interval: pooled values of a row count as rows",
        CONFORMAL,
        "n_pooled = pooled.size if rows is None else int(there.any(1).sum())",
        "n_pooled = pooled.size",
        T_CONFORMAL,
        "test_values_of_one_row_count_once",
    ),
    Mutant(
        "interval: no wider beyond the largest value",
        CONFORMAL,
        "further = normal[:, None] / normal[np.maximum(last, 0)]",
        "further = np.ones_like(normal)[:, None]",
        T_CONFORMAL,
        "test_beyond_the_largest_value_radii_grow_as_a_normal_tail",
    ),
    Mutant(
        "check of rates: Beta(k, n - k)",
        CONFORMAL,
        "log_beta(j + k, n_new - j + n + 1 - k)",
        "log_beta(j + k, n_new - j + n - k)",
        T_CONFORMAL,
        "test_the_number_of_flagged_rows_is_beta_binomial",
    ),
    # --- calibration -----------------------------------------------------------------------------------------------
    Mutant(
        "the score is fitted to the rows that calibrate it",
        CALIBRATE,
        "score = Score.fit(every, of_every, of_fitted, fitted, deviation, own=at, **about)",
        "score = Score.fit(every, of_every, of_rows, rows, deviation, own=own, **about)",
        T_CALIBRATE,
        "test_rows_that_calibrate_have_no_part_in_deviations_and_scores",
    ),
    Mutant(
        "the score is fitted to one row alone",
        CALIBRATE,
        "if len(valid) < least_spread:",
        "if len(valid) < 1:",
        T_CALIBRATE,
        "test_one_row_of_validation_is_enough",
    ),
    Mutant(
        "few validation rows alone scale the score of a table",
        CALIBRATE,
        "least_spread = LEAST_OF_TABLE if table else LEAST_SPREAD",
        "least_spread = LEAST_SPREAD",
        T_CALIBRATE,
        "test_few_validation_rows_scale_the_score_as_many_would",
    ),
    Mutant(
        "how usual single values are is learned from rows that calibrate",
        CALIBRATE,
        '"n_seen": len(train) + len(valid)}',
        '"n_seen": len(every)}',
        T_CALIBRATE,
        "test_rows_that_calibrate_have_no_part_in_deviations_and_scores",
    ),
    Mutant(
        "deviations are fitted to the rows that calibrate them",
        CALIBRATE,
        "of_seen = join([known, found]) if few else found",
        "seen, of_seen = rows, of_rows",
        T_CALIBRATE,
        "test_rows_that_calibrate_have_no_part_in_deviations_and_scores",
    ),
    Mutant(
        "principal components are kept from rows that calibrate",
        FIT,
        "restart(method, some_rows(data.space, data.train, data.valid))",
        "restart(method, some_rows(data.space, data.train, data.valid, data.calib))",
        T_HELD_OUT,
        "test_rows_that_calibrate_have_no_part_in_the_model",
    ),
    Mutant(
        "the temperature is chosen by rows that calibrate",
        FIT,
        "rows = some(model, data.valid.x if len(data.valid.x) else data.train.x, ROWS)",
        "rows = some(model, data.calib.x, ROWS)",
        T_HELD_OUT,
        "test_rows_that_calibrate_have_no_part_in_the_model",
    ),
    Mutant(
        "the window of a stream fits the score and calibrates it",
        FIT,
        "valid, calib = newest[::2], newest[1::2]",
        "valid, calib = newest, newest",
        T_STREAM,
        "test_the_window_keeps_its_length",
    ),
    Mutant(
        "rows that calibrate are trained on",
        SPLITS,
        "            drawn[3],\n",
        "            np.concatenate([drawn[2], drawn[3]]),\n",
        T_SPLITS,
        "test_parts_are_disjoint_and_whole",
    ),
    Mutant(
        "a calibration row with missing values finds itself among its neighbours",
        CALIBRATE,
        "yield hidden, self.own[chosen], _some(self.surprises, chosen)",
        "yield hidden, None, _some(self.surprises, chosen)",
        T_CALIBRATE,
        "test_p_values_are_uniform_with_and_without_holes",
    ),
    Mutant(
        "a calibration row keeps values that the new row lacks",
        CALIBRATE,
        "hidden = hidden_too(self.rows[chosen], mask)",
        "hidden = self.rows[chosen]",
        T_CALIBRATE,
        "test_p_values_with_missing_values_are_the_definition",
    ),
    Mutant(
        "a new row keeps values that the calibration row lacks",
        CALIBRATE,
        "yield hidden_too(x, mask), None, surprises",
        "yield x, None, surprises",
        T_CALIBRATE,
        "test_p_values_with_missing_values_are_the_definition",
    ),
    Mutant(
        "rows are compared with those that lack the most besides",
        CALIBRATE,
        "more.argsort(stable=True)[:ALIKE]",
        "more.argsort(stable=True, descending=True)[:ALIKE]",
        T_CALIBRATE,
        "test_p_values_with_missing_values_are_the_definition",
    ),
    Mutant(
        "scores are ranked with their rounding errors",
        CALIBRATE,
        "return scores.double().round(decimals=DECIMALS)",
        "return scores.double()",
        T_CALIBRATE,
        "test_rows_that_are_equal_have_equal_p_values",
    ),
    Mutant(
        "rows that the model was fitted to make intervals",
        CALIBRATE,
        "unused = len(rows) > 0 and len(valid) > 0 and not learned",
        "unused = len(rows) > 0 and len(valid) > 0",
        T_CALIBRATE,
        "test_few_data_are_joined_by_those_that_steered_training",
    ),
    Mutant(
        "another predictive is compared with scores of the first",
        CALIBRATE,
        "scores = self.rank(predict)(self.reference.rows, self.reference.own, self.reference.surprises)",
        "scores = self.reference.scores",
        T_CALIBRATE,
        "test_another_way_to_predict_is_compared_with_the_same_way",
    ),
    Mutant(
        "hidden values of one row count as rows",
        IMPUTER,
        "Radius.fit(ratio, rows=rows, one_sided=one_sided, shared=score.shape[1] > SHARED)",
        "Radius.fit(ratio, one_sided=one_sided, shared=score.shape[1] > SHARED)",
        T_CALIBRATE,
        "test_a_row_with_values_hidden_in_turn_counts_once",
    ),
    Mutant(
        "image: the least p-value of its tiles, uncorrected",
        CALIBRATE,
        "return most, min(1.0, float(p.min()) * len(p))",
        "return most, float(p.min())",
        T_CALIBRATE,
        "test_an_image_is_compared_with_images_or_corrected_for_its_tiles",
    ),
    Mutant(
        "neighbours: a row of the bank is its own",
        NEIGHBOURS,
        "            square[own[within], within.nonzero()[:, 0]] = torch.inf\n",
        "            pass\n",
        T_NEIGHBOURS,
        "test_held_out_rows_are_measured_as_if_they_were_not_in_the_bank",
    ),
    Mutant(
        "temperature: the variance of networks does not count",
        TEMPERATURE,
        "total = noise + variance",
        "total = noise",
        T_TEMPERATURE,
        "test_it_is_that_of_the_variances_where_these_are_known",
    ),
    Mutant(
        "semi-supervised: labelled data are embedded once",
        SEMI,
        "embedded = numpy(encode_draws(model.method, x[picked], options.n_embeddings, seed=seed + r + 1))",
        "embedded = queries[picked][:, None]",
        T_SEMI,
        "test_labels_are_those_of_the_labelled_data_and_these_are_not_classified",
    ),
    Mutant(
        "semi-supervised: embeddings of other data",
        SEMI,
        "encode_draws(model.method, x[picked], options.n_embeddings",
        "encode_draws(model.method, x[np.sort(picked)], options.n_embeddings",
        T_SEMI,
        "test_labels_are_those_of_the_labelled_data_and_these_are_not_classified",
    ),
    Mutant(
        "semi-supervised: labelled data are classified too",
        SEMI,
        "rest = np.setdiff1d(np.arange(len(y)), index)",
        "rest = np.arange(len(y))",
        T_SEMI,
        "test_labels_are_those_of_the_labelled_data_and_these_are_not_classified",
    ),
    # --- curvature -------------------------------------------------------------------------------------------------
    Mutant(
        "linear: the weight is not squared",
        AFFINE,
        'm_in = m @ at.params["weight"].square() if need_input else None',
        'm_in = m @ at.params["weight"] if need_input else None',
        T_SQUARES,
        "test_approx_is_autograd_through_the_squared_network",
    ),
    Mutant(
        "linear: the input is not squared",
        AFFINE,
        "squared = at.x.square()",
        "squared = at.x.abs()",
        T_SQUARES,
        "test_approx_is_autograd_through_the_squared_network",
    ),
    Mutant(
        "linear: a shared M counts once for the bias",
        AFFINE,
        'h["bias"] = m.flatten(0, -2).sum(0) * len(at.x)',
        'h["bias"] = m.flatten(0, -2).sum(0)',
        T_SQUARES,
        "test_approx_is_autograd_through_the_squared_network",
    ),
    Mutant(
        "convolution: the kernel is not squared",
        CONVOLUTION,
        'weight = at.params["weight"].square()',
        'weight = at.params["weight"]',
        T_SQUARES,
        "test_approx_is_autograd_through_the_squared_network",
    ),
    Mutant(
        "convolution: a shared M counts once for the bias",
        CONVOLUTION,
        "            h_bias = h_bias * len(at.x)\n",
        "            pass\n",
        T_SQUARES,
        "test_approx_is_autograd_through_the_squared_network",
    ),
    Mutant(
        "convolution: the transposed kernel is not flipped",
        CONVOLUTION,
        "flipped = weight.transpose(0, 1).flip(dims)",
        "flipped = weight.transpose(0, 1)",
        T_LAYERS,
        "test_both_ways_through_a_convolution_are_the_brute_force",
    ),
    Mutant(
        "activation: the derivative is not squared",
        ACTIVATIONS,
        "at.y).square_().mul_(m)",
        "at.y).mul_(m)",
        T_SQUARES,
        "test_approx_is_autograd_through_the_squared_network",
    ),
    Mutant(
        "tanh: 1 + y²",
        ACTIVATIONS,
        "torch.addcmul(torch.ones((), dtype=y.dtype, device=y.device), y, y, value=-1)",
        "torch.addcmul(torch.ones((), dtype=y.dtype, device=y.device), y, y, value=1)",
        T_LAYERS,
        "test_exact_is_the_brute_force",
    ),
    Mutant(
        "average pooling: the coefficient is not squared",
        LINEAR_MAPS,
        "m = m * c.reshape(-1, *[1] * (at.x.ndim - 1 - dim))",
        "m = m + 0 * c.reshape(-1, *[1] * (at.x.ndim - 1 - dim))",
        T_LAYERS,
        "test_a_layer_follows_its_own_derivatives",
    ),
    Mutant(
        "bilinear upsampling: coefficients are not squared",
        LINEAR_MAPS,
        "at.y.shape[dim], dim - 2, at.x).square()",
        "at.y.shape[dim], dim - 2, at.x)",
        T_LAYERS,
        "test_a_layer_follows_its_own_derivatives",
    ),
    Mutant(
        "nearest upsampling: the last copy is left out",
        LINEAR_MAPS,
        "for i in range(1, factor):",
        "for i in range(1, factor - 1):",
        T_LAYERS,
        "test_a_layer_follows_its_own_derivatives",
    ),
    Mutant(
        "normalisation: the scale is not squared",
        NORM,
        "return m * self._scale(at.layer, at.params, at.x).square() if need_input else None, h",
        "return m * self._scale(at.layer, at.params, at.x) if need_input else None, h",
        T_LAYERS,
        "test_a_layer_follows_its_own_derivatives",
    ),
    Mutant(
        "skip connection: one way alone",
        BACKWARD,
        "pulled = first + second if need else None",
        "pulled = first if need else None",
        T_LAYERS,
        "test_exact_is_the_brute_force",
    ),
    Mutant(
        "Gaussian: 1 / sigma",
        CONTINUOUS,
        "return self._features(self.scale(output) ** -2, output)",
        "return self._features(self.scale(output) ** -1, output)",
        T_METHODS,
        "test_every_likelihood_seeds_m",
    ),
    Mutant(
        "Bernoulli: p instead of p (1 - p)",
        DISCRETE,
        "        return p * (1 - p)\n",
        "        return p\n",
        T_METHODS,
        "test_every_likelihood_seeds_m",
    ),
    Mutant(
        "categorical: the classes are independent",
        DISCRETE,
        "return scaled - probs * scaled.sum(2, keepdim=True)",
        "return scaled",
        T_METHODS,
        "test_every_likelihood_seeds_m",
    ),
    Mutant(
        "Student: the Gaussian's information",
        STUDENT,
        "(self.df + 1) / (self.df + 3) * self.scale(output) ** -2",
        "self.scale(output) ** -2",
        T_LIKELIHOODS,
        "test_student_is_torch_s_and_has_its_expected_hessian",
    ),
    Mutant(
        "mc: vectors are divided by n, not by its root",
        FORMS,
        "eps * count**-0.5",
        "eps / count",
        T_METHODS,
        "test_mc_in_chunks_draws_as_many",
    ),
    Mutant(
        "sketch: a sum over samples, not their mean",
        SKETCH,
        "if n_samples > 1:",
        "if n_samples > 1 << 30:",
        T_SKETCH,
        "test_it_is_unbiased",
    ),
    Mutant(
        "kfac: a shared M counts once",
        COLLECT,
        "g = c.sum(0) * (len(leaf.y) // len(c))",
        "g = c.sum(0)",
        T_PEERS,
        "test_kfac_with_the_exact_output_factor_is_backpack_s_kflr",
    ),
    Mutant(
        "kfac: samples of a second batch do not count",
        COLLECT,
        "self.a + other.a, self.n + other.n)",
        "self.a + other.a, self.n)",
        T_PEERS,
        "test_factors_add_up_over_batches",
    ),
    Mutant(
        "any module: squared after the sum over rows",
        EXTRACT,
        "g.square().sum((0, 1)) for k, g",
        "g.sum(0).square().sum(0) for k, g",
        T_ANY_MODULE,
        "test_exact_is_the_brute_force",
    ),
    # --- posterior -------------------------------------------------------------------------------------------------
    Mutant(
        "online: the curvature of the batch, not of the data (N / B)",
        ONLINE,
        "gain = self.rule.gain * self.n_data * step.share / (len(tape.output) * len(self._tapes))",
        "gain = self.rule.gain * step.share / len(self._tapes)",
        T_ONLINE,
        "test_a_step_by_hand",
    ),
    Mutant(
        "online: the sketch of the batch, not of the data (N / B)",
        ONLINE,
        "gain = self.rule.gain * self.n_data / ((step.n_batch or len(self._tapes[0].output)) * len(vectors))",
        "gain = self.rule.gain / len(vectors)",
        T_ONLINE,
        "test_a_sketch_goes_back_through_the_graph_of_the_loss",
    ),
    Mutant(
        "online: sketches of two draws are added up",
        ONLINE,
        "len(self._tapes[0].output)) * len(vectors))",
        "len(self._tapes[0].output)))",
        T_ONLINE,
        "test_two_sketches_a_step_are_averaged",
    ),
    Mutant(
        "post-hoc: the data count twice if it is finished twice",
        POSTHOC,
        "        self.posterior.reset(0.0)\n",
        "",
        T_POSTHOC,
        "test_finishing_twice_does_not_count_the_data_twice",
    ),
    Mutant(
        "update: nothing is forgotten",
        UPDATE,
        '"laplacian": lambda forgetting: (1 - forgetting, 1.0)',
        '"laplacian": lambda forgetting: (1.0, 1.0)',
        T_UPDATE,
        "test_settles_at_a_multiple_of_the_ggn",
    ),
    Mutant(
        "update: laplacian has the gain of nng",
        UPDATE,
        '"laplacian": lambda forgetting: (1 - forgetting, 1.0)',
        '"laplacian": lambda forgetting: (1 - forgetting, forgetting)',
        T_UPDATE,
        "test_settles_at_a_multiple_of_the_ggn",
    ),
    Mutant(
        "update: k steps at once do not discount the first",
        UPDATE,
        "total = k if self.keep == 1 else (1 - kept) / (1 - self.keep)",
        "total = k",
        T_UPDATE,
        "test_every_k_by_numbers",
    ),
    Mutant(
        "evidence: the determinant of the prior is left out",
        EVIDENCE,
        "(delta * theta.square()).sum() + 0.5 * delta.log().sum()",
        "(delta * theta.square()).sum()",
        T_EVIDENCE,
        "test_evidence_of_a_linear_model_is_exact",
    ),
    Mutant(
        "evidence: the determinant of the posterior has the wrong sign",
        EVIDENCE,
        "log_prior - 0.5 * precision.log_det()",
        "log_prior + 0.5 * precision.log_det()",
        T_EVIDENCE,
        "test_evidence_of_a_linear_model_is_exact",
    ),
    Mutant(
        "evidence: the norm of the weights without the prior precision",
        EVIDENCE,
        "- delta * squared_norm",
        "- squared_norm",
        T_EVIDENCE,
        "test_scalar_prior_is_that_of_a_grid_search",
    ),
    Mutant(
        "precision: the temperature multiplies",
        PRECISION,
        ").div_(self.temperature)",
        ").mul_(self.temperature)",
        T_PRECISION,
        "test_products_and_determinants_are_those_of_the_matrix",
    ),
    Mutant(
        "precision: the determinant has the wrong sign of the temperature",
        PRECISION,
        "- self.n_weights * math.log(self.temperature)",
        "+ self.n_weights * math.log(self.temperature)",
        T_PRECISION,
        "test_products_and_determinants_are_those_of_the_matrix",
    ),
    Mutant(
        "precision: draws have the variance for a deviation",
        PRECISION,
        "deviation = self.diagonal().rsqrt_()",
        "deviation = self.diagonal().reciprocal_()",
        T_GAUSSIAN,
        "test_samples_have_the_mean_and_the_covariance",
    ),
    Mutant(
        "block: eigenvectors are not turned back",
        BLOCK,
        "(part @ vectors * values.rsqrt()) @ vectors.T",
        "(part @ vectors * values.rsqrt()) @ vectors",
        T_GAUSSIAN,
        "test_samples_have_the_mean_and_the_covariance",
    ),
    Mutant(
        "block: what was derived before an update is kept",
        BLOCK,
        ".add_(curvature[layer] * gain)\n        self._forget()",
        ".add_(curvature[layer] * gain)",
        T_PRECISION,
        "test_what_is_kept_follows_an_update",
    ),
    Mutant(
        "kron: the input factor is a sum, not a mean",
        KRON,
        'eigh(self.get_buffer(f"a{i}") / self.get_buffer(f"n{i}").clamp_min(1e-30))',
        'eigh(self.get_buffer(f"a{i}"))',
        T_PRECISION,
        "test_products_and_determinants_are_those_of_the_matrix",
    ),
    Mutant(
        "kron: a transposed convolution is taken for a plain one",
        KRON,
        "if name in self.transposed:\n            part =",
        "if name in ():\n            part =",
        T_PRECISION,
        "test_kronecker_factors_of_one_sample_at_one_position_are_exact",
    ),
    Mutant(
        "density: the normaliser is left out",
        GAUSSIAN,
        " - n * math.log(2 * math.pi))",
        ")",
        T_GAUSSIAN,
        "test_density_and_entropy",
    ),
    Mutant(
        "noise: chunks of a row are those of the next row",
        NOISE,
        "seed + 0x9E3779B97F4A7C15 * i & 0x7FFFFFFFFFFFFFFF",
        "seed + i & 0x7FFFFFFFFFFFFFFF",
        T_NOISE,
        "test_numbers_are_standard_normal_and_chunks_uncorrelated",
    ),
    # --- storage ---------------------------------------------------------------------------------------------------
    Mutant(
        "file: its content is not forced onto the disk",
        FILES,
        "            os.fsync(file.fileno())\n",
        "            pass\n",
        T_RUNS,
        "test_a_file_is_on_the_disk_before_it_takes_its_place",
    ),
    Mutant(
        "file: its name is not forced onto the disk",
        FILES,
        "            sync_folder(folder)\n",
        "            pass\n",
        T_RUNS,
        "test_a_file_is_on_the_disk_before_it_takes_its_place",
    ),
    Mutant(
        "file: written in place",
        FILES,
        "os.replace(temporary, path)",
        "path.write_bytes(temporary.read_bytes())",
        T_RUNS,
        "test_a_file_is_on_the_disk_before_it_takes_its_place",
    ),
    Mutant(
        "folder: its names are not forced onto the disk",
        FILES,
        "        sync_folder(temporary)\n",
        "",
        T_RUNS,
        "test_a_folder_is_on_the_disk_before_it_takes_its_place",
    ),
    Mutant(
        "folder: exchanged in three steps where one would do",
        FILES,
        "os.fsencode(b), 2) == 0",
        "os.fsencode(b), 0) == 0",
        T_RUNS,
        "test_folders_are_exchanged_in_one_step",
    ),
    Mutant(
        "folder: without an exchange the old one stays beside it",
        FILES,
        "    os.rename(aside, a)\n",
        "",
        T_RUNS,
        "test_where_the_system_cannot_exchange_folders_nothing_is_left_behind",
    ),
    Mutant(
        "folder: one that is not empty is replaced unasked",
        FILES,
        "if not replace and path.exists() and (not path.is_dir() or any(path.iterdir())):",
        "if not replace and path.exists() and not path.is_dir():",
        T_RUNS,
        "test_a_folder_that_holds_something_is_replaced_only_if_asked",
    ),
    Mutant(
        "sweep: what others are writing is removed",
        FILES,
        "        lock(descriptor)\n",
        "",
        T_RUNS,
        "test_what_other_commands_are_writing_into_a_run_is_left_alone",
    ),
    Mutant(
        "run: two writers share the lock",
        "runs/locks.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        T_RUNS,
        "test_second_writer_is_refused_until_the_first_is_dead",
    ),
    Mutant(
        "tensors: the digest is not compared",
        RUN,
        'if metadata["digest"] != digest(tensors, metadata["lapae"]):',
        "if False:",
        T_RUNS,
        "test_any_flipped_bit_is_found",
    ),
    Mutant(
        "tensors: names and shapes are not in the digest",
        RUN,
        '        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())\n',
        "",
        T_RUNS,
        "test_the_digest_tells_names_types_and_shapes_apart",
    ),
    Mutant(
        "model: the posterior of another training is taken",
        STORAGE,
        "if metadata.get(key) and digest(found[key]) != metadata[key]:",
        "if False:",
        T_DAMAGE,
        "test_a_posterior_beside_the_weights_of_an_earlier_training",
    ),
    # --- server ----------------------------------------------------------------------------------------------------
    Mutant(
        "token: any",
        SERVER,
        "if hmac.compare_digest(token.encode(), self.token.encode()):",
        "if token:",
        T_SERVER,
        "test_only_who_has_the_address_is_answered",
    ),
    Mutant(
        "token: the beginning is enough",
        SERVER,
        "if hmac.compare_digest(token.encode(), self.token.encode()):",
        "if token and self.token.startswith(token):",
        T_SERVER,
        "test_only_who_has_the_address_is_answered",
    ),
    Mutant(
        "cookie: any",
        SERVER,
        "any(map(self._is_known, cookies))",
        "bool(cookies)",
        T_SERVER,
        "test_only_who_has_the_address_is_answered",
    ),
    Mutant(
        "connections: the newest makes room",
        SERVER,
        "self._end(min(idle, key=lambda connection: idle[connection]))",
        "self._end(max(idle, key=lambda connection: idle[connection]))",
        T_SERVER,
        "test_the_longest_idle_makes_room",
    ),
    Mutant(
        "host: any name",
        HANDLER,
        "if self.server.cookie is not None and name not in names",
        "if name not in names and not name and not names",
        T_SERVER,
        "test_a_name_bent_to_this_host_is_refused",
    ),
    Mutant(
        "origin: one of several is enough",
        HANDLER,
        'if any(origin.lower() != f"http://{name}" for origin in self.headers.get_all("Origin", [])):',
        'if (o := self.headers.get_all("Origin", [])) and all(origin.lower() != f"http://{name}" for origin in o):',
        T_SERVER,
        "test_every_origin_is_looked_at",
    ),
    Mutant(
        "type: what a form of another site can send",
        HANDLER,
        'if self.headers.get_content_type() != kind or "Content-Type" not in self.headers:',
        'if "Content-Type" not in self.headers:',
        T_SERVER,
        "test_pages_of_other_sites_are_refused",
    ),
    Mutant(
        "body: of any length",
        HANDLER,
        "if length > most:",
        "if length > most * 10**6:",
        T_SERVER,
        "test_bodies_are_told_and_bounded",
    ),
    Mutant(
        "body: the first of two lengths",
        HANDLER,
        'if "Transfer-Encoding" in self.headers or len(lengths) != 1:',
        'if "Transfer-Encoding" in self.headers or not lengths:',
        T_SERVER,
        "test_bodies_are_told_and_bounded",
    ),
    Mutant(
        "body: that of a GET is the next request",
        HANDLER,
        "if self.left:  # what follows",
        "if not path and query and self.left:  # what follows",
        T_SERVER,
        "test_the_body_of_a_get_is_not_a_second_request",
    ),
    Mutant(
        "deadline: every byte puts it off",
        HANDLER,
        "left = self.until - time.monotonic()",
        "left = 1.0",
        T_SERVER,
        "test_bytes_that_wait_do_not_put_a_deadline_off",
    ),
    Mutant(
        "report: without its sandbox",
        HANDLER,
        "POLICIES.get(path), greet",
        "None, greet",
        T_SERVER,
        "test_the_report_of_the_run_is_served_in_a_sandbox",
    ),
    Mutant(
        "questions: an index beyond the last",
        REQUESTS,
        "not 0 <= value < n:",
        "not 0 <= value <= n:",
        T_SERVER,
        "test_bad_questions_have_a_clear_answer",
    ),
)
