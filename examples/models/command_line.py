"""The options that the programs of this directory share, and what ``--load`` and ``--save`` do."""

import argparse

import oneflow as flow

# the spellings of Megatron, which megatron_gpt.py takes, too
MEGATRON = {
    "batch": "global-batch-size", "steps": "train-iters", "learning-rate": "lr", "warmup": "lr-warmup-iters", "amp": "fp16",
    "layers": "num-layers", "hidden": "hidden-size", "heads": "num-attention-heads", "length": "seq-length",
    "vocabulary": "padded-vocab-size", "stages": "pipeline",
}  # fmt: skip


def plain_parser(description, add_help=True):
    """A parser without options; ``description`` is the docstring of a program."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=add_help
    )


def make_parser(description, *, batch, steps, learning_rate, warmup=None, add_help=True, aliases=()):
    """A parser with the options for training. ``aliases`` maps names of options to a second spelling. Without ``warmup``
    there is no warm-up."""
    parser = plain_parser(description, add_help)
    add = _adder(parser.add_argument_group("training"), aliases)
    add("batch", type=int, default=batch, help="samples per step (default: %(default)s)")
    add("steps", type=int, default=steps, help="(default: %(default)s)")
    add("learning-rate", type=float, default=learning_rate, help="(default: %(default)s)")
    if warmup is not None:
        add("warmup", type=int, default=warmup, help="steps of linear warm-up (default: %(default)s)")
        add("amp", action="store_true", help="mixed precision")
    add("load", help="directory of variables to start from; others keep their first values")
    add("save", help="directory for the trained variables")
    return parser


def add_gpt(parser, *, layers, hidden, heads, length, vocabulary=None, aliases=()):
    """Adds the sizes of a GPT. Without ``vocabulary`` the text's bytes are the vocabulary."""
    add = _adder(parser.add_argument_group("model"), aliases)
    add("layers", type=int, default=layers, help="(default: %(default)s)")
    add("hidden", type=int, default=hidden, help="width of the layers (default: %(default)s)")
    add("heads", type=int, default=heads, help="attention heads per layer (default: %(default)s)")
    add("length", type=int, default=length, help="tokens per sample (default: %(default)s)")
    if vocabulary is not None:
        add("vocabulary", type=int, default=vocabulary, help="(default: %(default)s)")


def add_devices(parser, *, data=1, tensor=1, stages=1, aliases=()):
    """Adds the axes along which devices share the work. Returns the group of options."""
    group = parser.add_argument_group("devices")
    add = _adder(group, aliases)
    add("data", type=int, default=data, help="devices of a stage that share the batch (default: %(default)s)")
    add("tensor", type=int, default=tensor, help="devices of a stage that share each matrix (default: %(default)s)")
    add("stages", type=int, default=stages, help="groups of layers on devices of their own (default: %(default)s)")
    return group


def _adder(group, aliases):
    def add(name, **options):
        spellings = [name, aliases[name]] if name in aliases else [name]
        group.add_argument(*(f"--{spelling}" for spelling in spellings), **options)

    return add


def load(options, only=None):
    """Loads what ``--load`` names; with ``only``, a set of names, nothing else of it."""
    if options.load:
        values = flow.checkpoint.get(options.load)
        flow.load_variables(values if only is None else {name: value for name, value in values.items() if name in only})


def save(options):
    """Saves where ``--save`` says."""
    if options.save:
        flow.checkpoint.save(options.save)
        print(f"saved {options.save}")
