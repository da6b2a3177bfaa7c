"""The decision: statistics of launches, independent of how they were measured."""
