"""What a job means where releases of OneFlow differ.

A job has the generation of the spelling that declared it; an op or an optimizer that of the spelling that made it, which it
holds as an attribute or a class of its own. Nothing here is a mode of the process.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Generation:
    """What differs between releases for a whole job.

    Attributes:
      release: its name, for messages.
      joins_pieces: results and watched values of the mirrored view are one array, joined on axis 0, also as ``tp.ListNumpy``.
      trains_predict_jobs: a predict job that calls ``minimize`` becomes a train job.
      newer_autocast_lists: automatic mixed precision takes the lists of 0.6.
      newer_update_rules: ``FunctionConfig.train`` names the update rules and schedules of 0.6.
    """

    release: str
    joins_pieces: bool = False
    trains_predict_jobs: bool = False
    newer_autocast_lists: bool = False
    newer_update_rules: bool = False


V0_3 = Generation("0.3.4")
V0_6 = Generation("0.6", joins_pieces=True, trains_predict_jobs=True, newer_autocast_lists=True, newer_update_rules=True)
