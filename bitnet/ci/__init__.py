"""Workflows for GitHub Actions: what a project gets, the rules they follow, and their linters."""
