"""``flow.random``: random values inside a job."""

from .ops.random import CoinFlip as CoinFlip
from .ops.random import bernoulli as bernoulli
from .ops.random import categorical as categorical
from .ops.random import coin_flip as coin_flip
from .ops.random import gen_seed as gen_seed
from .ops.random import generate_random_batch_permutation_indices as generate_random_batch_permutation_indices
from .ops.random import normal as normal
from .ops.random import shuffle as shuffle
from .ops.random import uniform as uniform
