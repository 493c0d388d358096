"""The design-space report: one page that opens offline, a file a section, assembled by page.py.

Every section is a function from runs or studies to a Section; what it shows is computed apart from how it is drawn.
"""
