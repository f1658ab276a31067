"""Settings of the django-q2 project; imported in the peers' environment only."""

from jobs import django_settings

globals().update(django_settings())
