# Written by scripts/write_stubs.py: the names of oneflow.image, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.image import CropMirrorNormalize as CropMirrorNormalize
from oneflow.image import Resize as Resize
from oneflow.compatible.single_client._ops import batch_align as batch_align
from oneflow.image import crop_mirror_normalize as crop_mirror_normalize
from oneflow.image import decode as decode
from oneflow.image import flip as flip
from oneflow.image import normalize as normalize
from oneflow.image import random_crop as random_crop
from oneflow.image import resize as resize
from oneflow.image import target_resize as target_resize
