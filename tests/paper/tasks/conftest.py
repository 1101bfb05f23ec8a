import pytest
from bars import trained


@pytest.fixture(params=["ae", "ae-var", "vae", "dropout", "ensemble", "bbb"])
def method(request):
    return trained(request.param)
