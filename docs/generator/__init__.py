"""Writes the pages of the site: those of docs/, with what is made from the package, its scores and its notebooks."""
