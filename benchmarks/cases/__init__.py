"""The cases that are measured, one file per kind. Each has ``measure(effort, data) -> list[Section]``."""
