import pytest
@pytest.mark.parametrize("n", range(40))
def test_x(transactional_db, n):
    from django_semq.models import Item
    assert not Item.objects.exists()
