import pytest

pytest.register_assert_rewrite("realtime.laws.course")
