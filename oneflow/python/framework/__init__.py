"""``oneflow.python.framework``."""

from . import distribute as distribute
from . import dtype as dtype
from . import function_util as function_util
from . import id_util as id_util
from . import input_blob_def as input_blob_def
from . import remote_blob as remote_blob
