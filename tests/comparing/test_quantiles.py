"""The points of Student's and the beta distribution, against SciPy's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaincinv, stdtr, stdtrit

from evalhouse.tasks.comparing.bootstrap import find_beta_point, find_student_p, find_student_point

SHARES = st.sampled_from([0.001, 0.025, 0.05, 0.3, 0.7, 0.95, 0.975])


@settings(max_examples=200)
@given(share=SHARES, degrees=st.integers(1, 2_000_000))
def test_students_point_is_scipys(share: float, degrees: int) -> None:
    assert find_student_point(share, degrees) == pytest.approx(float(stdtrit(degrees, share)), rel=1e-8)


@settings(max_examples=200)
@given(t=st.floats(-1e9, 1e9) | st.floats(-9, 9), degrees=st.floats(2, 1e6))
def test_students_p_is_scipys(t: float, degrees: float) -> None:
    assert find_student_p(t, degrees) == pytest.approx(2 * float(stdtr(degrees, -abs(t))), abs=1e-8)


@settings(max_examples=200)
@given(share=SHARES, a=st.integers(1, 100_000), b=st.integers(1, 100_000))
def test_the_beta_point_is_scipys(share: float, a: int, b: int) -> None:
    assert find_beta_point(share, a, b) == pytest.approx(float(betaincinv(a, b, share)), rel=1e-8)


@pytest.mark.parametrize("degrees", [0, -1, float("nan")])
def test_without_degrees_of_freedom_there_is_no_point(degrees: float) -> None:
    assert find_student_point(0.025, degrees) != find_student_point(0.025, degrees)
