"""Settings for every test: hypothesis without deadlines (a busy machine is no bug), and the same examples each time."""

import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

sys.path.insert(0, str(Path(__file__).parent))  # `from support.wheels import Wheel`, whatever pytest's import mode

# A shell without job control starts `make test &` with these ignored, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

settings.register_profile(
    "verlstack",
    deadline=None,
    derandomize=True,  # a red run is red for everybody; new examples come with new code
    max_examples=40,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("verlstack")
