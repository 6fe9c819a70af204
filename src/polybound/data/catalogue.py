"""The data sets that `load` knows by name: their files, addresses and digests.

All digests are SHA-256. Those of fashion-mnist, mnist and kmnist, of CIFAR-10's binary batches and of NSynth's
shortened test split were computed from the files. Those of EMNIST's zip file, of CIFAR-10's archives and python batches
and of NSynth's archives are the ones that others have published for these addresses.
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits

from polybound.data.cifar import CifarSource, CifarVersion
from polybound.data.content import DataFile
from polybound.data.digits import DigitsSource
from polybound.data.emnist import EmnistSource
from polybound.data.idx import idx_size
from polybound.data.mnist import MnistSource
from polybound.data.nsynth import NSynthSource
from polybound.data.source import Source

__all__ = ["SOURCES"]

_MNIST_COUNTS = {"train": 60000, "test": 10000}


def _mnist_files(bases: tuple[str, ...], digests: dict[str, str]) -> dict[str, dict[str, DataFile]]:
    """The four files of a data set of MNIST's layout."""
    kinds: dict[str, dict[str, DataFile]] = {"images": {}, "labels": {}}
    for split, stem in (("train", "train"), ("test", "t10k")):
        for kind, suffix, dims in (("images", "idx3-ubyte", (28, 28)), ("labels", "idx1-ubyte", ())):
            name = f"{stem}-{kind}-{suffix}"
            kinds[kind][split] = DataFile(
                name,
                idx_size((_MNIST_COUNTS[split], *dims)),
                (digests[name],),
                tuple(f"{base}{name}.gz" for base in bases),
                gzipped=True,
            )
    return kinds


_FASHION = MnistSource(
    name="fashion-mnist",
    title="pictures of clothes, grey",
    shape=(1, 28, 28),
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    counts=_MNIST_COUNTS,
    licence="MIT",
    home="https://github.com/zalandoresearch/fashion-mnist",
    folders=("fashion-mnist",),
    **_mnist_files(
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        {
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
    ),
)

_MNIST = MnistSource(
    name="mnist",
    title="handwritten digits, grey",
    shape=(1, 28, 28),
    class_names=tuple(digits),
    counts=_MNIST_COUNTS,
    licence="none stated",
    home="http://yann.lecun.com/exdb/mnist/",
    folders=("mnist",),
    # The original address answers no more; these are the copies of the CVD Foundation and of PyTorch.
    **_mnist_files(
        ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        {
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ),
)

_KMNIST = MnistSource(
    name="kmnist",
    title="cursive Japanese characters, grey",
    shape=(1, 28, 28),
    class_names=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    counts=_MNIST_COUNTS,
    licence="CC BY-SA 4.0",
    home="http://codh.rois.ac.jp/kmnist/",
    folders=("kmnist",),
    **_mnist_files(
        ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"),
        {
            "train-images-idx3-ubyte": "7112ba9ec422d98de4885262d4a4dff14cc4fefb81c11ace8bf563a8255df5c3",
            "train-labels-idx1-ubyte": "2a16eeae62da984b8bd24fa32e31d47291f01dac3fe84d5594f304f71e7d374b",
            "t10k-images-idx3-ubyte": "76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
            "t10k-labels-idx1-ubyte": "a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
        },
    ),
)

_EMNIST_ZIP = DataFile(
    "gzip.zip",
    561753746,
    ("fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",),
    (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    ),
)


def _emnist(part: str, title: str, class_names: str, counts: dict[str, int], first_label: int) -> EmnistSource:
    return EmnistSource(
        name=f"emnist-{part}",
        title=title,
        shape=(1, 28, 28),
        class_names=tuple(class_names),
        counts=counts,
        licence="none stated",
        home="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        folders=("emnist", f"emnist-{part}"),  # one zip file for both parts
        part=part,
        first_label=first_label,
        archive=_EMNIST_ZIP,
    )


def _batches(suffix: str, size: int, exact: bool, digests: tuple[str, ...]) -> dict[str, tuple[DataFile, ...]]:
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    files = [
        DataFile(f"{name}{suffix}", size, (digest,), exact=exact) for name, digest in zip(names, digests, strict=True)
    ]
    return {"train": tuple(files[:5]), "test": tuple(files[5:])}


_CIFAR10 = CifarSource(
    name="cifar10",
    title="small photographs, coloured",
    shape=(3, 32, 32),
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    counts={"train": 50000, "test": 10000},
    licence="none stated",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    folders=("cifar10", ""),
    versions=(
        CifarVersion(
            "cifar-10-batches-bin",
            DataFile(
                "cifar-10-binary.tar.gz",
                170052171,
                ("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            ),
            _batches(
                ".bin",
                10000 * 3073,
                True,
                (
                    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
                ),
            ),
            pickled=False,
        ),
        CifarVersion(
            "cifar-10-batches-py",
            DataFile(
                "cifar-10-python.tar.gz",
                170498071,
                ("6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",),
                ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            ),
            _batches(
                "",
                31500000,
                False,
                (
                    "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
                    "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
                    "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
                    "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
                    "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
                    "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
                ),
            ),
            pickled=True,
        ),
    ),
)


def _nsynth_file(part: str, size: int, *digests: str) -> DataFile:
    name = f"nsynth-{part}.jsonwav.tar.gz"
    # The second address is the one that NSynth's page gives; it has no TLS.
    hosts = ("https://storage.googleapis.com/download.magenta.tensorflow.org", "http://download.magenta.tensorflow.org")
    urls = tuple(f"{host}/datasets/nsynth/{name}" for host in hosts)
    return DataFile(name, size, digests, urls, exact=len(digests) == 1)


_NSYNTH = NSynthSource(
    name="nsynth",
    title="musical notes as spectrograms",
    shape=(1, 32, 32),
    class_names=(
        "bass",
        "brass",
        "flute",
        "guitar",
        "keyboard",
        "mallet",
        "organ",
        "reed",
        "string",
        "synth_lead",
        "vocal",
    ),
    counts={"train": 289205, "validation": 12678, "test": 4096},
    licence="CC BY 4.0",
    home="https://magenta.tensorflow.org/datasets/nsynth",
    folders=("nsynth",),
    archives={
        "train": _nsynth_file("train", 23815298079, "15c5100fc40c3a262f9b42707c15ffed30b8fec58c0d9b88d4136f6cb1fddefe"),
        "validation": _nsynth_file(
            "valid", 1068767009, "00dea2645fbe0069258567da30807a90825e0bab54c077d6481f253096c4e2a0"
        ),
        "test": _nsynth_file(
            "test",
            349501546,
            "0f9ba5d62beba9ec4612f918d19f5e87a681822f1c566124f05fe8b27a51934c",
            # The same notes cut to their first second and at 8 kHz, which is all that the spectrograms look at.
            "8e7c4e79583dd9dfb4fc8bb8a0c15a61c5fec545dfeb560fbb8ed786a63e7532",
        ),
    },
)

_DIGITS = DigitsSource(
    name="digits",
    title="handwritten digits, grey; built in",
    shape=(1, 8, 8),
    class_names=tuple(digits),
    counts={"train": 1437, "test": 360},
    licence="CC BY 4.0",
    home="https://archive.ics.uci.edu/dataset/80",
)

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        _DIGITS,
        _FASHION,
        _MNIST,
        _KMNIST,
        _emnist(
            "letters", "handwritten letters, grey", ascii_uppercase, {"train": 124800, "test": 20800}, first_label=1
        ),
        _emnist(
            "byclass",
            "handwritten digits and letters, grey",
            digits + ascii_uppercase + ascii_lowercase,
            {"train": 697932, "test": 116323},
            first_label=0,
        ),
        _CIFAR10,
        _NSYNTH,
    )
}
