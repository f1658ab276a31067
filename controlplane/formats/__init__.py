"""How the admin writes dates and times: a language's own format would win over the settings."""
