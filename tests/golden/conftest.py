"""The script needs trl, which the tests do not."""

collect_ignore = ["make_trl_golden.py"]
