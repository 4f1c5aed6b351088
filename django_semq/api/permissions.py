"""Who may do what: Django's model permissions, closed by default."""

from __future__ import annotations

from rest_framework.permissions import DjangoModelPermissions


class ModelPermissions(DjangoModelPermissions):
    """Reading demands `view`, which Django REST framework leaves open; enqueueing demands `add`."""

    _VIEW = ["%(app_label)s.view_%(model_name)s"]
    perms_map = {**DjangoModelPermissions.perms_map, "GET": _VIEW, "HEAD": _VIEW, "OPTIONS": _VIEW}


class ActionPermissions(ModelPermissions):
    """Releasing and cancelling demand `change`.

    Neither `add` nor `delete` would do. Who may enqueue may not thereby end what others enqueued. And to
    release is no deletion of a record: it takes an item to the end of its life and gives its permit back,
    a change that operators make, while deleting item rows by hand is open to nobody.
    """

    perms_map = {**ModelPermissions.perms_map, "POST": ["%(app_label)s.change_%(model_name)s"]}
