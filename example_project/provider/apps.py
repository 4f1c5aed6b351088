from django.apps import AppConfig


class ProviderConfig(AppConfig):
    name = "example_project.provider"
    verbose_name = "pretend provider"
