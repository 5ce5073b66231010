"""The options that all programs of this directory share, and what ``--load`` and ``--save`` do."""

import argparse

import oneflow as flow


def make_parser(description, *, batch, steps, learning_rate, warmup=None, add_help=True):
    """A parser with the common options; ``description`` is the docstring of a program. Without ``warmup`` there is no warm-up."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=add_help
    )
    common = parser.add_argument_group("training")
    common.add_argument("--batch", type=int, default=batch, help="samples in a step (default: %(default)s)")
    common.add_argument("--steps", type=int, default=steps, help="(default: %(default)s)")
    common.add_argument("--learning-rate", type=float, default=learning_rate, help="(default: %(default)s)")
    if warmup is not None:
        common.add_argument("--warmup", type=int, default=warmup, help="steps of linear warm-up (default: %(default)s)")
        common.add_argument("--amp", action="store_true", help="mixed precision")
    common.add_argument("--load", help="directory of variables to start from; others keep their first values")
    common.add_argument("--save", help="directory for the trained variables")
    return parser


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
