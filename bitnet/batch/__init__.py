"""Answer many prompts from a file; an interrupted run can be continued."""
