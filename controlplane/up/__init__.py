"""`manage.py up`: the whole fleet on this machine with one command. Supervises; never touches the database itself."""
