"""Where in the user's code a call stands."""

import os
import sys

# What begins with these is not the user's: tessera's own folder, and what is of torch, once that is loaded.
library_paths: tuple[str, ...] = (os.path.dirname(os.path.abspath(__file__)) + os.sep,)


def here():
    """(file, line) of the innermost frame that is not a library's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(library_paths):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
