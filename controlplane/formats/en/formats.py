"""As everywhere else in the admin: to the second, and sortable. Django's own would say "8:26 p.m."."""

DATE_FORMAT = "Y-m-d"
TIME_FORMAT = "H:i:s"
DATETIME_FORMAT = "Y-m-d H:i:s"
