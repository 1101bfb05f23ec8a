"""Modules as people write them, against brute force: no rule is needed, and nothing is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from cases import CASES, seeded
from narrow import as_a, sure
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from zoo import LIBRARIES, MODULES, Tied, build

from lapae.curvature import (
    Call,
    UnknownLayerError,
    blocks,
    collect,
    diagonal,
    ggn_blocks,
    ggn_diagonal,
    ggn_kfac,
    kfac,
    methods,
    record,
    reference,
)
from lapae.curvature.call import work
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian

ALL = [*MODULES, *LIBRARIES]


def module_of(name: str) -> tuple[nn.Module, Tensor]:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name][0], reason=f"{LIBRARIES[name][0]} is a test extra")
    return build(name)


@pytest.mark.parametrize("name", ALL)
def test_exact_is_the_brute_force(name):
    module, x = module_of(name)
    h = ggn_diagonal(module, x, Bernoulli(), "exact")
    assert_close(h, reference.ggn_diagonal(module, x, Bernoulli()))


@pytest.mark.parametrize("name", [n for n in ALL if n != "autoencoder kl"])
def test_blocks_are_the_brute_force(name):
    module, x = module_of(name)
    assert_close(ggn_blocks(module, x, Bernoulli()), reference.ggn_blocks(module, x, Bernoulli()))


@pytest.mark.parametrize("name", ["tied", "windows", "vit", "recurrent", "functional convolution"])
def test_a_small_budget_changes_nothing(name):
    module, x = module_of(name)
    expected = reference.ggn_diagonal(module, x, Bernoulli())
    for budget in (1, 30_000, 100_000):
        assert_close(ggn_diagonal(module, x, Bernoulli(), "exact", memory_budget=budget), expected)


class UnitVectors(Bernoulli):
    """Unit vectors in turn for random ones, so that as many samples as outputs make any sampled method exact."""

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        units = torch.zeros_like(eps).flatten(2)
        for row in units:
            row[:, self.turn % row.shape[1]] = 1
            self.turn += 1
        return super().hessian_factor(output, units.reshape(eps.shape))


def unit_vectors() -> UnitVectors:
    likelihood = UnitVectors()
    object.__setattr__(likelihood, "turn", 0)
    return likelihood


@pytest.mark.parametrize("name", ALL)
def test_sampled_vectors_are_squared_per_sample(name):
    module, x = module_of(name)
    n = reference.outputs(module, x)[0].numel()
    h = ggn_diagonal(module, x, unit_vectors(), "mc", n_samples=n)
    assert_close(h, reference.ggn_diagonal(module, x, Bernoulli()))


def test_random_vectors_come_from_the_generator():
    module, x = build("vit")
    first, again, other = (ggn_diagonal(module, x, method="mc", generator=seeded(s)) for s in (1, 1, 2))
    assert_close(first, again)
    assert not torch.equal(first["token"], other["token"])


CODES = {"tied": "first", "u-net": "down2", "vit": "mlp.0", "recurrent": "code", "windows": "c", "autoencoder kl": None}


@pytest.mark.parametrize("name", CODES)
def test_through_the_bottleneck_the_encoder_is_exact(name):
    """With as many vectors as outputs the rest is too: what goes around the code is not lost."""
    module, x = module_of(name)
    n = reference.outputs(module, x)[0].numel()
    expected = reference.ggn_diagonal(module, x, Bernoulli())
    all_rows = ggn_diagonal(module, x, unit_vectors(), "bottleneck", n_samples=n, bottleneck=CODES[name])
    assert_close(all_rows, expected)
    one_row = ggn_diagonal(module, x, Bernoulli(), "bottleneck", bottleneck=CODES[name], generator=seeded(1))
    exact = {k for k in expected if torch.allclose(one_row[k], expected[k])}
    before = {"u-net": {"down2.weight", "down2.bias"}, "recurrent": {"code.bias", "lstm.weight_hh_l0"}}
    assert before.get(name, set()) <= exact
    assert exact != set(expected)


def test_the_bottleneck_in_small_parts():
    module, x = build("recurrent")
    n = reference.outputs(module, x)[0].numel()
    expected = reference.ggn_diagonal(module, x, Bernoulli())
    for budget in (1, 20_000):
        h = ggn_diagonal(module, x, unit_vectors(), "bottleneck", n_samples=n, bottleneck="code", memory_budget=budget)
        before = [k for k in h if k.startswith(("lstm", "code"))]
        assert_close({k: h[k] for k in before}, {k: expected[k] for k in before})


def test_a_bottleneck_that_is_none(monkeypatch):
    module, x = build("vit")
    with pytest.raises(ValueError, match="bottleneck='code' names no layer: there are patch, norm"):
        ggn_diagonal(module, x, method="bottleneck", bottleneck="code")
    tied, y = build("tied")
    with pytest.raises(ValueError, match="'middle' is called more than once"):
        ggn_diagonal(tied, y, method="bottleneck", bottleneck="middle")
    tied.idle = nn.Linear(2, 2).double()
    with pytest.raises(ValueError, match="'idle' is not called"):
        ggn_diagonal(tied, y, method="bottleneck", bottleneck="idle")
    monkeypatch.setattr(methods, "LARGEST_CODE", 3)
    for network, data in ((module, x), (nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 5)).double(), y)):
        with pytest.raises(ValueError, match=r"the code has .* numbers.*: take sketch"):
            ggn_diagonal(network, data, method="bottleneck")


class BiasFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4))
        self.weight = nn.Parameter(torch.randn(4, 4))


class Crossed(nn.Module):
    """One call takes the weight of one layer and the bias of another; two layers declare their bias first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 4), BiasFirst(), BiasFirst()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(nn.functional.linear(x, self.first.weight, self.second.bias))
        x = torch.tanh(nn.functional.linear(x, self.third.weight, self.third.bias))
        x = torch.tanh(nn.functional.linear(x, self.second.weight, self.first.bias))
        return nn.functional.linear(x, self.second.weight)


class Both(nn.Module):
    """One matrix is the weight and the bias of the same call."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Parameter(torch.randn(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(nn.functional.linear(x[:, :1], self.square, self.square)) * x


@pytest.mark.parametrize("kind", [Crossed, Both])
def test_parameters_that_layers_lend_each_other(kind):
    torch.manual_seed(0)
    module, x = kind().double(), torch.randn(3, 5, dtype=torch.float64, generator=seeded(1))
    exact = reference.ggn_blocks(module, x, Bernoulli())
    assert_close(ggn_blocks(module, x, Bernoulli()), exact)
    assert_close(ggn_diagonal(module, x, Bernoulli(), "exact"), reference.ggn_diagonal(module, x, Bernoulli()))
    factors = ggn_kfac(module, x, Bernoulli(), n_samples=None)
    for name, factor in factors.items():
        if factor.a is None:
            alone = copy.deepcopy(module)
            for other, parameter in alone.named_parameters():
                parameter.requires_grad_(other == name)
            (block,) = reference.ggn_blocks(alone, x, Bernoulli()).values()
            assert_close(factor.block(), block)


class Blind(nn.Module):
    """The output does not depend on the code, and the decoder has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.other = nn.Linear(5, 2), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(x) + 0 * self.code(x).detach().sum(1, keepdim=True)


def test_a_code_that_does_not_matter():
    torch.manual_seed(0)
    module, x = Blind().double(), torch.randn(3, 5, dtype=torch.float64)
    n, expected = 5, reference.ggn_diagonal(module, x, Bernoulli())
    assert_close(ggn_diagonal(module, x, unit_vectors(), "bottleneck", n_samples=n, bottleneck="code"), expected)


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze()


def test_a_module_that_loses_a_batch_of_one_is_refused():
    with pytest.raises(ValueError, match=r"gives \(5,\) for one sample"):
        ggn_diagonal(Squeezed(), torch.randn(3, 5), method="exact")


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        inside = checkpoint(lambda t: torch.tanh(self.first(t)), x, use_reentrant=False)
        return self.second(inside)


def test_gradient_checkpointing_is_named_and_sketched():
    module, x = Checkpointed().double(), torch.randn(3, 5, dtype=torch.float64)
    with pytest.raises(ValueError, match="gradient checkpointing"):
        ggn_diagonal(module, x, method="exact")
    drawn = ggn_diagonal(module, x, method="sketch", n_samples=4000, generator=torch.Generator().manual_seed(0))
    expected = reference.ggn_diagonal(nn.Sequential(module.first, nn.Tanh(), module.second), x)
    for got, right in zip(drawn.values(), expected.values(), strict=True):
        assert_close(got.sum(), right.sum(), rtol=0.1, atol=0)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=4)


@pytest.mark.parametrize("method", ["exact", "mc", "sketch"])
def test_complex_parameters_are_refused_by_name(method):
    with pytest.raises(ValueError, match=r"parameter 'filter' is complex.*view_as_complex"):
        ggn_diagonal(Complex(), torch.randn(2, 4), method=method)


class Experts(nn.Module):
    """Each sample goes through one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 2)
        self.experts = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

    def forward(self, x: Tensor) -> Tensor:
        chosen, y = self.gate(x).argmax(1), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            y[chosen == i] = expert(x[chosen == i])
        return y


class Switch(Experts):
    """The same by asking: the layers of other data have the same shapes, and other weights."""

    def forward(self, x: Tensor) -> Tensor:
        first = self.gate(x).argmax(1) == 0
        return torch.cat([self.experts[0 if one else 1](row[None]) for row, one in zip(x, first, strict=True)])


@pytest.mark.parametrize("kind", [Experts, Switch])
def test_data_may_go_through_different_layers(kind):
    torch.manual_seed(0)
    module, x = kind().double(), torch.randn(7, 6, dtype=torch.float64)
    assert 0 < int((module.gate(x).argmax(1) == 0).sum()) < 7
    blocks = reference.ggn_blocks(module, x)
    assert_close(ggn_diagonal(module, x, method="exact"), reference.ggn_diagonal(module, x))
    assert_close(ggn_blocks(module, x), blocks)
    found = ggn_diagonal(module, x, method="bottleneck", bottleneck="gate")
    assert all(h.isfinite().all() for h in found.values())


@pytest.mark.parametrize("kind", [Experts, Switch])
@pytest.mark.parametrize("n_first", [3, 7])
def test_kronecker_factors_of_experts(kind, n_first):
    """Experts stand last, so that their factors are exact. An expert that no sample takes has a block of zeros."""
    torch.manual_seed(0)
    module, x = kind().double(), torch.randn(7, 6, dtype=torch.float64)
    with torch.no_grad():
        module.gate.weight.zero_()
        module.gate.weight[0, 0], module.gate.bias[:] = 1.0, 0.0
        x[:, 0] = torch.tensor([1.0] * n_first + [-1.0] * (7 - n_first))
    names = [name for name, _ in module.named_parameters()]
    found, j = ggn_kfac(module, x, n_samples=None), reference.jacobians(module, x)
    parts = [ggn_kfac(module, part, n_samples=None) for part in (x[:2], x[2:])]
    assert list(found) == names
    for name in names:
        exact = torch.einsum("bdp,bdq->pq", j[name].flatten(2), j[name].flatten(2))
        assert_close(found[name].block(), exact)
        assert_close((parts[0][name] + parts[1][name]).block(), exact)
        assert (found[name].a is None) == name.endswith("bias")
    assert (found["experts.1.weight"].block().abs().sum() == 0) == (n_first == 7)


class Turned(Switch):
    """Some samples meet a weight as it is, others transposed."""

    def forward(self, x: Tensor) -> Tensor:
        weight = as_a(nn.Linear, self.experts[0]).weight
        rows = [nn.functional.linear(row, weight) if row[0] > 0 else row @ weight for row in x]
        return torch.stack(rows)


def test_a_weight_that_samples_use_in_different_ways_has_no_factors():
    x = torch.tensor([[1.0] * 6, [-1.0] * 6])
    with pytest.raises(ValueError, match=r"'experts.0.weight' is the weight of a linear map for some samples"):
        ggn_kfac(Turned(), x)


@pytest.mark.parametrize("case", CASES[::2], ids=lambda case: case.name)
def test_networks_that_can_be_walked_say_the_same(case):
    """The two ways have nothing in common but the extraction of a layer's own gradients."""
    module, x = case.module(), case.x()
    task, budget, likelihood = work(module, x), 1 << 23, Bernoulli()
    assert_close(
        diagonal(task, likelihood, "exact", memory_budget=budget), ggn_diagonal(module, x, likelihood, "exact")
    )
    assert_close(blocks(task, likelihood, memory_budget=budget), ggn_blocks(module, x, likelihood))
    factors = kfac(task, likelihood, n_samples=None, memory_budget=budget)
    expected = ggn_kfac(module, x, likelihood, n_samples=None)
    assert list(factors) == list(expected)
    for name, factor in expected.items():
        assert_close(factors[name].g, factor.g)
        assert (factors[name].a is None) == (factor.a is None)
        if factor.a is not None:
            assert_close(sure(factors[name].a) / factors[name].n, factor.a / factor.n)


@pytest.mark.parametrize("name", ["tied", "gated", "vit", "attention", "recurrent", "autoencoder tiny", "windows"])
def test_factors_of_linear_maps_and_whole_blocks_of_the_rest(name):
    module, x = module_of(name)
    factors = ggn_kfac(module, x, Bernoulli(), n_samples=None)
    exact = reference.ggn_blocks(module, x, Bernoulli())
    parameters = dict(module.named_parameters())
    assert list(factors) == list(parameters)
    whole = {k for k, factor in factors.items() if factor.a is None}
    matrices = {
        f"{layer}.weight".removeprefix(".")
        for layer, m in module.named_modules()
        if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)
    }
    other = {"tied": {"first.weight"}, "attention": {"attention.out_proj.weight"}}.get(name, set())
    assert whole == set(parameters) - matrices | other
    for k in whole:
        layer = k.rpartition(".")[0]
        names = [n for n in parameters if n.rpartition(".")[0] == layer]
        start = sum(parameters[n].numel() for n in names[: names.index(k)])
        stop = start + parameters[k].numel()
        assert_close(factors[k].block(), exact[layer][start:stop, start:stop])


def test_factors_of_a_layer_called_twice_are_those_of_two_layers():
    module, x = build("tied")
    tied = as_a(Tied, module)

    class Untied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.once, self.again = copy.deepcopy(tied.middle), copy.deepcopy(tied.middle)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(tied.first(x))
            h = torch.tanh(self.again(torch.tanh(self.once(h))))
            return nn.functional.linear(h, tied.first.weight.T, tied.bias)

    twice = ggn_kfac(module, x, n_samples=None)["middle.weight"]
    apart = ggn_kfac(Untied(), x, n_samples=None)
    assert_close(twice.g, apart["once.weight"].g + apart["again.weight"].g)
    assert_close(twice.a, sure(apart["once.weight"].a) + sure(apart["again.weight"].a))
    assert twice.n == 2 * len(x)


def test_a_block_that_is_too_large_is_said(monkeypatch):
    module, x = build("vit")
    monkeypatch.setattr(collect, "LARGEST_BLOCK", 15)
    with pytest.raises(ValueError, match=r"'positions' is not the weight.*20 x 20 is too large: freeze it"):
        ggn_kfac(module, x)
    module.positions.requires_grad_(False)
    assert "positions" not in ggn_kfac(module, x)


@pytest.mark.parametrize("method", ["approx", "mixed"])
@pytest.mark.parametrize(
    ("name", "layer"),
    [("vit", "'the module itself' of class ViT"), ("recurrent", "Recurrent"), ("autoencoder tiny", "'0' of class")],
)
def test_methods_that_need_rules_name_the_layer(name, layer, method):
    module, x = module_of(name)
    with pytest.raises(UnknownLayerError, match=layer) as caught:
        ggn_diagonal(module, x, method=method)
    assert "Register one" in str(caught.value)
    assert "sketch" in str(caught.value)


@pytest.mark.parametrize("name", ["tied", "u-net", "vit", "recurrent", "shared layer"])
def test_nothing_is_left_behind(name):
    module, x = build(name)
    for p in module.parameters():
        p.grad = torch.full_like(p, 3.0)
    before = {n: {k: copy.copy(v) for k, v in vars(m).items()} for n, m in module.named_modules()}
    state, data = copy.deepcopy(module.state_dict()), x.clone()
    for method in ("exact", "mc", "sketch", "bottleneck"):
        ggn_diagonal(module, x, Categorical(), method, bottleneck="first" if name == "tied" else None)
    ggn_blocks(module, x)
    ggn_kfac(module, x)
    for n, m in module.named_modules():
        assert vars(m).keys() == before[n].keys()
        assert all(vars(m)[k] == v for k, v in before[n].items() if "hooks" in k)
        assert all(vars(m)["_parameters"][k] is v for k, v in before[n]["_parameters"].items())
    assert_close(module.state_dict(), state, rtol=0, atol=0)
    assert torch.equal(x, data)
    assert all((p.grad == 3).all() and p.requires_grad for p in module.parameters())


def test_other_weights_and_frozen_ones():
    (module, x), other = build("vit"), build("vit")[0]
    for p in other.parameters():
        p.data.mul_(1.5)
    params = dict(other.named_parameters())
    assert_close(ggn_diagonal(module, x, method="exact", params=params), reference.ggn_diagonal(other, x))
    assert_close(ggn_blocks(module, x, params=params), reference.ggn_blocks(other, x))
    for n, p in module.named_parameters():
        p.requires_grad_(n not in ("token", "qkv.weight", "patch.bias", "mlp.0.weight", "mlp.0.bias"))
    assert_close(ggn_diagonal(module, x, method="exact"), reference.ggn_diagonal(module, x))
    assert_close(ggn_blocks(module, x), reference.ggn_blocks(module, x))
    for method in ("exact", "mc", "bottleneck"):
        found = ggn_diagonal(module, x, method=method, params=params)
        assert list(found) == [n for n, p in module.named_parameters() if p.requires_grad]


def test_one_forward_pass_serves_the_loss():
    module, x = build("u-net")
    params = {k: p.detach().clone().requires_grad_() for k, p in module.named_parameters()}
    run = record(module, x, params)
    assert isinstance(run, Call)
    for method in ("exact", "mc", "sketch", "bottleneck"):
        h = diagonal(run, Gaussian(), method, generator=seeded(2))
        assert_close(h, ggn_diagonal(module, x, method=method, generator=seeded(2)))
    assert_close(blocks(run, Gaussian()), ggn_blocks(module, x))
    Gaussian().log_prob(run.output, x).sum().backward()
    expected = torch.autograd.grad(Gaussian().log_prob(module(x), x).sum(), list(module.parameters()))
    assert_close(tuple(p.grad for p in params.values()), expected)


def test_missing_values_have_no_curvature():
    """Which outputs are observed goes with the data, in small parts too."""
    module, x = build("recurrent")
    mask = torch.rand(x.shape, generator=seeded(0)) > 0.4
    parts = [reference.jacobians(module, x[i : i + 1]) for i in range(3)]
    expected = {
        k: sum(torch.einsum("d...,d->...", parts[i][k][0].square(), mask[i].flatten().double()) for i in range(3))
        for k in parts[0]
    }
    for budget in (1, 1 << 30):
        h = ggn_diagonal(module, x, Gaussian().observed(mask), "exact", memory_budget=budget)
        assert_close(h, expected)


class Rounded(nn.Module):
    """Nothing before it has a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach().round()


def test_a_parameter_that_is_not_used_has_none():
    module, x = build("pair")
    module.idle = nn.Parameter(torch.ones(3, dtype=torch.float64))
    for method in ("exact", "mc", "bottleneck"):
        assert torch.equal(ggn_diagonal(module, x, method=method)["idle"], torch.zeros(3, dtype=torch.float64))
    assert torch.equal(ggn_kfac(module, x)["idle"].g, torch.zeros(3, 3, dtype=torch.float64))
    rounded = nn.Sequential(nn.Linear(5, 200), Rounded(), nn.Linear(200, 5)).double()
    assert torch.equal(ggn_kfac(rounded, x)["0.weight"].g, torch.zeros(200, 200, dtype=torch.float64))
    assert_close(ggn_blocks(module, x), reference.ggn_blocks(module, x))


def test_results_have_the_type_of_the_weights():
    module, x = build("vit")
    exact = reference.ggn_diagonal(module, x)
    module.float()
    for method in ("exact", "mc", "bottleneck"):
        h = ggn_diagonal(module, x.float(), method=method)
        assert {v.dtype for v in h.values()} == {torch.float32}
    h = ggn_diagonal(module, x.float(), method="exact")
    assert_close({k: v.double() for k, v in h.items()}, exact, rtol=1e-3, atol=1e-3)
