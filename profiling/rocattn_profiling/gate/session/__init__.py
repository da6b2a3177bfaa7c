"""What one session of launches keeps: its store on disk, and the state of each case."""
