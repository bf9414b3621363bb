"""The subcommands of ``pathsgd``: one file each, with a ``main(arguments) -> exit code``."""
