"""Downloads from a server on this machine: whole, cut, swapped, missing; only what is right gets its name."""

import gzip
import threading
from types import SimpleNamespace

import pytest

from helpers.data import put_mnist, serve_mnist, sha, tiny_mnist
from helpers.errors import refuses
from polybound.data import DataFile, MissingDataError, files, load
from polybound.data.files import DownloadError, fetch
from polybound.errors import FileFormatError

CONTENT = bytes(range(256)) * 300


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Between two attempts."""
    monkeypatch.setattr(files, "time", SimpleNamespace(sleep=lambda seconds: None))


@pytest.fixture
def file(server):
    server.files["/big.bin"] = CONTENT
    return DataFile("big.bin", len(CONTENT), (sha(CONTENT),), (f"{server.url}/big.bin",))


def left(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".download.lock")


def test_a_download(tmp_path, server, file):
    fetch(file, tmp_path / "new" / "big.bin")
    assert (tmp_path / "new" / "big.bin").read_bytes() == CONTENT and left(tmp_path / "new") == ["big.bin"]
    fetch(file, tmp_path / "new" / "big.bin")
    assert server.requests == ["/big.bin"]  # it was there
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "new" / "big.bin").stat().st_mode == (tmp_path / "other").stat().st_mode  # as the mask has it


def test_loading_downloads_what_is_missing(root, server, monkeypatch):
    contents = serve_mnist(server, monkeypatch, "/mnist")
    put_mnist(root, {name: content for name, content in contents.items() if "labels" in name})
    assert len(load("tiny", data_dir=root)) == 40
    assert server.requests == ["/mnist/train-images-idx3-ubyte.gz"]
    assert "train-images-idx3-ubyte.gz" in left(root / "tiny")
    assert len(load("tiny", data_dir=root, download=False)) == 40


def test_downloads_go_to_the_cache_if_no_directory_is_given(root, tmp_path, server, monkeypatch):
    serve_mnist(server, monkeypatch)
    load("tiny", "test")
    assert len(left(tmp_path / "cache" / "polybound" / "tiny")) == 2 and not (root / "tiny").exists()


def test_a_cut_connection_is_tried_again(tmp_path, server, file):
    server.cuts, server.cut = 2, 20000
    fetch(file, tmp_path / "big.bin")
    assert (tmp_path / "big.bin").read_bytes() == CONTENT and left(tmp_path) == ["big.bin"]
    assert len(server.requests) == 3


def test_nothing_is_left_of_a_download_that_fails(tmp_path, server, file):
    server.cuts, server.cut = 99, 10000
    refuses("", fetch, file, tmp_path / "big.bin", error=DownloadError)
    assert left(tmp_path) == [] and len(server.requests) == files.ATTEMPTS


def test_wrong_content_is_not_kept(root, server, file, tmp_path, monkeypatch):
    server.files["/big.bin"] = CONTENT[:-1] + b"x"
    target = tmp_path / "downloads"
    refuses(r"http://.*/big\.bin: .*SHA-256 of its content is", fetch, file, target / "big.bin", error=FileFormatError)
    assert left(target) == [] and len(server.requests) == 1  # another attempt would bring the same
    server.files["/big.bin"] = CONTENT * 5
    refuses("more than", fetch, file, target / "big.bin", error=FileFormatError)
    assert left(target) == []
    # The same for gzipped files, whose content counts; here by way of load.
    tiny_mnist(monkeypatch, bases=[server.url])
    for content in (b"<html>log in first</html>", gzip.compress(b"other"), gzip.compress(bytes(99999))):
        server.files["/train-images-idx3-ubyte.gz"] = content
        with pytest.raises(FileFormatError, match=r"train-images-idx3-ubyte\.gz: what it sent is not kept"):
            load("tiny", data_dir=root)
        assert left(root / "tiny") == []


def test_wrong_content_at_one_address_does_not_keep_from_the_next(tmp_path, server, file):
    server.files["/other.bin"] = CONTENT[::-1]
    urls = (f"{server.url}/other.bin", f"{server.url}/big.bin")
    fetch(DataFile("big.bin", file.size, file.sha256, urls), tmp_path / "big.bin")
    assert (tmp_path / "big.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("status", [404, 403, 410, 500, 503])
def test_errors_of_the_server(tmp_path, server, file, status):
    server.status = status
    refuses(str(status), fetch, file, tmp_path / "big.bin", error=DownloadError)
    assert left(tmp_path) == [] and len(server.requests) == (1 if status < 500 else files.ATTEMPTS)


def test_offline_the_line_says_what_to_put_where(root, server, monkeypatch):
    tiny_mnist(monkeypatch, bases=["http://127.0.0.1:9/closed"])
    text = refuses("", load, "tiny", error=MissingDataError, data_dir=root)
    assert "no connection to 127.0.0.1:9" in text and "\n" not in text
    assert text.endswith(f"put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz into {root}/tiny")


def test_a_directory_that_cannot_be_written(root, server, monkeypatch):
    tiny_mnist(monkeypatch, bases=[server.url])
    (root / "tiny").write_bytes(b"a file in the place of the folder")
    refuses(r"tiny: (Not a directory|File exists)", load, "tiny", error=MissingDataError, data_dir=root)


def test_one_download_for_several_at_once(tmp_path, server, file):
    threads = [threading.Thread(target=fetch, args=(file, tmp_path / "big.bin")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 1 and (tmp_path / "big.bin").read_bytes() == CONTENT
