"""``flow.image``: ops over images in tensor buffers."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
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

_NAMES = (
    "CropMirrorNormalize",
    "Resize",
    "batch_align",
    "crop_mirror_normalize",
    "decode",
    "flip",
    "normalize",
    "random_crop",
    "resize",
    "target_resize",
)
_on_demand = {name: f".ops.image:{name}" for name in _NAMES}
# by the names that their definitions have, so that suggestions name each function once
_on_demand |= {"crop_mirror_normalize": ".ops.image:CropMirrorNormalize", "resize": ".ops.image:Resize"}
