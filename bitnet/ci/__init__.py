"""Templates for continuous integration, and the linters that check what a project has."""
