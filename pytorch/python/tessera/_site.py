"""Where in the user's code a call stands."""

import os
import sys

package_folder = os.path.dirname(os.path.abspath(__file__)) + os.sep


def here():
    """(file, line) of the innermost frame that is not tessera's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package_folder):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
