"""Other programs' APIs over the one request and the one answer; a file for each."""
