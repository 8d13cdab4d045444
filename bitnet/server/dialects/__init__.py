"""Other programs' APIs, mapped to the same requests and answers; one file each."""
