"""The data of one session of launches: its store on disk, and the state of each case."""
