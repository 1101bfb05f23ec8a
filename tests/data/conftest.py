"""Folders for the readers that are not the user's."""

from own_folders import own_folders

__all__ = ["own_folders"]
