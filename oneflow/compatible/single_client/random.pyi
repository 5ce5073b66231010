# Written by scripts/write_stubs.py: the names of oneflow.random, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.random import CoinFlip as CoinFlip
from oneflow.random import bernoulli as bernoulli
from oneflow.random import categorical as categorical
from oneflow.random import coin_flip as coin_flip
from oneflow.random import gen_seed as gen_seed
from oneflow.random import generate_random_batch_permutation_indices as generate_random_batch_permutation_indices
from oneflow.random import normal as normal
from oneflow.random import shuffle as shuffle
from oneflow.random import uniform as uniform
