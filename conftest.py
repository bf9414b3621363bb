"""For all tests: how long an example takes says nothing of whether it is right, and machines are busy."""

from hypothesis import settings

settings.register_profile("without deadlines", settings(), deadline=None)
settings.load_profile("without deadlines")
