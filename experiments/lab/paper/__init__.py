"""Figures of papers, calculated with this project's models of transfers, memory and time, or
measured."""
