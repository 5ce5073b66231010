"""``flow.interop``: weights from and for other frameworks."""
