"""Surveys a source tree: how much of what is in it, and where the long files are.

Some forty tool calls, of which only the summary below comes back; a report goes to target/survey.md of
the working directory. Run it with

    talaria run examples/survey.py [-- FOLDER]
"""

import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from hermes_tools import read_file, shell_quote, terminal, write_file

folder = sys.argv[1] if len(sys.argv) > 1 else "."
BUDGET = 40
REPORT = os.path.abspath("target/survey.md")  # before the working directory moves

# One command finds the files; the working directory stays for the calls that follow.
listing = terminal(
    f"cd {shell_quote(folder)} && find . -type f -size -512k"
    " \\( -name '*.rs' -o -name '*.py' -o -name '*.md' -o -name '*.toml' \\)"
    " -not -path './target/*' -not -path '*/.*'"
    " -printf '%s %p\\n' | sort -rn | cut -d' ' -f2-"
)
if listing["exit_code"] != 0:
    sys.exit(f"the files could not be listed: {listing['output']}")
paths = listing["output"].splitlines()


def survey(path):
    """Lines of one file, and those that are comments."""
    page = read_file(path, limit=20_000, raw=True)
    if page.get("error"):
        return path, 0, 0
    lines = page["content"].splitlines()
    comments = sum(1 for line in lines if line.lstrip().startswith(("#", "//", '"""')))
    return path, len(lines), comments


# Calls from threads run side by side.
with ThreadPoolExecutor(8) as pool:
    results = list(pool.map(survey, paths[:BUDGET]))

lines = Counter()
files = Counter()
for path, count, _ in results:
    kind = path.rsplit(".", 1)[-1]
    lines[kind] += count
    files[kind] += 1

report = ["| kind | files | lines |", "| --- | --- | --- |"]
report += [f"| {kind} | {files[kind]} | {count} |" for kind, count in lines.most_common()]
written = write_file(REPORT, "\n".join(report) + "\n")

print(f"the {len(results)} largest of {len(paths)} files: {sum(lines.values())} lines")
for kind, count in lines.most_common():
    print(f"  {kind:5} {files[kind]:4} files {count:7} lines")
if results:
    print("longest:")
for path, count, comments in sorted(results, key=lambda row: -row[1])[:5]:
    print(f"  {count:6} lines, {comments / max(count, 1):4.0%} comments  {path}")
print("report:", written.get("resolved_path", written))
