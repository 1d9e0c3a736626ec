"""Takes a Pallas function in: copies its text, and finds its block sizes."""
