"""Which pixels a sample is made of."""
