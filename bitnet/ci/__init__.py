"""Templates for continuous integration, and linters for a project's workflows."""
