"""What a candidate is worth: dialect check, gates, time models, score."""
