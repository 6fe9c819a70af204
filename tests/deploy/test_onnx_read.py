"""ONNX files are read as the polynomial they are, whoever wrote them; what is none is refused by the node's name."""

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import polybound as pb
from helpers.networks import ccps, convs, ncps
from helpers.onnx_graphs import BY_HAND, export, external, node, off, run, save_graph
from helpers.profiles import examples
from polybound.deploy import from_onnx, read_onnx, to_onnx


@settings(max_examples=examples(40), deadline=None)
@given(model=st.one_of(ccps(), ncps(), convs()))
def test_round_trips_are_the_same_polynomial(model, tmp_path_factory):
    [file] = to_onnx(model, tmp_path_factory.mktemp("onnx") / "net.onnx", bounds=False)
    again = from_onnx(file)
    x = torch.randn(1000, model.features, dtype=torch.float64)
    wanted = model(x)
    assert type(again) is type(model)
    assert bool(((again(x) - wanted).abs() <= 1e-6 * wanted.abs().amax(0).clamp_min(1e-300)).all())
    assert off(read_onnx(file).factors(x), wanted) < 1e-12


@pytest.mark.parametrize(
    "model",
    [
        pb.CCP(6, 4, 3, 3, seed=0, shape=(2, 3)),
        pb.CCP(6, 4, 3, 3, "product", seed=0),
        pb.NCP(6, 4, 3, 4, seed=0),
        pb.ConvCCP((2, 6, 5), 3, 4, 3, 3, pre=5, pool=(1, 3), seed=0),
        pb.example("pn-4"),
    ],
)
def test_round_trips_keep_class_config_type_and_weights(model, tmp_path):
    [file] = to_onnx(model, tmp_path / "net.onnx", bounds=False)
    again = from_onnx(file)
    assert pb.models.weights_digest(again) == pb.models.weights_digest(model)
    assert next(again.parameters()).dtype == next(model.parameters()).dtype


def test_nothing_but_the_graph_is_believed(tmp_path):
    [file] = to_onnx(pb.CCP(6, 4, 3, 2, seed=0), tmp_path / "net.onnx", bounds=False)
    proto = onnx.load(file)
    for entry in proto.metadata_props:
        entry.value = entry.value.replace('"CCP"', '"NCP"').replace("4", "5")
    file.write_bytes(proto.SerializeToString())
    again, x = from_onnx(file), torch.randn(50, 6)
    assert off(again(x), run(file, x)) < 1e-5


# The newer exporter takes seconds for each: one dense network and one of convolutions.
@pytest.mark.parametrize(
    ("module", "dynamo"),
    [*((module, False) for module in BY_HAND), *(pytest.param(m, True, marks=pytest.mark.slow) for m in BY_HAND[5:7])],
)
def test_networks_in_plain_torch(module, dynamo, tmp_path):
    torch.manual_seed(0)
    network = module()
    file = export(network, tmp_path / "net.onnx", torch.randn(3, 1, 4, 4), dynamo)
    model, x = from_onnx(file), torch.randn(1000, 1, 4, 4, dtype=torch.float64)
    assert type(model) is module.kind and model.config().get("rank") == module.rank
    assert off(model.double()(x), network.double()(x)) < 1e-12
    assert off(read_onnx(file).factors(x.flatten(1)), network(x)) < 1e-12


W, B = np.arange(12).reshape(3, 4) / 7 - 0.8, np.array([0.5, -1.0, 2.0])
MATRICES = {name: np.float32(value) for name, value in {"W": W, "V": W[::-1] + 0.1, "S": W[:, :3], "b": B}.items()}


def linear(weight, output, source="input", bias=""):
    return node("Gemm", f"{source} {weight} {bias}", output, transB=1)


def squared():
    """The product of two polynomials of degree two, with maps in between."""
    return [
        linear("W", "h"),
        linear("V", "g"),
        node("Mul", "h g", "p"),
        node("Mul", "h h", "q"),
        linear("S", "r", "p"),
        linear("S", "s", "q"),
        node("Mul", "r s", "output"),
    ]


REFUSED = {
    "Relu": ([linear("W", "h"), node("Relu", "h", "output")], "the_output.*piecewise"),
    "MaxPool": (
        [
            node("Reshape", "input image", "i"),
            node("MaxPool", "i", "m", kernel_shape=[1]),
            node("Flatten", "m", "f"),
            linear("W", "output", "f"),
        ],
        "the_m.*piecewise",
    ),
    "Softmax": ([linear("W", "h"), node("Softmax", "h", "output")], "the_output.*no polynomial"),
    "division": ([linear("W", "h"), linear("V", "g"), node("Div", "h g", "output")], "the_output.*divides by"),
    "unrelated depths": (squared(), "the_output.*degree 2 and 2"),
    "sum of unrelated degrees": (
        [linear("W", "h"), linear("V", "g"), node("Mul", "h h", "p"), node("Add", "p g", "output")],
        "the_output.*degree 2 and 1",
    ),
    "matrix of the input": (
        [
            node("Reshape", "input square", "i"),
            node("MatMul", "i i", "m"),
            node("Flatten", "m", "f"),
            linear("W", "output", "f"),
        ],
        "the_m.*both depend",
    ),
    "batch in a reshape": (
        [node("Reshape", "input pairs", "i"), linear("S2", "output", "i")],
        r"the_i.*mix the inputs",
    ),
    "part of the batch": ([linear("W", "h"), node("Slice", "h zero one zero", "output")], "the_output.*batch"),
    "broadcast": (
        [
            node("Unsqueeze", "input one", "u"),
            node("Unsqueeze", "input two", "v"),
            node("Mul", "u v", "m"),
            node("Flatten", "m", "f"),
            linear("W16", "output", "f"),
        ],
        "the_m.*repeated",
    ),
    "batch as a number": (
        [
            node("Shape", "input", "s"),
            node("Mul", "s two", "t"),
            node("Slice", "t zero one zero", "u"),
            node("Reshape", "input u", "r"),
            linear("W", "output", "r"),
        ],
        "the_t.*size of the batch",
    ),
    "batch not first": (
        [
            node("Shape", "input", "s"),
            node("Slice", "s zero one zero", "n"),
            node("Concat", "four n", "t", axis=0),
            node("Reshape", "input t", "r"),
            linear("W", "output", "r"),
        ],
        "the_r.*begin with the batch",
    ),
    "batch of a number": ([node("Reshape", "input fixed", "r"), linear("W", "output", "r")], "the_r.*begin with"),
    "transposed batch": ([linear("W", "h"), node("Transpose", "h", "output", perm=[1, 0])], "the_output.*batch"),
    "more dimensions": (
        [linear("W", "h"), node("Mul", "h three", "m"), node("Flatten", "m", "output")],
        r"the_m.*\(1, 1, 3\) makes 3 dimensions of 2",
    ),
    "squeezed batch": ([linear("W", "h"), node("Squeeze", "h", "output")], "the_output.*batch of one"),
    "reshape to a batch of one": ([node("Reshape", "input single", "r"), linear("W", "output", "r")], "the_r.*batch"),
    "nothing left": ([linear("W", "h"), node("Slice", "h two one one", "output")], "the_output.*nothing"),
    "index out of range": ([linear("W", "h"), node("Gather", "h four", "output", axis=1)], "the_output.*size 3"),
    "power": ([linear("W", "h"), node("Pow", "h half", "output")], "the_output.*are read"),
    "constant output": ([node("Identity", "W", "output")], "does not depend"),
}
NUMBERS = {
    "image": np.array([0, 1, 4]),
    "square": np.array([0, 2, 2]),
    "pairs": np.array([-1, 2]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "four": np.array([4]),
    "fixed": np.array([5, 4]),
    "single": np.array([1, 4]),
    "three": np.ones((1, 1, 3), np.float32),
    "half": np.float32(0.5),
    "S2": np.ones((3, 2), np.float32),
    "W16": np.ones((3, 16), np.float32),
}


@pytest.mark.parametrize("name", REFUSED)
def test_graphs_that_do_not_fit_are_refused_by_the_nodes_name(name, tmp_path):
    nodes, complaint = REFUSED[name]
    file = save_graph(tmp_path / "net.onnx", nodes, MATRICES | NUMBERS)
    with pytest.raises(pb.PolyboundError, match=complaint):
        read_onnx(file)


@pytest.mark.parametrize("where", ["value", "constant"])
def test_an_empty_optional_operand_keeps_its_place(where, tmp_path):
    def picked(source, output):
        return helper.make_node("Slice", [source, "zeros", "ends", "", "steps"], [output], name="the_slice")

    tensors = {
        "W": np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, :, 0].T / 7,
        "zeros": np.array([0, 0]),
        "ends": np.array([9, 9]),
        "steps": np.array([1, 2]),
        "Q": np.float32(W).T,
        "rows": np.array([0, 1]),
    }
    if where == "constant":  # of (4, 3), columns 0 and 2
        nodes = [picked("Q", "R"), node("MatMul", "input R", "output")]
        file = save_graph(tmp_path / "net.onnx", nodes, tensors)
    else:
        nodes = [node("Flatten", "input", "h"), picked("h", "output")]
        file = save_graph(tmp_path / "net.onnx", nodes, tensors, shape=(1, 4))
    if where == "value":  # the batch is the first axis
        with pytest.raises(pb.PolyboundError, match=r"the_slice.*batch"):
            read_onnx(file)
        return
    x = torch.randn(5, 4)
    assert off(from_onnx(file)(x), run(file, x)) < 1e-5


@pytest.mark.parametrize("operator", ["Add", "Mul", "Sub", "Div"])
def test_attributes_of_old_opsets_are_refused_by_name(operator, tmp_path):
    nodes = [node(operator, "input c", "m", broadcast=1, axis=1), node("Flatten", "m", "output")]
    file = save_graph(
        tmp_path / "net.onnx", nodes, {"c": np.float32([1, 2])}, shape=("batch", 2, 2), out=("batch", 4), opset=6
    )
    with pytest.raises(pb.PolyboundError, match=r"the_m.*'axis'"):
        read_onnx(file)


def test_loops_branches_and_foreign_operators_are_refused(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Identity", ["h"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    branch = helper.make_node("If", ["yes"], ["output"], name="a_branch", then_branch=body, else_branch=body)
    file = save_graph(tmp_path / "if.onnx", [linear("W", "h"), branch], {"W": np.float32(W), "yes": np.array(True)})
    with pytest.raises(pb.PolyboundError, match=r"a_branch.*branches"):
        read_onnx(file)
    foreign = helper.make_node("Gelu", ["h"], ["output"], name="a_stranger", domain="com.example")
    opsets = [helper.make_opsetid("com.example", 1)]
    file = save_graph(tmp_path / "foreign.onnx", [linear("W", "h"), foreign], {"W": np.float32(W)}, opsets=opsets)
    with pytest.raises(pb.PolyboundError, match=r"a_stranger.*com\.example"):
        read_onnx(file)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kind": TensorProto.FLOAT16}, "type FLOAT16"),
        ({"shape": ("batch", "width")}, "only its first size"),
        ({"shape": (4,)}, "no batch"),
        ({"shape": ("batch", 2**40)}, "too large"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(options, complaint, tmp_path):
    file = save_graph(tmp_path / "net.onnx", [node("Identity", "input", "output")], **options)
    with pytest.raises(pb.PolyboundError, match=complaint):
        read_onnx(file)


def test_constants_in_an_ncps_maps_have_factors_but_no_model(tmp_path):
    nodes = [
        linear("W", "h"),
        linear("V", "g", bias="b"),
        node("Mul", "g h", "p"),
        linear("S", "s", "p", "b"),
        node("Mul", "g s", "output"),
    ]
    file = save_graph(tmp_path / "net.onnx", nodes, MATRICES)
    with pytest.raises(pb.PolyboundError, match=r"the_p.*constant"):
        from_onnx(file)
    x = torch.randn(20, 4)
    factors = read_onnx(file).factors
    assert off(factors(x.double()), run(file, x)) < 1e-5
    label = factors(x.double()).argmax(1)
    assert pb.certify(factors, x, label, 1e-4, domain=None).count("verified") > 15


def test_many_ways_to_write_a_convolution_or_pooling(tmp_path):
    generator = np.random.default_rng(0)
    kernels = {
        f"K{n}": generator.normal(size=size).astype(np.float32) for n, size in enumerate([(4, 1, 3, 3), (4, 2, 2, 3)])
    }
    nodes = [
        node("Conv", "input K0", "c", group=2, strides=[2, 1], pads=[1, 0, 0, 1], kernel_shape=[3, 3]),
        node("Conv", "input K1", "d", dilations=[2, 1], strides=[2, 1], pads=[1, 0, 0, 1]),
        node("Mul", "c d", "p"),
        node("AveragePool", "p", "q", kernel_shape=[2, 3], pads=[1, 0, 0, 1], count_include_pad=1, strides=[1, 2]),
        node("Flatten", "q", "output"),
    ]
    file = save_graph(tmp_path / "net.onnx", nodes, kernels, shape=(1, 2, 6, 7), out=(1, "many"))
    x = torch.randn(1, 2, 6, 7)
    assert off(from_onnx(file).double()(x.double()), run(file, x)) < 1e-5


def test_images_that_are_reshaped_on_the_way_are_no_conv_ccp(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {f"K{n}": rng.normal(size=(2, 1, 3, 3)).astype(np.float32) for n in range(2)}
    tensors |= {
        "Q": rng.normal(size=(3, 72)).astype(np.float32),
        "wide": np.array([0, 1, 4, 9]),
        "b": np.ones(2, np.float32),
    }
    nodes = [
        node("Reshape", "input wide", "i"),
        node("Conv", "i K0", "g", pads=[1, 1, 1, 1]),
        node("Conv", "i K1 b", "h", pads=[1, 1, 1, 1]),
        node("Mul", "h g", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f Q", "output", transB=1),
    ]
    file = save_graph(tmp_path / "net.onnx", nodes, tensors, shape=("batch", 1, 6, 6))
    model, x = from_onnx(file), torch.randn(5, 1, 6, 6)
    assert isinstance(model, pb.CCP) and off(model(x), run(file, x)) < 1e-5
    unreshaped = save_graph(
        tmp_path / "conv.onnx", [node("Identity", "input", "i"), *nodes[1:]], tensors, shape=("batch", 1, 6, 6)
    )
    assert isinstance(from_onnx(unreshaped), pb.ConvCCP)


def test_unused_nodes_do_no_harm(tmp_path):
    nodes = [linear("W", "output"), node("Relu", "output", "unused")]
    assert from_onnx(save_graph(tmp_path / "net.onnx", nodes, MATRICES)).degree == 1


@pytest.mark.parametrize("content", [b"", b"not a protocol buffer", b"\x08\x08", b"\xff" * 1000])
def test_what_is_no_onnx_is_refused(content, tmp_path):
    file = tmp_path / "net.onnx"
    file.write_bytes(content)
    with pytest.raises(pb.FileFormatError, match=r"net\.onnx: .*ONNX"):
        from_onnx(file)


def test_every_truncation_is_refused(tmp_path):
    [file] = to_onnx(pb.CCP(6, 4, 3, 3, seed=0), tmp_path / "net.onnx")
    content = file.read_bytes()
    for length in range(0, len(content), 37):
        file.write_bytes(content[:length])
        with pytest.raises(pb.PolyboundError) as error:
            from_onnx(file)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "model", [pb.CCP(4, 3, 2, 3, seed=0), pb.ConvCCP((1, 4, 4), 2, 2, 2, 3, pre=3, pool=(1,), seed=0)]
)
def test_damaged_files_are_read_or_refused_in_one_line(model, tmp_path):
    [file] = to_onnx(model, tmp_path / "net.onnx", bounds=False)
    content, rng = file.read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(content)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            damaged[place] ^= 1 << rng.integers(8)
        file.write_bytes(bytes(damaged))
        try:
            from_onnx(file)
        except pb.PolyboundError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_few_nodes_cannot_make_a_huge_polynomial(tmp_path):
    squares = [node("Mul", f"v{n} v{n}", f"v{n + 1}") for n in range(40)]
    nodes = [linear("W", "v0"), *squares, node("Identity", "v40", "output")]
    with pytest.raises(pb.PolyboundError, match=r"the_v10.*degree above"):
        from_onnx(save_graph(tmp_path / "net.onnx", nodes, MATRICES))


def test_few_numbers_cannot_make_a_huge_constant(tmp_path):
    nodes = [node("Expand", "one big", "e"), linear("W", "h"), node("Add", "h e", "output")]
    tensors = MATRICES | {"one": np.float32([1]), "big": np.array([2**20, 2**20])}
    with pytest.raises(pb.PolyboundError, match=r"the_e.*too large"):
        from_onnx(save_graph(tmp_path / "net.onnx", nodes, tensors))


def test_other_files_are_not_opened(tmp_path):
    [file] = to_onnx(pb.CCP(6, 4, 3, 3, seed=0), tmp_path / "net.onnx", bounds=False)
    with pytest.raises(pb.FileFormatError, match="another file"):
        from_onnx(external(file))


def test_tensors_that_claim_too_much_are_refused(tmp_path):
    [file] = to_onnx(pb.CCP(6, 4, 3, 3, seed=0), tmp_path / "net.onnx", bounds=False)
    proto = onnx.load(file)
    proto.graph.initializer[0].dims[0] = 2**40
    file.write_bytes(proto.SerializeToString())
    with pytest.raises(pb.PolyboundError):
        from_onnx(file)


def test_infinite_weights_are_refused(tmp_path):
    model = pb.CCP(6, 4, 3, 3, seed=0)
    with torch.no_grad():
        model.V[0, 0, 0] = torch.inf
    [file] = to_onnx(model, tmp_path / "net.onnx", bounds=False)
    with pytest.raises(pb.PolyboundError, match="finite"):
        from_onnx(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"net\.onnx"):
        from_onnx(tmp_path / "net.onnx")
