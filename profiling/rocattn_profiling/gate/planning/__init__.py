"""What a run will measure, in which order, and how long that takes."""
