"""The decision: statistics of launches, and nothing about how they were measured."""
