"""The ground floor: errors, settings, files, locks, trust, and output to a terminal."""
