"""Everything the library raises.

Each class refines a built-in, so ``except ValueError`` keeps working. Checks that OneFlow made with
``assert`` are also ``AssertionError``, because programs and test suites of its time catch that.
"""

from __future__ import annotations


class OneFlowError(Exception):
    """Base of every error this library raises on purpose."""


class ShapeError(OneFlowError, ValueError, AssertionError):
    """Shapes do not fit together."""


class DtypeError(OneFlowError, TypeError, ValueError, AssertionError):
    """Dtypes do not fit together; Blobs are never converted implicitly."""


class AxisError(OneFlowError, ValueError, IndexError, AssertionError):
    """An axis is outside the Blob's rank."""


class ArgumentError(OneFlowError, ValueError, TypeError, AssertionError):
    """An argument has the wrong type or a value outside its range."""


class BlobUseError(OneFlowError, TypeError):
    """A Blob was used where a number is needed: it has no value while a job is described."""


class BlobScopeError(OneFlowError, NotImplementedError):
    """A Blob was used outside the job that made it."""


class ModeError(OneFlowError, NotImplementedError):
    """A function was called at the wrong place: outside a job, inside one, or too late."""


class ForkError(ModeError, RuntimeError):
    """A job was called in a forked child of a process that had used JAX."""


class DuplicateNameError(OneFlowError, ValueError, AssertionError):
    """Two ops or variables of one job have the same name."""


class VariableConflictError(OneFlowError, ValueError, AssertionError):
    """Two declarations of one variable disagree."""


class AnnotationError(OneFlowError, NotImplementedError, TypeError):
    """A job's parameter or return annotation is not one the library knows."""


class ReturnError(OneFlowError, TypeError, ValueError, AssertionError):
    """A job's body returned something that does not match its annotation."""


class TrainError(OneFlowError, ValueError, RuntimeError, AssertionError):
    """A train job has no objective, or a predict job has one."""


class GradientError(OneFlowError, ValueError, RuntimeError):
    """The loss cannot be differentiated."""


class FeedError(OneFlowError, TypeError, ValueError, AssertionError):
    """A call was given something that does not match the job's inputs."""


class FeedShapeError(FeedError, ShapeError):
    """An array of another shape than the placeholder's."""


class FeedDtypeError(FeedError, DtypeError):
    """An array whose dtype cannot be converted to the placeholder's without changing its kind."""


class CallbackError(OneFlowError, RuntimeError):
    """A callback of an earlier asynchronous call raised; the original is ``__cause__``."""


class ResultError(OneFlowError, RuntimeError, AssertionError):
    """A result was asked for in a way it cannot give."""


class CompileError(OneFlowError, RuntimeError):
    """The compiler refused a job; the original is ``__cause__``."""


class ExecutionError(OneFlowError, RuntimeError):
    """A step failed on the device, for want of memory for example; the original is ``__cause__``."""


class NonFiniteError(ExecutionError, FloatingPointError):
    """A step made a NaN or an infinity while ``flow.config.find_nonfinite(True)`` was set; ``report`` says where."""

    def __init__(self, message: str, report: object = None):
        super().__init__(message)
        self.report = report


class CustomOpError(OneFlowError, ValueError, RuntimeError):
    """The Python code of a custom op raised, or gave arrays of another shape or dtype than it promised."""


class HostError(OneFlowError, ValueError, NotImplementedError):
    """A job asks for something on the host (a reader, an image op, tensor buffers) that only the device could give."""


class ViewError(OneFlowError, ValueError, RuntimeError):
    """A Blob of one view (one logical tensor, one tensor per device) is used where it has no form in the other."""


class RepetitionError(OneFlowError, ValueError, AssertionError):
    """An op combines Blobs that are made a different number of times per call (flow.unpack, flow.repeat)."""


class ConfigError(OneFlowError, AttributeError, AssertionError):
    """An unknown setting. An AttributeError, because programs probe with ``hasattr``."""


class DeviceError(OneFlowError, RuntimeError):
    """A placement asks for devices that are not there."""


class ProcessError(OneFlowError, RuntimeError):
    """A process of the run is missing, has ended, hangs, or runs another program."""


class CheckpointError(OneFlowError, ValueError, AssertionError):
    """A checkpoint cannot be written or read."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at that path."""


class CheckpointExistsError(CheckpointError, FileExistsError):
    """The target of a save is a file or a directory that is not empty."""


class CheckpointWarning(UserWarning):
    """A checkpoint was loaded, but not all of the program's variables were in it."""


class JobWarning(UserWarning):
    """Something about a job that its user should know, and that stops nothing."""


class ExportError(OneFlowError, ValueError, NotImplementedError):
    """A job cannot be written in the format asked for, or a file of such a format cannot be read."""


class SavedModelError(OneFlowError, ValueError):
    """A saved model cannot be written, or what is on disk is not one that can be run."""


class ServingError(OneFlowError, RuntimeError):
    """A server cannot start: a model cannot be loaded, or the port is taken."""


class MissingExtraError(OneFlowError, ImportError):
    """A package that this feature needs is not installed; the text names the extra that brings it."""


class DataError(OneFlowError, ValueError):
    """A file of data is damaged, is not what was asked for, or cannot be had."""


class DownloadError(DataError, OSError):
    """A download failed; nothing was written."""


class PartNotFoundError(DataError, FileNotFoundError):
    """A part file of a data set is not there."""


class RecordError(DataError):
    """A part file or one of its records is damaged.

    ``file``, ``record`` (its number in the file, from 0), ``offset`` (of the record's first byte, or of what is wrong with the
    file) and ``feature`` say where; each is None where it does not apply.
    """

    file: str | None = None
    record: int | None = None
    offset: int | None = None
    feature: str | None = None


class FeatureError(RecordError):
    """A record has no such feature, or one of another type or size."""


class ImageError(RecordError):
    """An image cannot be decoded, or is not one that the operation takes."""
