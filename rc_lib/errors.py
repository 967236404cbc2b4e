"""The error whose message is all that a user needs."""


class RcError(Exception):
    """A wrong input or a failed stage; the command line prints its message without a traceback.

    >>> str(RcError("unknown notebook 'x'; choose from 00_start_here"))
    "unknown notebook 'x'; choose from 00_start_here"
    """
