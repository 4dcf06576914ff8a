"""Running a model: by its own modules, and what looks into its passes."""
