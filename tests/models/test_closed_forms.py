"""The closed-form passes against autograd."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, ccps, ncps, seeds
from polybound.models.passes.dense import closed_form


def grouped_inputs(model, groups, seed):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(groups, 5, model.features, generator=generator, dtype=F64) - 1


def prepared(model, x):
    lifted = isinstance(model, pb.CCP) and model.form == "product"
    return torch.cat([x, torch.ones(*x.shape[:-1], 1, dtype=F64)], dim=-1) if lifted else x


def autograd_logits(model, groups, seed):
    """Inputs with a gradient, one for each run, and the logits; always with a dimension for the runs."""
    runs = model.runs or 1
    x = grouped_inputs(model, groups, seed).repeat_interleave(runs // groups, 0).requires_grad_()
    logits = model(x if model.runs else x[0])
    return x, logits if model.runs else logits.unsqueeze(0)


@given(st.one_of(ccps(runs=(None, 1, 4)), ncps(runs=(None, 1, 4))), st.sampled_from([1, 2, 4]), seeds)
def test_logits_and_all_gradients(model, groups, seed):
    groups = min(groups, model.runs or 1)
    x, logits = autograd_logits(model, groups, seed)
    d = torch.randn(logits.shape, dtype=F64)
    wanted = torch.autograd.grad(logits, [x, *model.parameters()], d, allow_unused=True)

    form = closed_form(model)
    shared = prepared(model, grouped_inputs(model, groups, seed))
    torch.testing.assert_close(form.logits(shared), logits.detach().mT)
    torch.testing.assert_close(form.input_gradient(d.mT)[..., : model.features], wanted[0])
    gradients = {tensor.data_ptr(): gradient for tensor, gradient in form.gradients(d.mT, shared)}
    for parameter, gradient in zip(model.parameters(), wanted[1:], strict=True):
        if parameter.numel():
            torch.testing.assert_close(gradients[parameter.data_ptr()].reshape(parameter.shape), gradient)

    before = [parameter.detach().clone() for parameter in model.parameters()]
    form.update_(d.mT, shared, 0.1, decay=0.3)
    for old, new, gradient in zip(before, model.parameters(), wanted[1:], strict=True):
        if old.numel():
            torch.testing.assert_close(new.detach(), (1 - 0.03) * old - 0.1 * gradient)


@given(ccps(runs=(None, 1, 4)), st.sampled_from([1, 2, 4]), st.sampled_from([1, 3]), seeds)
def test_rows_of_the_jacobian_and_all_gradients_through_them(model, groups, directions, seed):
    """For a loss of logits and rows, `<d, logits> + sum of w rows^2`: autograd differentiates twice."""
    groups = min(groups, model.runs or 1)
    x, logits = autograd_logits(model, groups, seed)
    d = torch.randn(logits.shape, dtype=F64)
    v = torch.randn(len(logits), directions, *logits.shape[1:], dtype=F64)
    rows = torch.stack([torch.autograd.grad(logits, x, v[:, n], create_graph=True)[0] for n in range(directions)], 1)
    w = torch.rand_like(rows)
    loss = (d * logits).sum() + (w * rows.square()).sum()
    wanted = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    form = closed_form(model)
    shared = prepared(model, grouped_inputs(model, groups, seed))
    form.logits(shared)
    found = form.rows(v.mT)[..., : model.features]
    torch.testing.assert_close(found, rows.detach())
    r = 2 * w * found
    if shared.shape[-1] > r.shape[-1]:
        r = torch.cat([r, torch.zeros_like(r[..., :1])], -1)  # the constant is no input
    gradients = {tensor.data_ptr(): gradient for tensor, gradient in form.gradients_by_rows(d.mT, r, shared)}
    before = [parameter.detach().clone() for parameter in model.parameters()]
    form.update_by_rows_(d.mT, r, shared, 0.1, decay=0.3)
    for old, new, gradient in zip(before, model.parameters(), wanted, strict=True):
        if old.numel():
            torch.testing.assert_close(gradients[new.data_ptr()].reshape(old.shape), gradient)
            torch.testing.assert_close(new.detach(), (1 - 0.03) * old - 0.1 * gradient)


def test_what_has_none():
    with pytest.raises(pb.PolyboundError, match="ConvCCP"):
        closed_form(pb.ConvCCP((1, 4), 2, 2, 2, 3))
    with pytest.raises(pb.PolyboundError, match="lifted"):
        closed_form(pb.CCP(4, 2, 2, 2, "product")).logits(torch.zeros(1, 3, 4))


def test_a_step_of_an_ncp_leaves_no_subnormal_weights_but_an_attack_has_all_gradients():
    """As small bounds leave it: matrices in between that are all but zero."""
    model = pb.NCP(6, 4, 3, 4, seed=0)
    with torch.no_grad():
        model.S[..., :-1] *= 1e-13
        model.V[0] = 0.0
    form = closed_form(model)
    x, d = torch.rand(1, 8, 6), torch.rand(1, 3, 8)
    form.logits(x)
    form.update_(d, x, 1.0)
    assert (model.V[0] == 0).all(), "gradients of 1e-39 move nothing"
    assert (model.V[1:] != 0).all()
    with torch.no_grad():
        model.S[..., :-1] *= 1e6
    form.logits(x)
    assert (form.input_gradient(d) != 0).all()
