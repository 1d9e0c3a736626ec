"""Loads a user's file, so that its numbers remember where they come from."""
