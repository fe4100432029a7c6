"""Private: the compiled reduction patterns. Only ``evenkeel.functional`` imports this package."""
