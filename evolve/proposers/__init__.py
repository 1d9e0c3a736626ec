"""Proposers: each turns the history of a campaign into the next genome to try."""
