"""What every verb may use: files, text, processes, progress, the console, and the table of GPUs."""
