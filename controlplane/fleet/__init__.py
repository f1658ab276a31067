"""The fleet page and the live fragments of the admin. Part of the composition root: it looks at every app."""
