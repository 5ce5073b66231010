"""What is measured, one file a kind of case. Each has ``measure(effort, data) -> list[Section]``."""
