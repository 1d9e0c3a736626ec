"""Tile choices of a campaign's winner in the tables that other kernel libraries read."""
