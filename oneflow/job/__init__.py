"""Job functions: the one room that knows both the front end and the back."""

from .decorator import function as function
from .decorator import global_function as global_function
from .function import JobFunction as JobFunction
from .function import common_session as common_session
from .function import current_global_function_desc as current_global_function_desc
from .function import job_summary as job_summary
from .plotting import plot_model as plot_model
