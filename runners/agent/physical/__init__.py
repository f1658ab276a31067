"""The Docker side of physical admission: a hard cap on the containers that really exist (rules P1 to P18)."""
