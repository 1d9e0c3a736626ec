"""Studies of taking other people's code in."""
