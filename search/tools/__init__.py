"""Steps in which a model calls tools."""
