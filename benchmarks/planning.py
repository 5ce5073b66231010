"""How good ``job.plan(target=...)`` is: programs whose speed on real hardware has been published, against their plans.

python -m benchmarks.planning [--only resnet50-h100 ...]

It needs the extras plan-gpu and plan-tpu, and nothing of the hardware. The published figures are from memory of their sources
and rounded; where one is a utilisation (of the peak FLOP/s), the plan's is compared.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oneflow as flow
import oneflow.typing as tp

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "models"))


@dataclass(frozen=True)
class Figure:
    """A published figure: samples per second and device, or utilisation; ``source`` says where it is from."""

    make: Callable[[], Any]
    target: str
    published: float
    unit: str
    source: str


def _config() -> flow.FunctionConfig:
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    return config


def _rate() -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [1e-3])


def resnet50(batch: int) -> Any:
    """ResNet-50 on 224 x 224 images, SGD with momentum, mixed precision, channels last."""
    from resnet import resnet50 as model
    from vision import Layers

    @flow.global_function(type="train", function_config=_config())
    def resnet_job(
        images: tp.Numpy.Placeholder((batch, 224, 224, 3)), labels: tp.Numpy.Placeholder((batch,), dtype=flow.int32)
    ) -> tp.Numpy:
        logits = model(images, 1000, Layers(training=True, data_format="NHWC"))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.SGD(_rate(), momentum=0.9).minimize(loss)
        return loss

    return resnet_job


def bert_large(batch: int) -> Any:
    """BERT-large, 512 words, the loss over hidden words, LAMB, mixed precision."""
    import bert

    sizes = bert.BertConfig(hidden_size=1024, layers=24, heads=16, intermediate_size=4096)
    text = tp.Numpy.Placeholder((batch, 512), dtype=flow.int32)
    hidden = tp.Numpy.Placeholder((batch, 76), dtype=flow.int32)

    @flow.global_function(type="train", function_config=_config())
    def bert_job(
        ids: text, types: text, mask: text, positions: hidden, labels: hidden,
        weights: tp.Numpy.Placeholder((batch, 76)), following: tp.Numpy.Placeholder((batch,), dtype=flow.int32),
    ) -> tp.Numpy:  # fmt: skip
        losses = bert.pretraining_loss(bert.Bert(sizes), ids, types, mask, positions, labels, weights, following)
        flow.optimizer.LAMB(_rate()).minimize(losses[0])
        return losses[0]

    return bert_job


def decoder(batch: int, layers: int, hidden: int) -> Any:
    """Layers of a decoder of the published width on one chip: what a chip of the slice computes."""
    import gpt

    sizes = gpt.GPTConfig(vocab_size=32768, hidden_size=hidden, layers=layers, heads=hidden // 128, seq_length=2048, dropout=0.0,
                          attention_dropout=0.0)  # fmt: skip

    @flow.global_function(type="train", function_config=_config())
    def decoder_job(tokens: tp.Numpy.Placeholder((batch, 2049), dtype=flow.int32)) -> tp.Numpy:
        loss = gpt.GPT(sizes).loss(tokens)
        flow.optimizer.AdamW(_rate()).minimize(loss)
        return loss

    return decoder_job


MLPERF = "MLPerf Training, 8 devices, minutes to the target and epochs turned into samples per device"
FIGURES = {
    "resnet50-a100": Figure(lambda: resnet50(256), "a100:1", 3400.0, "images/s", f"{MLPERF} (v1.1)"),
    "resnet50-h100": Figure(lambda: resnet50(256), "h100:1", 6350.0, "images/s", f"{MLPERF} (v2.1)"),
    "bert-a100": Figure(lambda: bert_large(32), "a100:1", 83.0, "samples/s", "NVIDIA's DeepLearningExamples, PyTorch, phase 2"),
    "bert-h100": Figure(
        lambda: bert_large(32),
        "h100:1",
        220.0,
        "samples/s",
        "the A100's, times the ratio of MLPerf Training v2.1's minutes for BERT on 8 devices, about 17 and 6.4 (there in FP8)",
    ),
    "decoder-v5e": Figure(lambda: decoder(2, 2, 4096), "tpu-v5e:1x1", 0.61, "utilisation", "MaxText's README, 16B on a v5e-256"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=sorted(FIGURES), choices=sorted(FIGURES))
    for name in parser.parse_args().only:
        figure = FIGURES[name]
        flow.clear_default_session()
        start = time.perf_counter()
        plan = figure.make().plan(target=figure.target)
        rate = plan.utilisation if figure.unit == "utilisation" else plan.samples / plan.seconds / len(plan.devices)
        print(plan)
        own = "" if plan.compiler_seconds is None else f"; by the compiler's cycles {plan.compiler_seconds * 1e3:.1f} ms"
        print(
            f"== {name}: plan {rate:.4g} {figure.unit}, published {figure.published:.4g} ({figure.source}): "
            f"{rate / figure.published:.2f} times{own}; {plan.verdict}; planned in {time.perf_counter() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
