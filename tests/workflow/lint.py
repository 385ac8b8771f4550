"""Snakemake's linter, all of it but for two messages that are wrong here."""

import re
import subprocess
import sys

ALLOWED = (
    "Specify a conda environment or container for each rule.",  # the environment is requirements.txt
    # a parameter would rerun everything once the study file is renamed; what the study says is in parameters
    "Shell command directly uses variable STUDY_FILE from outside of the rule",
)


def main() -> int:
    command = [sys.executable, "-m", "snakemake", "--lint"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    messages = re.findall(r"^ +\* (.+?):?$", output, re.M)
    problems = [m for m in messages if m not in ALLOWED]
    if problems or not (messages or "Congratulations" in output):  # no message at all: it did not run
        print(output)
        return 1
    print(f"snakemake --lint: no problem ({len(messages)} times a message that is allowed)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
