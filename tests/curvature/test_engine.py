"""How the engine treats a module: reads it, leaves nothing behind, and says what it cannot do."""

from __future__ import annotations

import copy
from contextlib import suppress

import pytest
import torch
from cases import CASES, dense, seeded
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from lapae.curvature import (
    Elementwise,
    Leaf,
    Params,
    Residual,
    Rule,
    UnknownLayerError,
    blocks,
    diagonal,
    ggn_blocks,
    ggn_diagonal,
    ggn_kfac,
    kfac,
    record,
    reference,
    register,
)
from lapae.curvature.ggn import DiagonalMethod
from lapae.curvature.likelihoods import Bernoulli, Gaussian
from lapae.networks import mlp
from lapae_paper.bench.measure import peak_bytes

METHODS: tuple[DiagonalMethod, ...] = ("approx", "exact", "mixed", "mc", "sketch", "bottleneck")
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 5, dtype=torch.float64, generator=seeded(0))


@pytest.fixture
def registered():
    """Rules of a test do not outlive it."""
    with register():
        yield


def everything(module: nn.Module, x: Tensor) -> None:
    for method in METHODS:
        ggn_diagonal(module, x, Bernoulli(), method)
    ggn_blocks(module, x, Bernoulli())
    ggn_kfac(module, x, Bernoulli())
    ggn_kfac(module, x, Bernoulli(), n_samples=None)


@pytest.mark.parametrize(
    "name", ["dense tanh", "batchnorm 2d", "convolutional autoencoder", "residual", "dense relu inplace"]
)
def test_nothing_is_left_behind(name):
    module, x = BY_NAME[name].module(), BY_NAME[name].x()
    for p in module.parameters():
        p.grad = torch.full_like(p, 3.0)

    def picture() -> dict:
        layers = {}
        for name, layer in module.named_modules():
            layers[name] = {k: id(v) for k, v in vars(layer).items() if not isinstance(v, dict)} | {
                k: dict(v) for k, v in vars(layer).items() if isinstance(v, dict) and k != "_modules"
            }
        return layers

    before, state, data = picture(), copy.deepcopy(module.state_dict()), x.clone()
    everything(module, x)
    after = picture()
    assert {n: set(v) for n, v in before.items()} == {n: set(v) for n, v in after.items()}
    for name in before:
        for key, value in before[name].items():
            if key.endswith("hooks") or not isinstance(value, dict):
                assert after[name][key] == value
    assert_close(module.state_dict(), state, rtol=0, atol=0)
    assert torch.equal(x, data)
    assert all((p.grad == 3).all() and p.requires_grad for p in module.parameters())
    assert not x.requires_grad


def test_params_stand_in_for_the_module_s_weights(x):
    module, other = dense(nn.Tanh).double(), dense(nn.Tanh).double()
    state = copy.deepcopy(module.state_dict())
    params = dict(other.named_parameters())
    for method in METHODS:
        actual = ggn_diagonal(module, x, Bernoulli(), method, params, generator=seeded(1))
        assert_close(actual, ggn_diagonal(other, x, Bernoulli(), method, generator=seeded(1)))
        assert not any(h.requires_grad for h in actual.values())
    assert_close(ggn_blocks(module, x, params=params), ggn_blocks(other, x))
    assert_close(reference.ggn_diagonal(module, x, params=params), reference.ggn_diagonal(other, x))
    assert_close(
        {k: f.block() for k, f in ggn_kfac(module, x, None, params, n_samples=None).items()},
        {k: f.block() for k, f in ggn_kfac(other, x, n_samples=None).items()},
    )
    assert_close(module.state_dict(), state, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"params lacks 0\.bias, 2\.bias, 2\.weight …"):
        ggn_diagonal(module, x, params={"0.weight": params["0.weight"]})


@pytest.mark.parametrize("frozen", ["0.weight", "0.", "6.bias", "6.", "2.bias", ".bias", ".weight"])
def test_frozen_parameters_are_left_out(x, frozen):
    module = dense(nn.Tanh).double()
    whole = {method: ggn_diagonal(module, x, Bernoulli(), method, generator=seeded(1)) for method in METHODS}
    for name, p in module.named_parameters():
        p.requires_grad_(not (name.startswith(frozen) or name.endswith(frozen)))
    wanted = [name for name, p in module.named_parameters() if p.requires_grad]
    for method in METHODS:
        h = ggn_diagonal(module, x, Bernoulli(), method, generator=seeded(1))
        assert list(h) == wanted
        assert_close(h, {name: whole[method][name] for name in wanted})
    assert_close(ggn_blocks(module, x, Bernoulli()), reference.ggn_blocks(module, x, Bernoulli()))
    assert list(ggn_kfac(module, x)) == wanted


def test_a_frozen_convolution_or_normalisation_is_left_out_too():
    for name in ("batchnorm 2d", "conv2d groups", "residual, convolutional"):
        module, x = BY_NAME[name].module(), BY_NAME[name].x()
        for i, p in enumerate(module.parameters()):
            p.requires_grad_(i % 3 != 0)
        assert_close(ggn_diagonal(module, x, method="exact"), reference.ggn_diagonal(module, x))
        assert_close(ggn_blocks(module, x), reference.ggn_blocks(module, x))
        assert list(ggn_diagonal(module, x)) == [n for n, p in module.named_parameters() if p.requires_grad]


@pytest.mark.parametrize("flip_floats", [1, 1 << 30])
def test_all_of_a_convolution_may_be_frozen(monkeypatch, flip_floats):
    monkeypatch.setattr("lapae.curvature.rules.convolution.FLIP_FLOATS", flip_floats)
    module, x = BY_NAME["conv2d padding"].module(), BY_NAME["conv2d padding"].x()
    whole = ggn_diagonal(module, x)
    module.get_submodule("4").requires_grad_(False)
    assert_close(ggn_diagonal(module, x), {k: h for k, h in whole.items() if not k.startswith("4.")})


def test_nothing_to_compute_is_said():
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        ggn_diagonal(module, torch.zeros(2, 3))
    for shape in ((0, 3), (3,)):
        with pytest.raises(ValueError, match="expected a batch of at least one sample"):
            ggn_diagonal(nn.Linear(3, 2), torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_have_the_type_of_the_weights(dtype):
    for name in ("convolutional autoencoder", "batchnorm 2d", "bilinear", "avg-pool 2d"):
        module, x = BY_NAME[name].module().to(dtype), BY_NAME[name].x().to(dtype)
        exact = reference.ggn_diagonal(module.double(), x.double())
        module.to(dtype)
        for method in METHODS:
            h = ggn_diagonal(module, x, method=method)
            assert {v.dtype for v in h.values()} == {dtype}
        actual = {k: v.double() for k, v in ggn_diagonal(module, x, method="exact").items()}
        tolerance = 1e-4 if dtype == torch.float32 else 1e-9
        assert_close(actual, exact, rtol=tolerance, atol=tolerance * max(v.max().item() for v in exact.values()))


def test_one_forward_pass_serves_loss_and_curvature(x):
    module = nn.Sequential(dense(nn.Tanh), Residual(nn.Linear(5, 5), nn.Tanh())).double()
    params = {k: p.detach().clone().requires_grad_() for k, p in module.named_parameters()}
    tape = record(module, x, params)
    sketched = diagonal(tape, Gaussian(), "sketch", generator=seeded(2))  # before the backward pass lets the graph go
    assert_close(sketched, ggn_diagonal(module, x, method="sketch", generator=seeded(2)))
    Gaussian().log_prob(tape.output, x).sum().backward()
    for method in METHODS:
        if method != "sketch":
            h = diagonal(tape, Gaussian(), method, generator=seeded(2))
            assert_close(h, ggn_diagonal(module, x, method=method, generator=seeded(2)))
    assert_close(blocks(tape, Gaussian()), ggn_blocks(module, x))
    assert_close(
        kfac(tape, Gaussian(), n_samples=None)["0.0.weight"].g, ggn_kfac(module, x, n_samples=None)["0.0.weight"].g
    )
    expected = torch.autograd.grad(Gaussian().log_prob(module(x), x).sum(), list(module.parameters()))
    assert_close(tuple(p.grad for p in params.values()), expected)


class Scale(nn.Module):
    """A layer of one's own, in these tests."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(5) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x) * self.weight


def test_an_unknown_layer_is_named_with_its_place_and_the_way_out(x):
    module = nn.Sequential(dense(nn.Tanh), nn.Sequential(nn.Tanh(), Scale())).double()
    with pytest.raises(UnknownLayerError) as caught:
        ggn_diagonal(module, x)
    message = str(caught.value)
    assert "'1.1'" in message
    assert "class Scale" in message
    assert "register(Scale)(Rule)" in message
    with pytest.raises(UnknownLayerError, match="'the module itself' of class Scale"):
        ggn_diagonal(Scale().double(), x)


@pytest.mark.parametrize("where", ["first", "inside", "last"])
def test_the_plain_rule_is_right_for_a_layer_of_one_s_own(x, registered, where):
    register(Scale)(Rule)
    layers: list[nn.Module] = [dense(nn.Tanh), dense(nn.Tanh)]
    layers.insert({"first": 0, "inside": 1, "last": 2}[where], Scale())
    module = nn.Sequential(*layers).double()
    assert_close(ggn_diagonal(module, x, Bernoulli(), "exact"), reference.ggn_diagonal(module, x, Bernoulli()))
    assert_close(ggn_blocks(module, x, Bernoulli()), reference.ggn_blocks(module, x, Bernoulli()))
    everything(module, x)
    for budget in (100, 5_000):
        h = ggn_diagonal(module, x, Bernoulli(), "exact", memory_budget=budget)
        assert_close(h, reference.ggn_diagonal(module, x, Bernoulli()))
    factors = ggn_kfac(module, x, Bernoulli(), n_samples=None)
    place = {"first": "0", "inside": "1", "last": "2"}[where]
    assert_close(factors[f"{place}.weight"].block(), reference.ggn_blocks(module, x, Bernoulli())[place])


def test_a_fast_rule_in_ten_lines_is_the_plain_one(x, registered):
    module = nn.Sequential(dense(nn.Tanh), Scale(), dense(nn.Tanh)).double()
    register(Scale)(Rule)
    expected = {m: ggn_diagonal(module, x, Bernoulli(), m, generator=seeded(0)) for m in METHODS}

    @register(Scale)
    class ScaleRule(Rule):
        positionwise = True

        def jvp(self, at: Leaf, t: Tensor) -> Tensor:
            return t * at.x.cos() * at.params["weight"]

        vjp = jvp  # pyright: ignore[reportAssignmentType]  # the argument has another name

        def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
            m_in = m * (at.x.cos() * at.params["weight"]).square() if need_input else None
            return m_in, {"weight": (m * at.x.sin().square()).sum(0)}

    for method in METHODS:
        assert_close(ggn_diagonal(module, x, Bernoulli(), method, generator=seeded(0)), expected[method])
    assert_close(ggn_blocks(module, x, Bernoulli()), reference.ggn_blocks(module, x, Bernoulli()))


def test_an_activation_of_one_s_own_needs_one_line(x, registered):
    class Sine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(x)

    register(Sine)(Elementwise)
    module = dense(Sine).double()
    assert_close(ggn_diagonal(module, x, method="exact"), reference.ggn_diagonal(module, x))


def test_a_rule_s_own_forward_may_keep_several_tensors(x, registered):
    class Cubic(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x**3

    @register(Cubic)
    class CubicRule(Rule):
        def forward(self, layer, params, x):
            return x + x**3, (x, 3 * x.square())

        def vjp(self, at, v):
            x, derivative = at.saved
            assert len(x) == v.shape[1]
            return v * (1 + derivative)

    module = nn.Sequential(
        nn.Linear(5, 7), Cubic(), dense(Cubic)[0:0], nn.Linear(7, 5), Cubic(), dense(nn.Tanh)
    ).double()
    h = ggn_diagonal(module, x, method="exact", memory_budget=3_000)
    assert_close(h, reference.ggn_diagonal(module, x))


def test_a_rule_may_be_registered_for_a_while(x):
    """What was registered inside is gone after it, and what it replaced is back, whatever happens."""
    network = nn.Sequential(Scale(), nn.Linear(5, 2)).double()

    class Tripled(Rule):
        def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
            m_in, h = super().squared_backward(at, m, need_input)
            return m_in, {key: 3 * value for key, value in h.items()}

    with register(Scale) as use:
        use(Rule)
        plain = ggn_diagonal(network, x)
        with suppress(KeyError), register(Scale) as again:
            assert again(Tripled) is Tripled
            assert_close(ggn_diagonal(network, x)["0.weight"], 3 * plain["0.weight"])
            raise KeyError
        assert_close(ggn_diagonal(network, x), plain)
    with pytest.raises(UnknownLayerError, match="Scale"):
        ggn_diagonal(network, x)


def test_a_rule_is_inherited_with_the_forward_and_not_without(x):
    class Renamed(nn.Linear):
        """A Linear with another way to begin."""

        def reset_parameters(self) -> None:
            nn.init.uniform_(self.weight)
            nn.init.zeros_(self.bias)

    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * F.linear(input, self.weight, self.bias)

    class Twice(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(super().forward(input))

    class Half(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.branch(x) / 2

    module = nn.Sequential(Renamed(5, 4), dense(nn.Tanh)[1:1], nn.Tanh(), Renamed(4, 5), dense(nn.Tanh)).double()
    assert_close(ggn_diagonal(module, x, method="exact"), reference.ggn_diagonal(module, x))
    for layer in (Doubled(5, 5), Twice(nn.Linear(5, 5)), Half(nn.Linear(5, 5))):
        with pytest.raises(UnknownLayerError, match=f"'1' of class {type(layer).__name__}"):
            ggn_diagonal(nn.Sequential(nn.Linear(5, 5), layer).double(), x)


def test_shared_weights_are_refused(x):
    layer = nn.Linear(5, 5)
    twice = nn.Sequential(layer, nn.Tanh(), layer).double()
    with pytest.raises(ValueError, match=r"layer '2' shares its 'weight' with '0\.weight'"):
        ggn_diagonal(twice, x)
    tied = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)).double()
    tied[2].bias = tied[0].bias
    with pytest.raises(ValueError, match=r"layer '2' shares its 'bias' with '0\.bias'"):
        ggn_diagonal(tied, x)
    activation = nn.Tanh()
    module = nn.Sequential(nn.Linear(5, 3), activation, nn.Linear(3, 3), activation, nn.Linear(3, 5)).double()
    assert_close(ggn_diagonal(module, x, method="exact"), reference.ggn_diagonal(module, x))


def sequence(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 5)), *layers)


REFUSED = [
    (lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).train(), "batch statistics couple the samples"),
    (lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False)).eval(), "batch statistics"),
    (lambda: nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.1)).train(), "dropout is on"),
    (lambda: sequence(nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular")), "padding_mode"),
    (lambda: sequence(nn.Conv1d(1, 2, 3), nn.MaxPool1d(2, return_indices=True)), "return_indices"),
    (lambda: nn.Sequential(nn.Linear(5, 4), nn.Flatten(0)), "the batch axis"),
    (lambda: nn.Sequential(nn.Identity(), nn.utils.parametrizations.weight_norm(nn.Linear(5, 4))), "its weight is not"),
    (lambda: nn.Sequential(nn.Linear(5, 5), Residual(nn.Linear(5, 4))), r"adds outputs .* \(4, 5\) and \(4, 4\)"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_cannot_be_right_is_refused(x, build, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        ggn_diagonal(build().double(), x)
    assert "'1'" in str(caught.value) or "'2'" in str(caught.value)


def test_dropout_that_drops_nothing_may_train(x):
    module = nn.Sequential(dense(nn.Tanh), nn.Dropout(0.0), nn.Linear(5, 5)).double().train()
    assert_close(ggn_diagonal(module, x, method="exact"), reference.ggn_diagonal(module, x))


def test_kfac_takes_the_exact_block_of_a_convolution_with_groups():
    module, x = BY_NAME["conv2d groups"].module(), BY_NAME["conv2d groups"].x()
    factors, exact = ggn_kfac(module, x, n_samples=None), reference.ggn_blocks(module, x)["0"]
    n = module.get_parameter("0.weight").numel()
    assert_close(factors["0.weight"].block(), exact[:n, :n])


def test_kfac_refuses_a_block_that_is_too_large_by_name():
    module = nn.Sequential(nn.Conv2d(128, 256, 2, groups=2), nn.Flatten())
    with pytest.raises(ValueError, match=r"parameter '0.weight' is not .* 65,536 x 65,536 is too large"):
        ggn_kfac(module, torch.randn(1, 128, 2, 2))


def test_kfac_takes_the_exact_block_where_there_is_no_matrix():
    case = BY_NAME["batchnorm 2d"]
    module, x = case.module(), case.x()
    factors = ggn_kfac(module, x, Bernoulli(), n_samples=None)
    exact = reference.ggn_blocks(module, x, Bernoulli())["0.4"]
    assert_close(factors["0.4.weight"].block(), exact[:2, :2])
    assert_close(factors["0.4.bias"].block(), exact[2:, 2:])


def test_the_memory_budget_bounds_the_memory():
    """Live numbers of the exact pass, counted at every operation, stay near the budget."""
    module = mlp((1, 28, 28), 2, hidden=(512, 256))
    x = torch.randn(16, 1, 28, 28, generator=seeded(0))

    def peak(budget: int) -> int:
        return peak_bytes(lambda: ggn_diagonal(module, x, method="exact", memory_budget=budget), torch.device("cpu"))

    large, small = peak(1 << 30), peak(1 << 23)
    assert small < 40 << 20
    assert large > 2 * small
