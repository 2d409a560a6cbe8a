"""A door of another project, as packages are installed: this folder stands on the path."""
