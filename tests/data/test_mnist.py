"""load_mnist: which file, which numbers, which errors."""

from __future__ import annotations

import hashlib
import http.server
import inspect
import os
import runpy
import shutil
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import oneflow.data as data
from oneflow.data import mnist
from oneflow.errors import ArgumentError, OneFlowError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def digits() -> data.mnist.Digits:
    return data.read_mnist()


@pytest.fixture
def fashion(tmp_path: Path, digits) -> Path:
    """A file of the same kind with another checksum."""
    path = tmp_path / "elsewhere" / "mnist.npz"
    path.parent.mkdir()
    np.savez(path, **{**digits._asdict(), "x_test": 255 - digits.x_test})
    return path


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_signature_is_oneflows() -> None:
    parameters = inspect.signature(data.load_mnist).parameters
    assert list(parameters) == ["train_batch_size", "test_batch_size", "data_format", "url", "hash_check", "out_dir"]
    assert [p.default for p in parameters.values()] == [100, 100, "NCHW", None, None, "."]


def test_the_packaged_file_is_the_one_that_is_meant() -> None:
    assert checksum(Path(mnist.PACKAGED)) == mnist.PACKAGED_SHA256


def test_batches(digits, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (train_images, train_labels), (test_images, test_labels) = data.load_mnist(100, 50, out_dir=tmp_path)
    assert capsys.readouterr().out == f"File mnist.npz already exist, path: {mnist.PACKAGED}\n"
    assert train_images.shape == (600, 100, 1, 28, 28) and train_labels.shape == (600, 100)
    assert test_images.shape == (200, 50, 1, 28, 28) and test_labels.shape == (200, 50)
    for images, labels in ((train_images, train_labels), (test_images, test_labels)):
        assert type(images) is type(labels) is data.EpochArray
        assert images.dtype == np.float32 and labels.dtype == np.int32 and images.flags.c_contiguous
    np.testing.assert_array_equal(
        test_images.reshape(-1, 28, 28), digits.x_test.astype(np.float32) / 255
    )  # as x / 255, to the bit
    np.testing.assert_array_equal(test_labels.reshape(-1), digits.y_test)
    np.testing.assert_array_equal(train_labels[0, :5], [5, 0, 4, 1, 9])
    assert train_images.max() == 1 and train_images.min() == 0


def test_other_formats_and_scales(digits) -> None:
    (train_images, _), (test_images, _) = data.mnist_batches(digits, 60000, 10, "NHWC", lambda gray: (gray - 128) / 255)
    assert train_images.shape == (1, 60000, 28, 28, 1) and test_images.shape == (1000, 10, 28, 28, 1)
    expected = (digits.x_test.astype(np.float32) - 128) / 255
    np.testing.assert_array_equal(test_images.reshape(-1, 28, 28), expected)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"train_batch_size": 128}, "train_batch_size=128 does not divide MNIST's 60000 images"),
        ({"test_batch_size": 600}, "use one of 200, 250, 400, 500, 625"),
        ({"train_batch_size": 70000}, "int in [1, 60000], got 70000"),
        ({"train_batch_size": 0}, "int in [1, 60000], got 0"),
        ({"test_batch_size": -100}, "int in [1, 10000], got -100"),
        ({"train_batch_size": 100.0}, "int in [1, 60000], got 100.0"),
        ({"train_batch_size": True}, "int in [1, 60000], got True"),
        ({"data_format": "NCWH"}, '"NCHW" or "NHWC", got \'NCWH\''),
        ({"hash_check": "abc"}, "64 hexadecimal digits, got 'abc'"),
        ({"out_dir": 3}, "out_dir must be"),
        ({"url": 3}, "url must be"),
    ],
)
def test_wrong_arguments(arguments, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        data.load_mnist(**arguments)
    assert says in str(caught.value) and "test_mnist.py" in str(caught.value) and isinstance(caught.value, ValueError)
    assert capsys.readouterr().out == ""


def test_a_file_in_out_dir_is_preferred(
    fashion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(fashion.parent)
    (_, (images, _)) = (None, data.load_mnist(hash_check=checksum(fashion).upper())[1])
    assert capsys.readouterr().out == "File mnist.npz already exist, path: ./mnist.npz\n"
    assert images[0].mean() > 0.5


def test_both_known_files_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(mnist.PACKAGED, tmp_path / "mnist.npz")
    data.read_mnist(out_dir=tmp_path)
    monkeypatch.setattr(mnist, "PACKAGED_SHA256", "0" * 64)
    monkeypatch.setattr(mnist, "ORIGINAL_SHA256", checksum(tmp_path / "mnist.npz"))
    data.read_mnist(out_dir=str(tmp_path))
    assert capsys.readouterr().out == ""


def test_a_file_with_another_checksum_is_refused(fashion: Path) -> None:
    with pytest.raises(mnist.DataError, match="sha256 verification failed, remove .*mnist.npz and try again") as caught:
        data.load_mnist(out_dir=fashion.parent)
    text = str(caught.value)
    assert mnist.ORIGINAL_SHA256 in text and mnist.PACKAGED_SHA256 in text and checksum(fashion) in text
    assert isinstance(caught.value, OneFlowError) and isinstance(caught.value, ValueError)


def test_hash_check_is_strict(tmp_path: Path) -> None:
    shutil.copy(mnist.PACKAGED, tmp_path / "mnist.npz")
    for out_dir in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(mnist.DataError, match="checksum"):
            data.load_mnist(hash_check=mnist.ORIGINAL_SHA256, out_dir=out_dir)
        data.read_mnist(hash_check=mnist.PACKAGED_SHA256, out_dir=out_dir)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an mnist.npz"),
        (b"PK\x03\x04 not a zip", "not an mnist.npz"),
        ({"only": np.zeros(3)}, "not an mnist.npz"),
        ({"x_test": np.zeros((10000, 28, 28))}, "'x_test' has another shape or dtype"),
        ({"y_test": np.zeros((10000,), np.float32)}, "'y_test' has another shape or dtype"),
        ({"x_train": np.zeros((6, 28, 28), np.uint8)}, "'x_train' has another shape or dtype"),
        ({"y_train": np.array([{}], object)}, "not an mnist.npz"),
    ],
)
def test_a_verified_file_of_another_kind(tmp_path: Path, digits, content, says: str) -> None:
    path = tmp_path / "mnist.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **(content if "only" in content else {**digits._asdict(), **content}))
    with pytest.raises(mnist.DataError, match=says):
        data.load_mnist(out_dir=tmp_path, hash_check=checksum(path))


# --- downloads, from this machine


@pytest.fixture
def server(fashion: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(fashion.parent))

        def do_GET(self) -> None:
            if "short" not in self.path:
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)

        def log_message(self, *args) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()


def test_download(server: str, fashion: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    _, (images, _) = data.load_mnist(url=f"{server}/mnist.npz", hash_check=checksum(fashion), out_dir=tmp_path / "out")
    printed = capfd.readouterr()
    assert printed.out == f"File mnist.npz already exist, path: {tmp_path}/out/mnist.npz\n"
    assert "mnist.npz: 100%" in printed.err and images[0].mean() > 0.5
    assert os.listdir(tmp_path / "out") == ["mnist.npz"] and checksum(tmp_path / "out/mnist.npz") == checksum(fashion)
    (tmp_path / "usual").touch()
    assert (tmp_path / "out/mnist.npz").stat().st_mode == (tmp_path / "usual").stat().st_mode
    data.load_mnist(url=f"{server}/missing.npz", hash_check=checksum(fashion), out_dir=tmp_path / "out")  # it is there already


def test_download_of_a_file_url(fashion: Path, tmp_path: Path) -> None:
    data.load_mnist(url=fashion.as_uri(), hash_check=checksum(fashion), out_dir=tmp_path)
    assert (tmp_path / "mnist.npz").read_bytes() == fashion.read_bytes()


def test_a_download_with_another_checksum_leaves_nothing(server: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(mnist.DataError, match="the download is not the requested file") as caught:
        data.load_mnist(url=f"{server}/mnist.npz", out_dir=tmp_path / "out")
    assert f"{server}/mnist.npz" in str(caught.value) and os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("{server}/missing.npz", "cannot download mnist.npz: HTTP Error 404"),
        ("{server}/short", "ended after 10 of 1000 bytes"),
        ("http://127.0.0.1:9/mnist.npz", "cannot download mnist.npz: .*refused"),
        ("nonsense", "unknown url type"),
        ("nonsense://x/mnist.npz", "unknown url type"),
        ("http://", "cannot download mnist.npz"),
        ("file:///nowhere/mnist.npz", "No such file"),
    ],
)
def test_a_download_that_fails_leaves_nothing(server: str, tmp_path: Path, url: str, says: str) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(mnist.DownloadError, match=says) as caught:
        data.load_mnist(url=url.format(server=server), out_dir=tmp_path / "out")
    assert isinstance(caught.value, OSError) and caught.value.__cause__ is not None
    assert "leave url= out to use the MNIST of this package" in str(caught.value) and os.listdir(tmp_path / "out") == []


def test_download_needs_out_dir(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is not a directory"):
        data.load_mnist(url="file:///x", out_dir=tmp_path / "missing")


# --- what the tutorials have beside their scripts


def test_mnist_util_of_the_examples(digits, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    load_data = runpy.run_path(str(EXAMPLES / "mnist_util.py"))["load_data"]
    (train_images, train_labels), (test_images, test_labels) = load_data(100, 1000)
    assert capsys.readouterr().out == ""
    assert train_images.shape == (600, 100, 1, 28, 28) and test_images.shape == (10, 1000, 1, 28, 28)
    assert test_labels.shape == (10, 1000) and {type(a) for a in (train_images, train_labels, test_labels)} == {data.EpochArray}
    expected = (digits.x_test.astype(np.float32) - 128) / 255
    np.testing.assert_array_equal(test_images.reshape(-1, 28, 28), expected)
    assert load_data(data_format="NHWC")[0][0].shape == (600, 100, 28, 28, 1)


def test_9_png_is_a_nine_of_the_test_images(digits) -> None:
    image = pytest.importorskip("PIL.Image")
    with image.open(EXAMPLES / "9.png") as photo:
        assert photo.mode == "L" and photo.size == (28, 28)
        pixels = np.asarray(photo)
    found = np.flatnonzero((digits.x_test == pixels).all((1, 2)))
    assert found.size == 1 and digits.y_test[found[0]] == 9


def test_loading_the_module_needs_no_network_modules() -> None:
    code = "import sys, oneflow.data.mnist; print('urllib.request' in sys.modules, 'tqdm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


@pytest.mark.timeout(30)
def test_files_that_are_no_files_and_headers_that_lie(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mnist.npz")
    with pytest.raises(mnist.DataError, match="MNIST cannot be read: it is a FIFO"):
        data.load_mnist(out_dir=tmp_path)
    path = tmp_path / "huge" / "mnist.npz"
    path.parent.mkdir()
    with open(path, "wb") as file:
        file.truncate(39 << 30)
    with pytest.raises(mnist.DataError, match="longer than 268435456 bytes"):
        data.load_mnist(out_dir=path.parent)
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 28, 28), }\n"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("x_train.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(mnist.DataError, match=r"array 'x_train' has another shape or dtype(.|\n)*\(1099511627776, 28, 28\)"):
        data.read_mnist(out_dir=path.parent, hash_check=checksum(path))
