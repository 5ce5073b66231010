"""Draws docs/images: python scripts/draw_docs.py [NAME ...]. Charts are drawn from the tables of the pages, curves from runs."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]  # this checkout, whether or not it is installed
IMAGES = ROOT / "docs" / "images"
_HOST, _DEVICE, _OURS, _OTHERS, _INK, _FAINT = (
    "#e69f00",
    "#0072b2",
    "#0072b2",
    "#9aa5b1",
    "#1f2933",
    "#cbd2d9",
)  # for all kinds of eyes


class Drawing:
    """An SVG, on a white ground so that it can be read on dark pages, too."""

    def __init__(self, width: int, height: int, title: str):
        self._rows = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
            f' role="img" font-family="system-ui, sans-serif" font-size="14"><title>{title}</title>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, color: str, text: str = "") -> None:
        self._rows.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{color}"/>')
        if text:
            self.text(x + width / 2, y + height / 2 + 5, text, "middle", "#ffffff")

    def text(self, x: float, y: float, text: str, anchor: str = "start", color: str = _INK, size: int = 14) -> None:
        self._rows.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}" font-size="{size}">{text}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self._rows.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{_FAINT}"/>')

    def curve(self, points: list[tuple[float, float]], color: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._rows.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>')

    def __str__(self) -> str:
        return "\n".join([*self._rows, "</svg>"]) + "\n"


def table(section: str, page: str = "benchmarks.md") -> dict[str, float]:
    """The medians of a section of a page by contender."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    part = text.partition(f"\n### {section}\n")[2].partition("\n| ratio")[0]
    return {name: float(median) for name, median in re.findall(r"^\| ([^|]+?) \| ([\d.]+) \| [\d.]+ \.\. ", part, re.MULTILINE)}


def timeline() -> Drawing:
    """Synchronous and asynchronous calls, as measured: a program that takes as long for a batch as the device for a step."""
    runs = min((measured_calls() for _ in range(5)), key=lambda runs: sum(run[-1][3] for run in runs))
    made = Drawing(720, 290, "Synchronous and asynchronous calls")
    left, scale = 96.0, 600 / max(run[-1][3] for run in runs)
    for top, title, run in zip(
        (44, 164), ("synchronous: each call waits", "asynchronous: the program goes on"), runs, strict=True
    ):
        made.text(16, top - 16, title, size=15)
        made.text(16, top + 21, "program")
        made.text(16, top + 57, "device")
        for i, (begun, submitted, started, delivered) in enumerate(run):
            made.box(left + begun * scale, top, (submitted - begun) * scale - 2, 30, _HOST, str(i))
            made.box(left + started * scale, top + 36, (delivered - started) * scale - 2, 30, _DEVICE, str(i))
        made.line(left, top + 74, 700, top + 74)
        made.text(700, top + 92, f"{len(run)} steps in {1000 * run[-1][3]:.0f} ms", "end")
    note = "Measured. Orange: a batch is prepared. Blue: from its submission, or the end of the step before, to its result."
    made.text(16, 280, note, size=12)
    return made


def measured_calls(steps: int = 8) -> list[list[tuple[float, float, float, float]]]:
    """Of a synchronous and an asynchronous loop, for each step: preparation begun, submitted, started, result delivered."""
    import numpy as np

    import oneflow as flow
    import oneflow.typing as tp

    flow.clear_default_session()

    @flow.global_function(type="predict")
    def step(x: tp.Numpy.Placeholder((1024, 1024))) -> tp.Numpy:
        for _ in range(6):
            x = flow.matmul(x, x) * 1e-3
        return flow.math.reduce_sum(x)

    x = np.ones((1024, 1024), np.float32)
    step(x)
    began = time.perf_counter()
    for _ in range(3):
        step(x)
    pause = (time.perf_counter() - began) / 3
    runs = []
    for asynchronous in (False, True):
        zero, rows, delivered = time.perf_counter(), [], []
        for _ in range(steps):
            begun = time.perf_counter() - zero
            time.sleep(pause)
            rows.append((begun, time.perf_counter() - zero))
            call = step.submit(x)
            call.async_get(lambda _, zero=zero, delivered=delivered: delivered.append(time.perf_counter() - zero))
            if not asynchronous:
                flow.sync_default_session()
        flow.sync_default_session()
        starts = [max(rows[i][1], delivered[i - 1] if i else 0.0) for i in range(steps)]
        runs.append([(*rows[i], starts[i], delivered[i]) for i in range(steps)])
    return runs


def layouts() -> Drawing:
    """What split and broadcast put on two devices."""
    made = Drawing(720, 210, "split and broadcast")
    for left, title, rows in (
        (16, "the Blob", [(0, 4)]), (190, "split(0)", [(0, 2), (2, 4)]), (400, "broadcast()", [(0, 4), (0, 4)]),
    ):  # fmt: skip
        made.text(left, 30, title, size=15)
        for device, (first, last) in enumerate(rows):
            x = left + device * 96
            for row in range(first, last):
                made.box(x, 46 + row * 28, 80, 24, (_OURS, "#009e73", _HOST, "#cc79a7")[row], f"row {row}")
            if len(rows) > 1:
                made.text(x + 40, 178, f"device {device}", "middle")
    made.text(
        16, 200, "Each device holds its part of the rows, or all of them; values and shapes are those of the whole Blob.", size=13
    )
    return made


def speed() -> Drawing:
    """Milliseconds per step beside the peers."""
    made = Drawing(720, 374, "Milliseconds per training step")
    y = 34
    for section, title in (("MLP 784-512-10, batch 100", "MLP 784-512-10"), ("LeNet, batch 100", "LeNet")):
        rows = table(section)
        made.text(16, y, f"{title}, batch 100: milliseconds per training step, 2 CPU cores (shorter is better)", size=15)
        y += 12
        for name, value in rows.items():
            made.text(250, y + 15, name, "end", size=13)
            made.box(258, y, 380 * value / max(rows.values()), 18, _OURS if name.startswith("ours") else _OTHERS)
            made.text(264 + 380 * value / max(rows.values()), y + 14, f"{value:g}", size=13)
            y += 23
        y += 28
    return made


def peers() -> Drawing:
    """How many times as long as ours each peer takes, from the tables of docs/performance.md."""
    sections = {
        "LeNet": "LeNet, training, batch of 100", "ResNet-50": "ResNet-50, 64 x 64, training, batch of 8",
        "MobileNet-v2": "MobileNet-v2, 64 x 64, training, batch of 8",
        "BERT-small": "BERT-small, 128 tokens, training, batch of 8",
        "MLP": "MLP, training, batch of 100",
    }  # fmt: skip
    colours = {"ours": _OURS, "JAX by hand, best known": _HOST, "PyTorch eager": _OTHERS, "PyTorch torch.compile": "#cc79a7"}
    rows = {name: table(section, "performance.md") for name, section in sections.items()}
    most = max(times[peer] / times["ours"] for times in rows.values() for peer in colours if peer in times)
    made = Drawing(720, 62 + 5 * 96, "Time per training step beside the peers")
    made.text(16, 28, "time per training step, 2 CPU cores, as a multiple of ours (shorter is better)", size=15)
    y = 44
    for name, times in rows.items():
        made.text(16, y + 44, name, size=15)
        for peer, colour in colours.items():
            if peer not in times:
                continue
            width = 300 * times[peer] / times["ours"] / most
            made.text(296, y + 14, peer, "end", size=12)
            made.box(304, y, width, 18, colour)
            made.text(310 + width, y + 14, f"{times[peer] / times['ours']:.2f} ({times[peer]:g} ms)", size=12)
            y += 21
        y += 12
    return made


def plans() -> Drawing:
    """What layouts of one GPT need per device, from the table of plans in docs/devices.md."""
    text = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8").partition("| | working | state |")[2]
    found = re.findall(r"^\| ([\w ,-]+?) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    rows = [(name, float(working), float(state)) for name, working, state in found]
    made = Drawing(720, 76 + 34 * len(rows), "Memory per device by layout")
    made.text(16, 28, "a GPT of 8 layers by job.plan(): MiB per device", size=15)
    most = max(working + state for _, working, state in rows)
    for i, (name, working, state) in enumerate(rows):
        y, width = 44 + 34 * i, 360 * working / most
        made.text(234, y + 17, name, "end", size=13)
        made.box(242, y, width, 24, _DEVICE)
        made.box(242 + width, y, 360 * state / most, 24, _HOST)
        made.text(250 + 360 * (working + state) / most, y + 17, f"{working:g} + {state:g}", size=13)
    y = 52 + 34 * len(rows)
    made.box(212, y, 14, 14, _DEVICE)
    made.text(232, y + 12, "working memory", size=13)
    made.box(352, y, 14, 14, _HOST)
    made.text(372, y + 12, "variables and optimizer state", size=13)
    return made


def curves() -> Drawing:
    """Training and validation loss of an MLP on a part of MNIST, for long enough to overfit; the best epoch is marked."""
    history = overfitted()
    losses, validations = history["loss"], history["val_loss"]
    made = Drawing(720, 300, "Training and validation loss by epoch")
    left, top, width, height = 60, 44, 620, 200
    most = max(losses + validations)

    def at(epoch: int, value: float) -> tuple[float, float]:
        return left + width * epoch / (len(losses) - 1), top + height * (1 - value / most)

    made.text(16, 28, "loss by epoch: 2,000 training images, an MLP without dropout", size=15)
    for share in (0, 0.25, 0.5, 0.75, 1):
        made.line(left, top + height * share, left + width, top + height * share)
        made.text(left - 8, top + height * share + 5, f"{most * (1 - share):.2f}", "end", size=12)
    for values, colour, name in ((losses, _DEVICE, "loss"), (validations, _HOST, "val_loss")):
        made.curve([at(i, value) for i, value in enumerate(values)], colour)
        made.text(left + width - 4, at(len(values) - 1, values[-1])[1] - 8, name, "end", colour)
    best = min(range(len(validations)), key=validations.__getitem__)
    x, y = at(best, validations[best])
    made.box(x - 5, y - 5, 10, 10, _HOST)
    made.text(x, y + 24, f'epoch {best + 1}: what ckpt_path="best" loads', "middle", size=13)
    for epoch in (0, len(losses) // 2, len(losses) - 1):
        made.text(at(epoch, 0)[0], top + height + 22, str(epoch + 1), "middle", size=12)
    made.text(left + width / 2, top + height + 44, "epoch", "middle", size=13)
    return made


def overfitted() -> Any:
    """The history of a training that goes on for too long."""
    import oneflow as flow
    import oneflow.typing as tp

    flow.clear_default_session()
    images, labels = tp.Numpy.Placeholder((100, 1, 28, 28)), tp.Numpy.Placeholder((100,), dtype=flow.int32)

    def network(images: Any) -> Any:
        initializer = flow.xavier_uniform_initializer()
        x = flow.flatten(images, 1)
        x = flow.layers.dense(x, 256, activation=flow.nn.relu, kernel_initializer=initializer, name="hidden")
        return flow.layers.dense(x, 10, kernel_initializer=initializer, name="output")

    @flow.global_function(type="train")
    def train(images: images, labels: labels) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [2e-3])).minimize(loss)
        return loss

    @flow.global_function(type="predict")
    def evaluate(images: images, labels: labels) -> dict[str, tp.Numpy]:
        logits = network(images)
        return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), "logits": logits}

    (x, y), (test_x, test_y) = flow.data.load_mnist(100, 100)
    trainer = flow.Trainer(max_epochs=30, seed=0, enable_progress_bar=False)
    return trainer.fit(train, (x[:20], y[:20]), evaluate, (test_x, test_y))


def lenet() -> None:
    """The graph of examples/train_lenet.py."""
    import oneflow as flow
    import oneflow.typing as tp

    sys.path.insert(0, str(ROOT / "examples"))
    from train_lenet import lenet as network

    @flow.global_function(type="predict")
    def lenet(images: tp.Numpy.Placeholder((100, 1, 28, 28))) -> tp.Numpy:
        return network(images)

    flow.plot_model(lenet, IMAGES / "lenet.svg")


def gallery() -> None:
    """What the example programs look at, for the table in examples/README.md: two rows of images for each."""
    import tempfile

    import numpy as np
    from PIL import Image

    import oneflow as flow

    sys.path.insert(0, str(ROOT / "examples"))
    import train_images_from_folder
    import train_segmentation

    (images, _), _ = flow.data.load_mnist(100)
    digits, rng = images.reshape(-1, 28, 28), np.random.default_rng(3)

    def sheet(name: str, rows: Any) -> None:
        """Rows of images with values up to 255, with white between them."""
        padded = [
            np.concatenate([np.pad(image, ((1, 1), (1, 1), (0, 0)), constant_values=255) for image in row], 1) for row in rows
        ]
        Image.fromarray(np.concatenate(padded, 0).astype(np.uint8)).save(IMAGES / f"gallery-{name}.png")

    def grey(image: Any) -> Any:
        return np.repeat(255 * image[..., None], 3, axis=2)

    sheet("lenet", [[grey(digits[4 * row + i]) for i in range(4)] for row in range(2)])
    with tempfile.TemporaryDirectory() as made:
        train_images_from_folder.write_digits(Path(made), 40, rng)
        coloured = [np.asarray(Image.open(path)) for path in sorted(Path(made).rglob("*.png"))[::5]]
    sheet("folder", [coloured[:4], coloured[4:]])
    cluttered, masks = next(train_segmentation.examples(digits, rng))
    sheet("segmentation", [[grey(image[0]) for image in of[:3]] for of in (cluttered, masks)])


def main() -> None:
    drawings = {draw.__name__: draw for draw in (timeline, layouts, speed, peers, plans, curves)}
    others = {"lenet": lenet, "gallery": gallery}
    wanted = sys.argv[1:] or [*drawings, *others]
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        if name in others:
            others[name]()
        else:
            (IMAGES / f"{name}.svg").write_text(str(drawings[name]()), encoding="utf-8")


if __name__ == "__main__":
    main()
