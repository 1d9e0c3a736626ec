"""What a candidate is compared with: the reference, inputs, and bounds on each result."""
