"""ONNX files are read as the polynomial they are, whoever wrote them; what is none is refused by the node's name."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import polybound as pb
from helpers.errors import refuses
from helpers.graphs import graphs
from helpers.networks import ccps, convs, ncps
from helpers.onnx_graphs import BY_HAND, export, nodes_of, off, run, same_after_a_round_trip, save_graph
from helpers.onnx_random import judged
from helpers.profiles import examples
from polybound.deploy import OnnxMetadata, from_onnx, read_onnx, to_onnx
from polybound.models import Builder, GraphNetwork


@settings(max_examples=examples(40), deadline=None)
@given(model=st.one_of(ccps(), ncps(), convs()))
def test_round_trips_are_the_same_polynomial(model, tmp_path_factory):
    [file] = to_onnx(model, tmp_path_factory.mktemp("onnx") / "net.onnx", bounds=False)
    again = from_onnx(file)
    x = torch.randn(1000, model.features, dtype=torch.float64)
    wanted = model(x)
    assert type(again) is type(model)
    assert bool(((again(x) - wanted).abs() <= 1e-6 * wanted.abs().amax(0).clamp_min(1e-300)).all())
    assert off(read_onnx(file).graph.chain()(x), wanted) < 1e-12


@pytest.mark.parametrize(
    "model",
    [
        pb.CCP(6, 4, 3, 3, seed=0, shape=(2, 3)),
        pb.CCP(6, 4, 3, 3, "product", seed=0),
        pb.NCP(6, 4, 3, 4, seed=0),
        pb.ConvCCP((2, 6, 5), 3, 4, 3, 3, pre=5, pool=(1, 3), seed=0),
        pb.ConvCCP((2, 6, 5), 3, 4, 1, 3, pool=(1,), seed=0),
        pb.example("pn-4"),
    ],
)
def test_round_trips_keep_class_config_type_and_weights(model, tmp_path):
    [file] = to_onnx(model, tmp_path / "net.onnx", bounds=False)
    again = from_onnx(file)
    assert pb.models.weights_digest(again) == pb.models.weights_digest(model)
    assert next(again.parameters()).dtype == next(model.parameters()).dtype


def test_nothing_but_the_graph_is_believed(tmp_path):
    def lie(proto, _):
        for entry in proto.metadata_props:
            entry.value = entry.value.replace('"CCP"', '"NCP"').replace("4", "5")

    file = changed_file(tmp_path, lie)
    again, x = from_onnx(file), torch.randn(50, 6)
    assert off(again(x), run(file, x)) < 1e-5


# The newer exporter takes seconds for each: one dense network and one of convolutions.
@pytest.mark.parametrize(
    ("name", "dynamo"),
    [
        *((name, False) for name in BY_HAND),
        *(pytest.param(n, True, marks=pytest.mark.slow) for n in ["nested", "convolutions"]),
    ],
)
def test_networks_in_plain_torch(name, dynamo, tmp_path):
    torch.manual_seed(0)
    kind, rank, make = BY_HAND[name]
    network = make()
    file = export(network, tmp_path / "net.onnx", torch.randn(3, 1, 4, 4), dynamo)
    model, x = from_onnx(file), torch.randn(1000, 1, 4, 4, dtype=torch.float64)
    assert type(model) is kind and model.config().get("rank") == rank
    assert off(model.double()(x), network.double()(x)) < 1e-12
    assert off(read_onnx(file).graph.chain()(x.flatten(1)), network(x)) < 1e-12


def test_random_graphs_are_refused_or_read_as_what_onnxruntime_computes(tmp_path):
    found = [judged(seed, tmp_path / "net.onnx") for seed in range(200)]
    kinds = Counter(kind for kind, _ in found)
    assert kinds["chain"] > 90 and kinds["deep"] > 20 and kinds["refused"] > 20, kinds
    assert sum(kind == "chain" and degree > 2 for kind, degree in found) > 5


W, B = np.arange(12).reshape(3, 4) / 7 - 0.8, np.array([0.5, -1.0, 2.0])
MATRICES = {name: np.float32(value) for name, value in {"W": W, "V": W[::-1] + 0.1, "S": W[:, :3], "b": B}.items()}
H = "h = Gemm input W transB=1; "
G = "g = Gemm input V transB=1; "
OUT = "; f = Flatten m; output = Gemm f W16 transB=1"
SQUARES = "p = Mul h g; q = Mul h h; r = Gemm p S transB=1; s = Gemm q S transB=1; output = Mul r s"
ADDED = "s = Shape input; t = Mul s two; u = Slice t zero one zero; r = Reshape input u; output = Gemm r W transB=1"
MOVED = "r = Transpose input perm=[1,0]"
SQUARED = "".join(f"{b} = Mul {a} {a}; " for a, b in pairwise("hacdeijklmnABCDEFGHIJKL"))
REFUSED = {
    "Relu": (H + "output = Relu h", "the_output.*piecewise"),
    "MaxPool": ("i = Reshape input image; m = MaxPool i kernel_shape=[1]" + OUT, "the_m.*piecewise"),
    "Softmax": (H + "output = Softmax h", "the_output.*not a polynomial"),
    "division": (H + G + "output = Div h g", "the_output.*divides by"),
    "batch in a reshape": ("i = Reshape input pairs; output = Gemm i S2 transB=1", "the_i.*batch apart"),
    "part of the batch": (H + "output = Slice h zero one zero", "the_output.*batch"),
    "batch as a number": (ADDED, "the_t.*size of the batch"),
    "batch of a number": (
        "r = Reshape input fixed; output = Gemm r W transB=1",
        "the_r.*batch of one would be read|the_r.*do not fit",
    ),
    "transposed batch": (H + "output = Transpose h perm=[1,0]", "the_output.*batch"),
    "more dimensions": (H + "m = Mul h three; output = Flatten m", "the_m.*batch from the front"),
    "squeezed batch": (H + "output = Squeeze h", "the_output.*batch"),
    "reshape to a batch of one": ("r = Reshape input single; output = Gemm r W transB=1", "the_r.*batch"),
    "nothing left": (H + "output = Slice h two one one", "the_output.*nothing"),
    "index out of range": (H + "output = Gather h four axis=1", "the_output.*size 3"),
    "power": (H + "output = Pow h half", "the_output.*are read"),
    "axes of the input": (H + "output = Unsqueeze one h", "the_output.*depends on the input"),
    "constant output": ("output = Identity W", "does not depend"),
    "a polynomial of a huge degree": (H + SQUARED + "output = Neg L", "degree 2,097,152 at node 'the_.*'"),
    "a mean over the batch": (H + "output = ReduceMean h axes=[0]", "across the batch in node .the_output"),
    "an empty constant": (H + "e = Slice empty zero one zero; output = Concat h e axis=1", "the_e.*nothing is left"),
    "types that differ": ("output = Add input wide", "the_output.*DOUBLE and FLOAT"),
    "more repeats than dimensions": (H + "output = Tile h image", "the_output.*3 repeats"),
    "a product that is too large": (H + "e = Tile h tall; f = Tile h wide_; output = Mul e f", "too large"),
    "statistics that are computed": (H + "output = LayerNormalization h b", "the_output.*statistic"),
    "random": (H + "output = Dropout h half yes", "the_output.*random"),
    "a huge constant": (H + "e = Expand tiny big; output = Add h e", "the_e.*too large"),
}
SIZES = {"zero": [0], "one": [1], "two": [2], "four": [4], "big": [2**20, 2**20], "image": [0, 1, 4]}
SIZES |= {"tall": [1, 2**30], "wide_": [1, 2**40]}
SIZES |= {"square": [0, 2, 2], "pairs": [-1, 2], "fixed": [5, 4], "single": [1, 4]}
NUMBERS = {name: np.array(sizes) for name, sizes in SIZES.items()} | {
    **{"three": np.ones((1, 1, 3), np.float32), "half": np.float32(0.5), "tiny": np.float32([1])},
    **{"empty": np.ones((0, 2), np.float32), "wide": np.ones(4), "yes": np.array(True)},
    **{"S2": np.ones((3, 2), np.float32), "W16": np.ones((3, 16), np.float32)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_graphs_that_do_not_fit_are_refused_by_the_nodes_name(name, tmp_path):
    nodes, complaint = REFUSED[name]
    file = save_graph(tmp_path / "net.onnx", nodes, MATRICES | NUMBERS, opset=13 + 4 * ("Layer" in nodes))
    refuses(complaint, read_onnx, file)


@pytest.mark.parametrize("operator", ["Add", "Mul", "Sub", "Div"])
def test_attributes_of_old_opsets_are_refused_by_name(operator, tmp_path):
    nodes, tensors = f"m = {operator} input c broadcast=1 axis=1; output = Flatten m", {"c": np.float32([1, 2])}
    file = save_graph(tmp_path / "net.onnx", nodes, tensors, shape=("batch", 2, 2), out=("batch", 4), opset=6)
    refuses(r"the_m.*'axis'", read_onnx, file)


def test_loops_branches_and_foreign_operators_are_refused(tmp_path):
    inner = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Identity", ["h"], ["inner"])], "body", [], [inner])
    branch = helper.make_node("If", ["yes"], ["output"], name="a_branch", then_branch=body, else_branch=body)
    foreign = helper.make_node("Gelu", ["h"], ["output"], name="a_stranger", domain="com.example")
    opsets = [helper.make_opsetid("com.example", 1)]
    for last, complaint in ((branch, r"a_branch.*branches"), (foreign, r"a_stranger.*com\.example")):
        nodes, tensors = [*nodes_of(H.rstrip("; ")), last], {"W": np.float32(W), "yes": np.array(True)}
        refuses(complaint, read_onnx, save_graph(tmp_path / "net.onnx", nodes, tensors, opsets=opsets))


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
    file = save_graph(tmp_path / "net.onnx", "output = Identity input", **options)
    refuses(complaint, read_onnx, file)


def test_chains_that_are_no_class_of_the_package_are_networks_of_their_graph(tmp_path):
    # Like an NCP, but with constants in the maps of the input.
    nodes = H + "g = Gemm input V b transB=1; p = Mul g h; s = Gemm p S b transB=1; output = Mul g s"
    file = save_graph(tmp_path / "net.onnx", nodes, MATRICES)
    model, x = from_onnx(file), torch.randn(20, 4)
    assert isinstance(model, GraphNetwork)
    factors = read_onnx(file).graph.chain()
    assert factors.kind == "NCP" and off(factors(x.double()), run(file, x)) < 1e-5
    label = factors(x.double()).argmax(1)
    for network in (factors, model):
        assert pb.certify(network, x, label, 1e-4, domain=None).count("verified") > 15


DEEP = {
    # what no class of the package is, with its degree and whether it is a chain of products
    "unrelated depths": (H + G + SQUARES, 4, False),
    "unrelated degrees": (H + G + "p = Mul h h; output = Add p g", 2, False),
    "a matrix of the input": ("i = Reshape input square; m = MatMul i i; output = Flatten m", 2, True),
    "an outer product": ("u = Unsqueeze input one; v = Unsqueeze input two; m = Mul u v; output = Flatten m", 2, True),
    "the batch not in front": (MOVED + "; m = Mul r r; q = Add m r; output = Transpose q perm=[1,0]", 2, True),
    "normalised": (
        "i = Reshape input image; k = Conv i K pads=[1,1]; m = BatchNormalization k b3 b3 b3 v3 epsilon=0.5;"
        "q = Pow m two; s = Sum q k; output = ReduceMean s axes=[2] keepdims=0",
        2,
        False,
    ),
    "a transposed convolution": (
        "i = Reshape input image; c = ConvTranspose i T strides=[2] pads=[1,0] output_padding=[1]; q = Mul c c;"
        "p = AveragePool q kernel_shape=[3] strides=[2] pads=[1,1]; d = Concat p c axis=2; output = Flatten d",
        2,
        False,
    ),
}
DEEP_NUMBERS = {
    **{"K": np.float32(W[:, None, :3]), "T": np.float32(W[:1, None, :3]), "b3": np.float32([0.5, -1, 2])},
    **{"v3": np.float32([1, 2, 3]), "two": np.float32(2)},
}


@pytest.mark.parametrize("name", DEEP)
def test_any_graph_is_read(name, tmp_path):
    nodes, degree, is_chain = DEEP[name]
    numbers = MATRICES | NUMBERS | ({} if "Unsqueeze" in nodes else DEEP_NUMBERS)
    file = save_graph(tmp_path / "net.onnx", nodes, numbers, out=("batch", "many"))
    network, x = read_onnx(file), torch.randn(20, 4)
    wanted = run(file, x)
    assert (network.graph.chain() is not None) == is_chain and network.graph.degree == degree
    assert off(network.graph(x.double()), wanted) < 1e-5
    model = from_onnx(file).double()
    assert off(model(x.double()), wanted) < 1e-5
    assert pb.certify(model, x, model(x.double()).argmax(1), 1e-5, domain=None).count("verified") > 10
    if is_chain:
        assert off(network.graph.chain()(x.double()), wanted) < 1e-5
    else:
        assert isinstance(model, GraphNetwork) and pb.bounds(model)


def test_images_that_are_reshaped_on_the_way_are_no_conv_ccp(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {f"K{n}": rng.normal(size=(2, 1, 3, 3)).astype(np.float32) for n in range(2)}
    tensors |= {"Q": rng.normal(size=(3, 72)).astype(np.float32), "b": np.ones(2, np.float32)}
    rest = (
        "; g = Conv i K0 pads=[1,1,1,1]; h = Conv i K1 b pads=[1,1,1,1];"
        "p = Mul h g; f = Flatten p; output = Gemm f Q transB=1"
    )
    for first, kind in (("i = Reshape input wide", pb.CCP), ("i = Identity input", pb.ConvCCP)):
        given = tensors | {"wide": np.array([0, 1, 4, 9])}
        file = save_graph(tmp_path / "net.onnx", first + rest, given, shape=("batch", 1, 6, 6))
        model, x = from_onnx(file), torch.randn(5, 1, 6, 6)
        assert isinstance(model, kind) and off(model(x), run(file, x)) < 1e-5


def test_weights_may_be_larger_than_tensors_of_inputs(tmp_path):
    weight = np.random.default_rng(0).normal(size=(1100, 2000)).astype(np.float32)
    nodes = "T = Transpose W; V = Concat T T axis=1; output = Gemm input V transB=1"
    file = save_graph(tmp_path / "net.onnx", nodes, {"W": weight.T.copy()}, shape=("batch", 4000), out=("batch", 1100))
    x = torch.randn(3, 4000)
    assert off(read_onnx(file).graph(x.double()), run(file, x)) < 1e-5


def test_unused_nodes_do_no_harm(tmp_path):
    nodes = "output = Gemm input W transB=1; unused = Relu output"
    assert from_onnx(save_graph(tmp_path / "net.onnx", nodes, MATRICES)).degree == 1


@pytest.mark.parametrize("content", [b"", b"not a protocol buffer", b"\x08\x08", b"\xff" * 1000])
def test_what_is_no_onnx_is_refused(content, tmp_path):
    file = tmp_path / "net.onnx"
    file.write_bytes(content)
    refuses(r"net\.onnx: .*ONNX", from_onnx, file, error=pb.FileFormatError)


@pytest.mark.parametrize(
    "model", [pb.CCP(4, 3, 2, 3, seed=0), pb.ConvCCP((1, 4, 4), 2, 2, 2, 3, pre=3, pool=(1,), seed=0)]
)
def test_damaged_files_are_read_or_refused_in_one_line(model, tmp_path):
    [file] = to_onnx(model, tmp_path / "net.onnx", bounds=False)
    content, rng = file.read_bytes(), np.random.default_rng(0)
    for length in range(0, len(content), 37):
        file.write_bytes(content[:length])
        refuses("", from_onnx, file)
    for _ in range(300):
        damaged = bytearray(content)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            damaged[place] ^= 1 << rng.integers(8)
        file.write_bytes(bytes(damaged))
        try:
            from_onnx(file)
        except pb.PolyboundError as error:
            assert "\n" not in str(error)  # noqa: PT017


def changed_file(tmp_path, change):
    """An exported network whose protobuf was changed."""
    [file] = to_onnx(pb.CCP(6, 4, 3, 3, seed=0), tmp_path / "net.onnx", bounds=False)
    proto = onnx.load(file)
    change(proto, proto.graph.initializer[0])
    file.write_bytes(proto.SerializeToString())
    return file


def in_another_file(_, tensor):
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"


BAD = {
    "in another file": (in_another_file, "another file"),
    "infinite": (lambda _, tensor: setattr(tensor, "raw_data", b"\0\0\x80\x7f" + tensor.raw_data[4:]), "finite"),
    "claims too much": (lambda _, tensor: tensor.dims.__setitem__(0, 2**40), None),
}


@pytest.mark.parametrize(("change", "complaint"), BAD.values(), ids=BAD)
def test_bad_tensors_are_refused(change, complaint, tmp_path):
    refuses(complaint, from_onnx, changed_file(tmp_path, change))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"net\.onnx"):
        from_onnx(tmp_path / "net.onnx")


VARIANTS = {
    "residual": lambda: pb.CCP(12, 5, 3, 3, seed=0),
    "product": lambda: pb.CCP(12, 5, 3, 3, "product", seed=0, shape=(3, 4)),
    "degree 1": lambda: pb.CCP(12, 5, 3, 1, seed=0),
    "degree 30": lambda: pb.CCP(12, 5, 3, 30, seed=0),
    "nested": lambda: pb.NCP(12, 5, 3, 3, seed=0, shape=(3, 4)),
    "nested, degree 1": lambda: pb.NCP(12, 5, 3, 1, seed=0),
    "conv 1d": lambda: pb.ConvCCP((2, 9), 3, 4, 3, 3, pool=(1, 3), seed=0),
    "conv 2d": lambda: pb.ConvCCP((3, 7, 6), 2, 4, 3, 5, seed=0),
    "conv 3d": lambda: pb.ConvCCP((1, 5, 6, 4), 2, 3, 2, 3, pre=3, pool=(2,), seed=0),
    "conv, degree 1": lambda: pb.ConvCCP((2, 6, 6), 3, 4, 1, 3, pool=(1,), seed=0),
    "one of all": lambda: pb.CCP(1, 1, 1, 1, seed=0),
    "doubles": lambda: pb.CCP(6, 4, 3, 3, seed=0, dtype=torch.float64),
    "pn-4 trained": lambda: pb.example("pn-4"),
    "pn-4 trained, bound 1": lambda: pb.example("pn-4-bound-1"),
} | {name: lambda name=name: pb.paper_model(name, seed=0) for name in pb.models.PAPER_MODELS}


@pytest.mark.parametrize("name", VARIANTS)
def test_plain_graphs_compute_what_torch_does(name, tmp_path):
    model = VARIANTS[name]()
    [file] = to_onnx(model, tmp_path / "net.onnx", bounds=False)
    generator, dtype = torch.Generator().manual_seed(0), next(model.parameters()).dtype
    for batch in (1, 2, 7, 64):
        x = torch.rand(batch, *model.shape, generator=generator, dtype=dtype) * 2 - 1
        assert off(run(file, x), model(x)) < (1e-12 if dtype == torch.float64 else 1e-5)
    used = {node.op_type for node in onnx.load(file).graph.node}
    assert used <= {"Gemm", "Conv", "Mul", "AveragePool", "Flatten"}


def test_stacks_are_written_run_by_run(tmp_path):
    stack = pb.NCP(6, 4, 3, 3, runs=3, seed=0)
    files = to_onnx(stack, tmp_path / "net.onnx", bounds=False)
    assert [file.name for file in files] == ["net-0.onnx", "net-1.onnx", "net-2.onnx"]
    x = torch.randn(7, 6)
    for e, file in enumerate(files):
        assert off(run(file, x), stack(x)[e]) < 1e-5
    [only] = to_onnx(stack.run(1), tmp_path / "only.onnx", bounds=False)
    assert only.read_bytes() == files[1].read_bytes()


def test_metadata(tmp_path):
    model = pb.CCP(6, 4, 3, 3, seed=0)
    names = ("é", 'quo"te', "c")
    [file] = to_onnx(model, tmp_path / "net.onnx", class_names=names, domain=(-2.0, 1.0), scaling=(2 / 255, -1.0))
    entries = {entry.key: json.loads(entry.value) for entry in onnx.load(file).metadata_props}
    assert entries["class_names"] == list(names) and entries["domain"] == [-2.0, 1.0]
    assert entries["scaling"] == {"factor": 2 / 255, "offset": -1.0}
    assert entries["polybound"]["kind"] == "CCP" and entries["polybound"]["config"] == model.config()
    proven = pb.lipschitz(model, torch.inf, "rowwise", radius=2.0)
    [row] = [row for row in entries["bounds"] if row["name"] == proven.name]
    assert row["value"] == float(proven) and row["assumptions"] == ["||x||_inf <= 2"]
    read = pb.deploy.read_onnx(file).metadata
    assert read.class_names == names and read.domain == (-2.0, 1.0) and read.scaling == (2 / 255, -1.0)
    assert len(read.bounds) == 3


def test_other_peoples_metadata_are_left_alone():
    proto = onnx.ModelProto()
    onnx.helper.set_model_props(proto, {"domain": "www.example.org", "bounds": "many"})
    assert OnnxMetadata.read(proto) == OnnxMetadata()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"path": "net.txt"}, "ends in .onnx"),
        ({"path": "no/such/net.onnx"}, "no such folder"),
        ({"class_names": ["a"]}, "1 class names for 3 classes"),
        ({"domain": (1.0, -1.0)}, "domain"),
        ({"domain": (float("nan"), 1.0)}, "domain"),
        ({"scaling": (float("inf"), 0.0)}, "scaling"),
        ({"dtype": torch.bfloat16}, "float32 and float64"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, options, complaint):
    given = dict(options)
    path, model = tmp_path / given.pop("path", "net.onnx"), pb.CCP(6, 4, 3, 3, dtype=given.pop("dtype", None))
    refuses(complaint, to_onnx, model, path, **given)
    assert not list(tmp_path.iterdir())


@given(graphs(most=12, dtype=torch.float32))
def test_random_graphs_are_written_and_read_as_what_they_compute(tmp_path_factory, graph):
    same_after_a_round_trip(graph, tmp_path_factory.mktemp("onnx") / "net.onnx")


def test_a_polynet_has_any_batch(tmp_path):
    network = pb.PolyNet((1, 8, 8), 3, width=2, blocks=(1, 1), seed=0).eval()
    [file] = to_onnx(network, tmp_path / "net.onnx", class_names=["a", "b", "c"])
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    again = pb.deploy.from_onnx(file)
    for batch in (1, 5):
        x = torch.rand(batch, 1, 8, 8)
        [logits] = session.run(None, {"input": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), network(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(again.double()(x.double()), network(x).double(), rtol=1e-4, atol=1e-5)


def test_images_stay_images_and_shared_maps_are_written_once(tmp_path):
    network = pb.PolyNet((1, 8, 8), 3, width=2, blocks=(1, 1), seed=0).eval()
    [file] = to_onnx(network, tmp_path / "net.onnx")
    operators = [node.op_type for node in onnx.load(file).graph.node]
    assert operators.count("Conv") == sum(isinstance(part, torch.nn.Conv2d) for part in network.modules())
    assert operators.count("Reshape") <= 2 and "Gather" not in operators


@pytest.mark.parametrize("square", [True, False])
def test_networks_without_weights_are_written(square, tmp_path):
    builder = Builder()
    x = builder.input((2, 2))
    network = GraphNetwork.of(builder.finish(builder.product(x, x) if square else x))
    [file] = to_onnx(network, tmp_path / "net.onnx")
    x = torch.randn(3, 2, 2, dtype=torch.float64)
    wanted = (x**2 if square else x).flatten(1)
    assert torch.equal(pb.deploy.from_onnx(file).double()(x), wanted)
