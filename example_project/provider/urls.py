from django.contrib.auth.views import LogoutView
from django.urls import path

from example_project.provider import views

app_name = "provider"

urlpatterns = [
    path("", views.page, name="page"),
    path("state/", views.state, name="state"),
    path("reports/", views.reports, name="reports"),
    path("login/", views.login, name="login"),
    path("logout/", LogoutView.as_view(next_page="provider:page"), name="logout"),
]
