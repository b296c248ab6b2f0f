"""Drop-ins for files that were copied from project to project: import the right one in place of the copy."""
