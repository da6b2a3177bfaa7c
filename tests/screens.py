"""What a command put on the screen, without what differs from run to run: how tests compare it with a snapshot."""

import re

PROGRESS = re.compile(r"^[\w ]+: \d+/\d+, .*\n", re.MULTILINE)


def screen(text, **folders):
    """Return the text without progress, blanks at the ends of lines and blank lines; each folder by its name."""
    for name, folder in folders.items():
        text = text.replace(str(folder), name)
    return "\n".join(line.rstrip() for line in PROGRESS.sub("", text).splitlines() if line.strip())


def line(text, word):
    """Return the one line that has the word, without what surrounds it."""
    (found,) = (each.strip() for each in text.splitlines() if word in each)
    return found
