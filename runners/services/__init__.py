"""Verbs of runners and of logs; the only writers of these rows."""
