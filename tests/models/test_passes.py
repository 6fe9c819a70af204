"""The passes by hand against autograd; those of ConvCCP against its layers. In float64, to 1e-10."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, ccps, ncps, randomise, seeds
from helpers.training import in_one_go_and_in_two
from polybound.attacks import Classifier
from polybound.data import load_digits
from polybound.models import closed_form, has_closed_form
from polybound.models.passes.conv import ConvGradients
from polybound.training import JacobianPenalty, WeightDecay
from polybound.training.engine import AutogradEngine, ClosedEngine, RowsEngine, StepRandom, engine_for

PN_CONV = {"channels": 3, "classes": 4, "degree": 4, "kernel": 7, "pre": 3, "pool": (2, 3)}


def layers():
    """The oracle of convolutions: layer by layer."""
    return mock.patch(
        "polybound.models.conv._ByHand.apply", lambda model, x, *weights: model._by_layers(x, *weights), create=True
    )


def close(found, wanted):
    scale = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(found / scale, wanted / scale, rtol=1e-10, atol=1e-10)


def inputs(model, groups, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(groups, batch, model.features, generator=generator, dtype=F64) - 1


def check(model, form, groups, directions=0, batch=5, seed=0):
    """Logits and gradients are autograd's, for `<d, logits> + sum of w rows^2` with rows of the Jacobian, if any.

    And a step is what they say it is. Autograd differentiates the rows twice.
    """
    groups, generator = min(groups, model.runs or 1), torch.Generator().manual_seed(seed)
    x = inputs(model, groups, batch, seed)
    own = x.repeat_interleave((model.runs or 1) // groups, 0).requires_grad_()
    with layers():
        logits = model(own if model.runs else own[0])
    logits = logits if model.runs else logits.unsqueeze(0)
    d = torch.randn(logits.shape, dtype=F64, generator=generator)
    loss = (d * logits).sum()
    if directions:
        v = torch.randn(len(logits), directions, *logits.shape[1:], dtype=F64, generator=generator)
        rows = [torch.autograd.grad(logits, own, each, create_graph=True)[0] for each in v.unbind(1)]
        rows = torch.stack(rows, 1)
        w = torch.rand(rows.shape, dtype=F64, generator=generator)
        loss = loss + (w * rows.square()).sum()
    of_input, *wanted = torch.autograd.grad(loss, [own, *model.parameters()], allow_unused=True)

    close(form.logits(x), logits.detach().mT)

    def given(_, runs, samples):
        return d.mT[runs, :, samples]

    if directions:
        found = form.rows(v.mT)
        close(found, rows.detach())
        r = 2 * w * found
        pairs = form.gradients_by_rows(d.mT, r)
    else:
        close(form.input_gradient(d.mT), of_input)
        pairs = form.gradients_of(x, given)
    gradients = {tensor.data_ptr(): gradient for tensor, gradient in pairs}
    cases = [(p, p.detach().clone(), g) for p, g in zip(model.parameters(), wanted, strict=True) if p.numel()]
    for parameter, _, gradient in cases:
        close(gradients[parameter.data_ptr()].reshape(parameter.shape), gradient)
    if directions:
        form.update_by_rows_(d.mT, r, 0.1, decay=0.3)
    else:
        form.descend_(x, given, 0.1, decay=0.3)
    for parameter, before, gradient in cases:
        close(parameter.detach(), (1 - 0.03) * before - 0.1 * gradient)


@given(st.one_of(ccps(runs=(None, 1, 4)), ncps(runs=(None, 1, 4))), st.sampled_from([1, 2, 4]), seeds)
def test_dense_networks(model, groups, seed):
    check(model, closed_form(model), groups, seed=seed)


@given(ccps(runs=(None, 1, 4)), st.sampled_from([1, 2, 4]), st.sampled_from([1, 3]), seeds)
def test_rows_of_the_jacobian_of_dense_networks(model, groups, directions, seed):
    check(model, closed_form(model), groups, directions, seed=seed)


@st.composite
def networks(draw):
    """Of any size, also one that poolings do not divide or that is smaller than the kernel."""
    degree = draw(st.integers(1, 4))
    pool = draw(st.sets(st.integers(1, degree), max_size=2))
    least = 2 ** len(pool)
    model = pb.ConvCCP(
        (draw(st.sampled_from([1, 3])), draw(st.integers(least, 11)), draw(st.integers(least, 11))),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        degree,
        draw(st.sampled_from([1, 3, 5, 7])),
        pre=draw(st.sampled_from([None, 1, 3, 5])),
        pool=pool,
        runs=draw(st.sampled_from([None, 1, 4])),
        dtype=F64,
    )
    return randomise(model, draw(seeds), 0.3)


@pytest.mark.parametrize("directions", [0, 1, 3])
@given(networks(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 3000, 10**6]), seeds)
def test_convolutions_in_parts_of_any_size(directions, model, groups, cache, seed):
    check(model, ConvGradients(model, cache), groups, directions, seed=seed)


@pytest.mark.parametrize("directions", [0, 1])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("runs", [None, 2])
def test_pn_conv(shape, runs, directions):
    model = pb.paper_model("pn-conv", shape, rank=4, runs=runs, seed=0, dtype=F64)
    check(randomise(model, 1, 0.2), closed_form(model), 1, directions, batch=3)


def test_which_have_one():
    assert has_closed_form(pb.ConvCCP((1, 4, 4), 2, 2, 2, 3))
    assert not has_closed_form(pb.ConvCCP((1, 4), 2, 2, 2, 3))
    assert not has_closed_form(torch.nn.Linear(2, 2))
    refuses("ConvCCP", closed_form, pb.ConvCCP((1, 4), 2, 2, 2, 3))


def test_a_step_of_an_ncp_leaves_no_subnormal_weights_but_an_attack_has_all_gradients():
    """As small bounds leave it: matrices in between that are all but zero."""
    model = pb.NCP(6, 4, 3, 4, seed=0)
    with torch.no_grad():
        model.S[..., :-1] *= 1e-13
        model.V[0] = 0.0
    form = closed_form(model)
    x, d = torch.rand(1, 8, 6), torch.rand(1, 3, 8)
    form.descend_(x, lambda *_: d, 1.0)
    assert (model.V[0] == 0).all(), "gradients of 1e-39 move nothing"
    assert (model.V[1:] != 0).all()
    with torch.no_grad():
        model.S[..., :-1] *= 1e6
    form.logits(x)
    assert (form.input_gradient(d) != 0).all()


@pytest.mark.parametrize("directions", [1, 3])
def test_what_is_computed_again_is_the_same(monkeypatch, directions):
    model = randomise(pb.ConvCCP((1, 12, 12), runs=2, dtype=F64, **PN_CONV), 0, 0.3)
    x, d = inputs(model, 1, 9, 0), torch.randn(2, 4, 9, dtype=F64)
    v = torch.randn(2, directions, 4, 9, dtype=F64)
    found = []
    for kept in (0, 10**9):
        monkeypatch.setattr("polybound.models.passes.conv.KEPT", kept)
        form = ConvGradients(model, 20000)
        form.logits(x)
        by_images = form.input_gradient(d)
        form.logits(x)
        rows = form.rows(v)
        gradients = [gradient for _ in range(2) for _, gradient in form.gradients_by_rows(d, rows)]
        found.append([by_images, rows, *gradients])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_parts_change_nothing_but_rounding_and_the_same_call_gives_the_same_bits(dtype):
    model = pb.ConvCCP((1, 12, 12), runs=3, seed=[0, 1, 2], dtype=dtype, **PN_CONV)
    x = inputs(model, 1, 11, 0).to(dtype)

    def gradients(cache, earlier=()):
        form = ConvGradients(model, cache)
        for batch in earlier:  # memory that was used for something else
            form.logits(x[:, :batch])
        return [gradient for _, gradient in form.gradients_of(x, lambda logits, *_: logits.softmax(1))]

    whole = gradients(10**7)
    for cache in (1, 20000, 10**6):
        for part, same, wanted in zip(gradients(cache), gradients(cache, (3, 5, 7, 11)), whole, strict=True):
            assert torch.equal(part, same)
            scale = float(wanted.abs().max())
            torch.testing.assert_close(part / scale, wanted / scale, rtol=0.0, atol=1e3 * torch.finfo(dtype).eps)


METHODS = [WeightDecay(0.01), JacobianPenalty(0.1), JacobianPenalty(0.1, "exact")]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
@pytest.mark.parametrize(("runs", "groups"), [(None, 1), (4, 1), (4, 2)])
def test_a_step_is_that_of_autograd(runs, groups, method):
    seed = 0 if runs is None else range(4)
    models = [pb.ConvCCP((1, 12, 12), runs=runs, seed=seed, dtype=F64, **PN_CONV) for _ in range(2)]
    engines = engine_for(models[0], method), AutogradEngine(models[1], method)
    assert type(engines[0]) is (RowsEngine if method.own_loss else ClosedEngine)
    x = inputs(models[0], groups, 6, 0)
    y = torch.randint(4, (groups, 6), generator=torch.Generator().manual_seed(0))
    with layers():
        losses = [engine.step_(x, y, 0.5, StepRandom(runs or 1, [0], 0, 0)).reshape(-1) for engine in engines]
    close(*losses)
    for mine, wanted in zip(models[0].parameters(), models[1].parameters(), strict=True):
        close(mine.detach(), wanted.detach())


def test_training_goes_on_to_the_same_bits_in_another_process():
    """What stays in memory from step to step must not be part of the state."""
    data, seeds = load_digits("train"), [7] * 3
    recipe = pb.Recipe.from_options(
        method="projection", bound=[0.8, 1.5, 3.0], start=0, every=3, learning_rate=0.05, epochs=1
    )

    def fresh():
        return pb.paper_model("pn-conv", data.shape, rank=4, runs=3, seed=seeds)

    whole, resumed = in_one_go_and_in_two(fresh, data, recipe, seeds, steps=5)
    assert all(map(torch.equal, whole.parameters(), resumed.parameters()))


def test_an_attack_sees_weights_that_changed_before_it():
    """Kernels are collapsed once an attack, not once for all."""
    model = pb.ConvCCP((1, 12, 12), seed=0, **PN_CONV)
    x, y = 2 * torch.rand(5, 1, 12, 12) - 1, torch.randint(4, (5,))
    with Classifier(model, model.shape) as victim:
        before = victim.logits(x.flatten(1).unsqueeze(0))
    with torch.no_grad():
        model.K.mul_(2.0)
    with victim:
        torch.testing.assert_close(victim.logits(x.flatten(1).unsqueeze(0))[0].mT, model(x).detach())
    assert not torch.equal(before[0].mT, model(x))
    ours = pb.PGD(0.1, 3, 0.05)(model, x, y, domain=(-1, 1))
    with mock.patch("polybound.attacks.classifier.has_closed_form", return_value=False), layers():
        torch.testing.assert_close(pb.PGD(0.1, 3, 0.05)(model, x, y, domain=(-1, 1)), ours)
