"""``on_error``: samples that cannot be made; begin in policy.py."""
