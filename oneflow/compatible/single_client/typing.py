"""``typing`` of 0.6 is ``oneflow.typing``, which imports of this path lead to. Type checkers look for a file beside the stub."""
