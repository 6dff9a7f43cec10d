"""What tests of a package have ended, by the logs of `go test -json` that scripts/test_arm64 keeps.

    tested.py LOGS passed COMMIT    the top-level tests that passed, for go test -skip;
                                    COMMIT is one commit, or any
    tested.py LOGS row NAME         a row of the table: passed, skipped, arguments, commits
    tested.py LOGS skipped          why tests were skipped: a line each, test and reason

A log's first line is "# COMMIT ARGUMENT...". Of a test that ran several times the last run counts.
"""

import json
import pathlib
import re
import sys


def read(logs: pathlib.Path, wanted: str):
    """All tests that ended: name -> (action, commit, reason of a skip), and the arguments."""
    ended, arguments = {}, ""
    for log in sorted(logs.glob("*.json")):
        first, *lines = log.read_text(errors="replace").split("\n")
        _, commit, *rest = first.split(" ")
        if wanted not in ("any", commit):
            continue
        arguments, output = " ".join(rest), {}
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:  # the last line of a run that was killed, or what is no event
                continue
            test, action = event.get("Test"), event["Action"]
            if test and action == "output":
                output.setdefault(test, []).append(event["Output"])
            elif test and action in ("pass", "skip", "fail"):
                said = [re.sub(r"^\s+\S+\.go:\d+: ", "", o).strip() for o in output.get(test, []) if re.match(r"\s+\S+\.go:\d+: ", o)]
                ended[test] = action, commit, said[0] if said else "no reason given"
    return ended, arguments


logs, mode, *more = sys.argv[1:]
ended, arguments = read(pathlib.Path(logs), more[0] if mode == "passed" else "any")
if mode == "passed":
    print("|".join(sorted(t for t, (action, *_) in ended.items() if "/" not in t and action == "pass")))
elif mode == "skipped":
    for test, (action, _, reason) in sorted(ended.items()):
        if action == "skip":
            print(f"`{test}`: {reason}")
else:
    parents = {t[:i] for t in ended for i, c in enumerate(t) if c == "/"}  # a test with subtests is counted as these are
    count = lambda wanted: sum(action == wanted and (t not in parents or action == "skip") for t, (action, *_) in ended.items())
    top = [commit for t, (_, commit, _) in ended.items() if "/" not in t]
    commits = ", ".join(c if len(set(top)) == 1 else f"{c} ({top.count(c)})" for c in dict.fromkeys(top))
    print(f"| `{more[0]}` | {count('pass')} | {count('skip')} | {arguments} | {commits} |")
