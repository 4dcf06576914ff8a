"""Figures of two papers, calculated with this project's models of transfers and of memory."""
