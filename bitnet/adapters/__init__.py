"""Models of this package in other programs, an extra each."""
