"""What operators and other apps may do with leadership and loops."""
