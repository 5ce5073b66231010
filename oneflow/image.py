"""``flow.image``: ops over images in tensor buffers."""

from .ops.image import CropMirrorNormalize as CropMirrorNormalize
from .ops.image import Resize as Resize
from .ops.image import batch_align as batch_align
from .ops.image import crop_mirror_normalize as crop_mirror_normalize
from .ops.image import decode as decode
from .ops.image import flip as flip
from .ops.image import normalize as normalize
from .ops.image import random_crop as random_crop
from .ops.image import resize as resize
from .ops.image import target_resize as target_resize
