"""An application with tasks, for django.pl."""
