"""For every verb: files, text, processes, progress, the console, and the table of GPUs."""
