"""Models of different sizes, written once over the layers of four libraries, with the same weights and the same data."""
