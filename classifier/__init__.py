"""Offers in from Kafka, categories out to MongoDB."""

__version__ = "0.1.0"
