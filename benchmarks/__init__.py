"""Side-by-side measurements: ours, hand-written JAX and PyTorch. Run with ``python -m benchmarks``; see docs/benchmarks.md."""
