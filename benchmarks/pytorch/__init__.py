"""The same programs in PyTorch, eager and through torch.compile; skipped where torch is not installed."""
