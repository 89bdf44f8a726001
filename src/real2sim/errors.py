# SPDX-License-Identifier: Apache-2.0
"""The errors that a user sees. Each message states the rule, what was received, where, and what to do next."""


class Real2SimError(Exception):
    """Base of every error that is shown as one message, without a traceback."""


class UsageError(Real2SimError):
    """An option, a config value or an argument is wrong."""


class CaptureError(Real2SimError):
    """The capture cannot give a right result as it is; running the same again cannot help."""


class BackendError(Real2SimError):
    """A backend was asked for by name and cannot run here; the message says what is missing and how to get it."""


class BundleError(Real2SimError):
    """A folder is not a bundle, or a bundle is damaged."""


class TransientError(Real2SimError):
    """Out of memory, a full disk, a preempted device: the same inputs may succeed when tried again."""
