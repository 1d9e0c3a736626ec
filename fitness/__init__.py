"""The worth of a candidate: dialect check, gates, time models, score."""
