"""The loop of every reader: cases as JSON on standard input, answers as one line of JSON."""

import contextlib
import io
import json
import os
import sys
import traceback


def answer_all(read):
    """Print what ``read`` makes of each case; what it raises is the answer of that case."""
    answers = []
    outside = dict(os.environ)
    for case in json.load(sys.stdin):
        os.environ.clear()
        os.environ.update(outside | case.get("environment", {}))
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                answers.append(read(case))
            except (Exception, SystemExit):
                traceback.print_exc()
                answers.append({"error": said.getvalue()[-1500:]})
    sys.stdout.write(json.dumps(answers) + "\n")
