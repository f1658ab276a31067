"""REST for runners (`/runner/…`), for who looks after them (`/runners…`), and the logs of runs."""
