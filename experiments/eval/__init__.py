"""What is read from the records of finished runs: comparisons, tables, pages, exports."""
