"""Forward passes against the paper's recursions written out; initialisation; stacks; shapes; trained examples."""

import re
from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, networks, randomise, seeds
from polybound.models import EXAMPLES, example_origin, zoo
from polybound.runs import Spec


def inputs(model, seed, batch=3):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(batch, *model.shape, generator=generator, dtype=F64) - 1


@given(networks(runs=(None, 3)), seeds)
def test_forward_equals_the_canonical_factors(model, seed):
    x = inputs(model, seed)
    factors = model.factors()
    torch.testing.assert_close(model(x), factors(x.flatten(1)))
    assert torch.equal(model(x), model(x.flatten(1)))
    torch.testing.assert_close(model(x), factors.dense(x.flatten(1)))
    z = torch.cat([x.flatten(1), torch.ones(3, 1, dtype=F64)], dim=1)
    torch.testing.assert_close(model(x), factors.lifted()(z))


def test_pn_conv_layer_by_layer():
    model = pb.paper_model("pn-conv", dtype=F64)
    x = torch.randn(2, 1, 28, 28, dtype=F64)
    p = F.conv2d(x, model.P, model.c, padding=1)
    h = [F.conv2d(p, K, padding=3) for K in model.K]
    y = h[1] * h[0] + h[0]
    y = F.avg_pool2d(y, 2)
    y = F.avg_pool2d(h[2], 2) * y + y
    y = F.avg_pool2d(y, 2)
    y = F.avg_pool2d(F.avg_pool2d(h[3], 2), 2) * y + y
    assert y.shape == (2, 16, 7, 7)
    torch.testing.assert_close(model(x), F.linear(y.flatten(1), model.C[:, :-1], model.C[:, -1]))


@st.composite
def convolutional(draw):
    """A convolutional network of images, and inputs shared by its runs or one batch for each."""
    degree, runs = draw(st.integers(1, 4)), draw(st.sampled_from([None, 1, 3]))
    pool = draw(st.sets(st.integers(1, degree), max_size=2))
    kernel = draw(st.sampled_from([1, 3, 5, 7]))
    multiple = 2 ** len(pool)
    sides = st.integers(-(-max(kernel, 2) // multiple), 3 + 8 // multiple).map(lambda n: n * multiple)
    shape = (draw(st.integers(1, 3)), draw(sides), draw(sides))
    model = pb.ConvCCP(shape, 2, 2, degree, kernel, pre=3, pool=pool, runs=runs, dtype=F64)
    batches = (2,) if runs is None or draw(st.booleans()) else (runs, 2)
    return randomise(model, draw(seeds), 0.5), torch.randn(*batches, *shape, dtype=F64)


@given(convolutional())
def test_the_closed_form_under_autograd_is_the_layers_with_their_gradients(case):
    model, x = case
    shared = x.ndim == 4
    parameters, x = list(model.parameters()), x.requires_grad_()
    d = torch.randn_like(model(x))

    def both(logits):
        """Gradients, and those of the square of the gradient by the input."""
        gradients = torch.autograd.grad(logits, [x, *parameters], d, create_graph=True)
        return [*gradients, *torch.autograd.grad(gradients[0].square().sum(), parameters, allow_unused=True)]

    logits, flat = model(x), (x.flatten(-3).unsqueeze(0) if shared else x.flatten(-3))
    layered = model._by_layers(flat, *parameters)
    layered = layered if model.runs else layered[0]
    torch.testing.assert_close(logits, layered)
    plain = torch.autograd.grad(model(x), [x, *parameters], d)
    for gradient, again, wanted in zip(both(logits), [*plain, *both(logits)[len(plain) :]], both(layered), strict=True):
        if wanted is not None:
            torch.testing.assert_close(gradient, wanted)
            torch.testing.assert_close(again, wanted)


def test_a_convolutional_network_within_a_module_is_traced():
    model = pb.ConvCCP((1, 6, 6), 3, 2, 2, 3, pre=3, pool=(1,), seed=0, dtype=F64)
    network = pb.polynomial(torch.nn.Sequential(model), (1, 6, 6))
    x = torch.rand(2, 1, 6, 6, dtype=F64)
    torch.testing.assert_close(network.graph()(x), model(x))
    with pytest.raises(RuntimeError, match="type"):
        model(x.float())


@given(networks(runs=(3,)), seeds)
def test_a_stack_is_its_members(model, seed):
    x = inputs(model, seed)
    own = torch.stack([inputs(model, seed + e) for e in range(3)])
    together, apart = model(x), model(own)
    for e in range(3):
        torch.testing.assert_close(together[e], model.run(e)(x))
        torch.testing.assert_close(apart[e], model.run(e)(own[e]))


@given(networks(runs=(3,)))
def test_unstacking_and_stacking_is_bit_exact(model):
    again = pb.stack([pb.stack([model.run(0), model.run(1)]), model.run(2)])
    assert again.config() == model.config()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
        assert tensor.numel() == 0 or again.state_dict()[name].data_ptr() != tensor.data_ptr()


def test_seeds_make_a_run_equal_to_its_single_model():
    for make in (
        lambda **kw: pb.CCP(6, 3, 2, 4, **kw),
        lambda **kw: pb.CCP(6, 3, 2, 4, "product", **kw),
        lambda **kw: pb.NCP(6, 3, 2, 4, **kw),
        lambda **kw: pb.ConvCCP((1, 6, 6), 3, 2, 2, 3, pre=3, **kw),
    ):
        for stacked in (make(runs=3, seed=5), make(runs=3, seed=[5, 6, 7])):
            for name, tensor in make(seed=6).state_dict().items():
                assert torch.equal(stacked.run(1).state_dict()[name], tensor)


def test_weights_start_as_those_of_linear_do_from_the_global_generator_if_there_is_no_seed():
    torch.manual_seed(3)
    model = pb.CCP(784, 16, 10, 4)
    assert model.V.abs().max() <= 1 / 28 < 1.01 * model.V.abs().max()
    assert model.C.abs().max() <= 1 / 4 < 1.1 * model.C.abs().max()
    torch.manual_seed(3)
    assert torch.equal(model.V, pb.CCP(784, 16, 10, 4).V)
    assert not torch.equal(model.V, pb.CCP(784, 16, 10, 4).V)


@pytest.mark.parametrize("degree", [1, 4, 10, 30, 100, 1000])
@pytest.mark.parametrize("kind", ["residual", "product", "ncp", "conv"])
def test_no_degree_overflows_or_vanishes_at_initialisation(kind, degree):
    if kind == "ncp":
        model = pb.NCP(784, 16, 10, degree, seed=0)
    elif kind == "conv":
        model = pb.ConvCCP((1, 12, 12), 4, 10, degree, 3, pre=3, seed=0)
    else:
        model = pb.CCP(784, 16, 10, degree, kind, seed=0)
    x = 2 * torch.rand(64, *model.shape) - 1
    logits = model(x)
    F.cross_entropy(logits, torch.zeros(64, dtype=torch.int64)).backward()
    assert torch.isfinite(logits).all() and logits.abs().max() < 1e4
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.numel())
    # Without a residual path, a nested recursion cannot hand a gradient down through a hundred products.
    if kind != "ncp" or degree <= 10:
        assert all(p.grad.abs().max() > 0 for p in model.parameters() if p.numel())


def test_explain_nonfinite_says_where():
    model = pb.CCP(4, 3, 2, degree=8, seed=0)
    x = torch.ones(2, 4)
    assert model.explain_nonfinite(x) == ""
    with torch.no_grad():
        model.V[5] = 1e30
        model.V[6] = 1e30
    # A node before the two has values of up to 1e30: factor 7 multiplies them.
    assert "the values overflow at Product 13 (product 7)" in model.explain_nonfinite(x)
    with torch.no_grad():
        model.V[0, 0, 0] = float("nan")
    assert model.explain_nonfinite(x) == "1 of 96 values of parameter V are not finite"


def test_weights_of_others_make_the_recursion_as_printed():
    V, C, bias = torch.randn(3, 4, 5, dtype=F64), torch.randn(2, 4, dtype=F64), torch.randn(2, dtype=F64)
    x = torch.randn(6, 5, dtype=F64)
    y = x @ V[0].T
    for n in (1, 2):
        y = (x @ V[n].T) * y + y
    assert torch.allclose(pb.CCP.from_factors(list(V), C, bias)(x), y @ C.T + bias)
    U = torch.randn(3, 4, 6, dtype=F64)
    z = torch.cat([x, torch.ones(6, 1, dtype=F64)], 1)
    product = pb.CCP.from_factors(U, C, form="product")
    assert torch.allclose(product(x), ((z @ U[0].T) * (z @ U[1].T) * (z @ U[2].T)) @ C.T)
    S, b = torch.randn(2, 4, 4, dtype=F64), torch.randn(3, 4, dtype=F64)
    y = (x @ V[0].T) * b[0]
    for n in (1, 2):
        y = (x @ V[n].T) * (y @ S[n - 1].T + b[n])
    assert torch.allclose(pb.NCP.from_factors(V, S, b, C, bias)(x), y @ C.T + bias)
    one = pb.NCP.from_factors(V[:1], [], b[:1], C)
    assert torch.allclose(one(x), ((x @ V[0].T) * b[0]) @ C.T)
    image = torch.randn(6, 1, 4, 4, dtype=F64)
    conv = pb.ConvCCP((1, 4, 4), 2, 3, 3, 3, pre=3, pool=(2,), dtype=F64)
    copy = pb.ConvCCP.from_factors(
        list(conv.K), conv.C[:, :-1], conv.C[:, -1], shape=(1, 4, 4), pre=conv.P, pre_bias=conv.c, pool=(2,)
    )
    assert torch.equal(copy(image), conv(image))
    copy.C.data.zero_()
    assert not torch.equal(copy(image), conv(image)), "the weights are copies"


BAD = {
    "whole number": lambda: pb.CCP(4, 3, 2, 2.5),
    "form": lambda: pb.CCP(4, 3, 2, 2, form="nested"),
    "shape of a CCP": lambda: pb.CCP(4, 3, 2, 2, shape=(3, 2)),
    "seeds": lambda: pb.CCP(4, 3, 2, 2, runs=2, seed=[1, 2, 3]),
    "kernel": lambda: pb.ConvCCP((1, 8, 8), 4, 10, 2, kernel=4),
    "pool after the last": lambda: pb.ConvCCP((1, 8, 8), 4, 10, 2, 3, pool=(3,)),
    "pool to nothing": lambda: pb.ConvCCP((1, 2, 2), 4, 10, 2, 3, pool=(1, 2)),
    "flat": lambda: pb.ConvCCP((8,), 4, 10, 2, 3),
    "name": lambda: pb.paper_model("pn-5"),
    "nothing to stack": lambda: pb.stack([]),
    "degrees differ": lambda: pb.stack([pb.CCP(4, 3, 2, 2), pb.CCP(4, 3, 2, 3)]),
    "kinds differ": lambda: pb.stack([pb.CCP(4, 3, 2, 2), pb.NCP(4, 3, 2, 2)]),
    "run beyond": lambda: pb.CCP(4, 3, 2, 2, runs=2).run(2),
    "no batch": lambda: pb.CCP(4, 3, 2, 2)(torch.zeros(4)),
    "features of inputs": lambda: pb.CCP(4, 3, 2, 2)(torch.zeros(7, 5)),
    "batches of a stack": lambda: pb.CCP(4, 3, 2, 2, runs=3)(torch.zeros(2, 7, 4)),
    "V of two sizes": lambda: pb.CCP.from_factors([torch.zeros(2, 3), torch.zeros(2, 4)], torch.zeros(2, 2)),
    "no V": lambda: pb.CCP.from_factors([], torch.zeros(2, 2)),
    "C": lambda: pb.CCP.from_factors(torch.zeros(2, 2, 3), torch.zeros(2, 5)),
    "product": lambda: pb.CCP.from_factors(torch.zeros(2, 2, 3), torch.zeros(2, 2), torch.zeros(2), form="product"),
    "whole V": lambda: pb.CCP.from_factors(torch.zeros(2, 2, 3, dtype=torch.int64), torch.zeros(2, 2)),
    "units": lambda: pb.ConvCCP.from_factors(torch.zeros(2, 2, 1, 3, 3), torch.zeros(2, 5), shape=(1, 4, 4)),
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_bad_input_raises_one_clear_line(make):
    refuses("", make)


def test_trained_examples_come_with_the_package():
    for name in pb.models.EXAMPLES:
        model = pb.example(name)
        assert model(torch.zeros(2, model.features)).shape == (2, 10)
        assert pb.Projection(model, bound=1.0).contains() == name.endswith("bound-1")
    refuses("pn-4-bound-1", pb.example, "resnet")


@pytest.mark.parametrize(
    ("name", "eps", "least"),
    [("mnist-certified-0.1", 0.2, 190), ("mnist-certified-0.3", 0.6, 175), ("fashion-mnist-certified-0.05", 0.1, 150)],
)
def test_examples_that_were_trained_for_certificates_have_them(name, eps, least):
    spec = pb.Spec.from_dict(pb.models.example_origin(name)["spec"])
    model = pb.example(name)
    assert isinstance(spec.recipe.method, pb.training.Certified) and spec.recipe.method.eps == eps
    assert model.config() == pb.paper_model("boxnet", parameters=dict(spec.model.parameters)).config()
    if pb.data.missing(spec.data.name):
        pytest.skip(f"no {spec.data.name}")
    test = spec.data.load("test")
    assert pb.certify(model, test.x[:200], test.y[:200], eps, method="interval").count("verified") >= least


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    ("name", "rank", "message"),
    [
        ("pn-4", 16, "there is a model called 'pn-4' already"),
        ("PN 4", 16, "letters, digits"),
        (4, 16, "letters, digits"),
        ("own", 0, "rank must be"),
    ],
)
def test_models_that_are_not_registered(name, rank, message):
    refuses(message, pb.models.register_model, name, "something", zoo._ncp, rank)
    assert list(pb.models.model_names())[:4] == list(pb.models.PAPER_MODELS)
    for unknown in (pb.paper_model, pb.models.paper_rank):
        refuses("model must be one of pn-4, pn-10", unknown, "own")


DEEP = [name for name in EXAMPLES if name.endswith("-polynet")]


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_example_is_a_polynet_of_its_spec(name, cli):
    network, spec = pb.example(name), Spec.from_dict(example_origin(name)["spec"])
    assert isinstance(network, pb.PolyNet) and not network.training
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    like = pb.paper_model(spec.model.name, shape=network.shape, parameters=dict(spec.model.parameters))
    assert network.config() == like.config() and spec.data.digest == pb.data.digest_of(spec.data.name)
    assert files("polybound.models").joinpath("trained", f"{name}.safetensors").stat().st_size <= 2_000_000
    assert network.degree == 2 ** sum(network.blocks) == network.graph().degree


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_example_classifies_as_its_origin_says(name):
    origin = example_origin(name)
    dataset = origin["spec"]["data"]["name"]
    if pb.data.missing(dataset):
        pytest.skip(f"no {dataset}")
    test = pb.data.load(dataset, "test")
    network = pb.example(name)
    with torch.no_grad():
        right = int((network(test.x[:200]).argmax(1) == test.y[:200]).sum())
    stated = int(re.search(r"(\d+) of the first 200", origin["note"]).group(1))
    assert abs(right - stated) <= 1  # where two logits nearly agree, processors may not
