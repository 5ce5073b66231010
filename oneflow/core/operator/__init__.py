"""Generated names of OneFlow, see ``oneflow.core``."""
