"""Every step of any normalization on your own numbers, forward and backward."""
