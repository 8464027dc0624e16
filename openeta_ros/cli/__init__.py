# SPDX-License-Identifier: Apache-2.0
"""The `openeta` command: one file per verb, each with `HELP`, `EPILOG`, `add_arguments` and `main`."""


def run() -> int:
    """Run `openeta` with the process's arguments and return its exit code, for Ctrl-C while importing too."""
    try:
        from openeta_ros.cli.signals import stop_on_signals

        with stop_on_signals():
            from openeta_ros.cli.main import main  # takes a busy machine a second

            return main()
    except KeyboardInterrupt:
        return 130
