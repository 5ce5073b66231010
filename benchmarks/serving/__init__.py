"""Servers under the load of many clients: ours, and one written plainly with FastAPI and PyTorch."""
