"""The project's own figures: `make bench`. All is measured on one server in one run, against the bare driver."""
