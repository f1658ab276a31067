"""The web server's entry point."""

import os

from django.core.wsgi import get_wsgi_application

from controlplane.management.server import refuse_unless_ready

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

application = get_wsgi_application()
refuse_unless_ready()
