"""Settings for every test: hypothesis without deadlines (a busy machine is no bug), and the same examples each time."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "verlstack",
    deadline=None,
    derandomize=True,  # a red run is red for everybody; new examples come with new code
    max_examples=60,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("verlstack")
