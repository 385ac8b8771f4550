"""Snakemake's linter, all of it but for one message: rules here share the project's environment."""

import re
import subprocess
import sys

ALLOWED = "Specify a conda environment or container for each rule."  # the environment is requirements.txt


def main() -> int:
    command = [sys.executable, "-m", "snakemake", "--lint"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    messages = re.findall(r"^ +\* (.+?):?$", output, re.M)
    problems = [m for m in messages if m != ALLOWED]
    if problems or not (messages or "Congratulations" in output):  # no message at all: it did not run
        print(output)
        return 1
    print(f"snakemake --lint: no problem ({len(messages)} times the message about containers)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
