"""Which changes of one line a file allows: each has the line's number, its function and both texts."""

import collections
import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Change:
    """One line that is to be another; number: from 1; empty after: the line says nothing."""

    file: str
    number: int
    function: str
    before: str
    after: str

    @property
    def name(self):
        """What a change is known by when lines have moved."""
        return (self.file, self.function, self.before.strip(), self.after.strip())


# What stands for what.  A pair is tried in each place of a line in which it occurs.
SWAPS_C = [
    (r"\bMin\(", "Max("),
    (r"\bMax\(", "Min("),
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r" \+ 1\b", ""),
    (r" - 1\b", ""),
    (r"\+\+", "--"),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"\bLW_EXCLUSIVE\b", "LW_SHARED"),
    (r"\bLockTupleNoKeyExclusive\b", "LockTupleKeyShare"),
    (r"\bRowExclusiveLock\b", "AccessShareLock"),
    (r"(?<![A-Za-z])ExclusiveLock\b", "RowExclusiveLock"),
    (r"\bJOB_SKIPS\b", "JOB_WAITS"),
    (r"\bJOB_WAITS\b", "JOB_SKIPS"),
    (r"\bUSECS_PER_SEC\b", "USECS_PER_MINUTE"),
    (r"(?<= )([2-9])(?=[;,) ])", "1"),
]
SWAPS_SQL = [
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" = ", " <> "),
    (r"\bNOT EXISTS\b", "EXISTS"),
    (r"\bIS NOT NULL\b", "IS NULL"),
    (r"\bIS NULL\b", "IS NOT NULL"),
    (r"\bmin\(", "max("),
    (r"\bmax\(", "min("),
    (r"\bDEFAULT true\b", "DEFAULT false"),
    (r"\bDEFAULT false\b", "DEFAULT true"),
    (r" AND ", " OR "),
    (r"\bDESC\b", "ASC"),
    (r"\bSTABLE\b", "VOLATILE"),
]
CALL = re.compile(r"^(\t+)(?:\(void\) )?([a-zA-Z_]\w*)\(.*\);$")
ASSIGNED = re.compile(r"^(\t+)\*?[a-z_][\w>.\[\]-]* (?:=|\+=|-=|\|=|&=) .*;$")
CONDITION = re.compile(r"^(\t+(?:else )?(?:if|while) )\((.*)\)$")
# They hide nothing that a test could see: memory that goes with its context, what cannot happen.
IDLE = {"pfree", "Assert", "elog", "ereport", "StaticAssertStmt", "list_free", "CHECK_FOR_INTERRUPTS"}


def without_comments(lines):
    """Returns the lines of C with comments and the insides of strings blanked."""
    code, inside = [], False
    for line in lines:
        out, i = [], 0
        while i < len(line):
            if inside:
                end = line.find("*/", i)
                stop = len(line) if end < 0 else end + 2
                out.append(" " * (stop - i))
                inside, i = end < 0, stop
            elif line.startswith("/*", i):
                inside = True
            elif line[i] in "\"'":
                end = re.compile(r"(?:\\.|[^\\%s])*" % line[i]).match(line, i + 1).end()
                out.append(line[i] + "\x00" * (end - i - 1) + line[end : end + 1])
                i = end + 1
            else:
                out.append(line[i])
                i += 1
        code.append("".join(out))
    return code


def balanced(text):
    depth = 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0


def swaps(line, code, pairs):
    for pattern, other in pairs:
        for match in re.finditer(pattern, code):
            yield line[: match.start()] + other + line[match.end() :]


def of_c(lines):
    """Yields (number, function, before, after) of a C file."""
    code, function, before = without_comments(lines), "", ";"
    for number, (line, text) in enumerate(zip(lines, code), 1):
        bare = text.strip()
        start = re.match(r"^(?:SQL_FUNCTION\()?([A-Za-z_]\w*)[()]", text)
        function = start.group(1) if start else function
        if text.startswith("}"):
            function = ""
        if function and text.startswith("\t") and bare and not bare.startswith("Assert("):
            found = list(swaps(line, text, SWAPS_C))
            condition = CONDITION.match(text.rstrip())
            if condition and balanced(condition.group(2)):
                inner = line[len(condition.group(1)) + 1 : len(text.rstrip()) - 1]
                found.append(f"{condition.group(1)}(!({inner}))")
            call = CALL.match(text.rstrip())
            begins = before.endswith((";", "{", "}", ":")) or before in ("else", "do") or CONDITION.match("\t" + before)
            if begins and ((call and call.group(2) not in IDLE) or ASSIGNED.match(text.rstrip())):
                found.append(re.match(r"\t+", text).group(0) + ";")
            yield from ((number, function, line, after) for after in found if after != line)
        before = bare or before


def of_sql(lines):
    """Yields the same of a file of sql/parts: of what is run, not of comments."""
    function = ""
    for number, line in enumerate(lines, 1):
        made = re.match(r"^CREATE (?:UNIQUE )?[A-Z ]+ (idemq\.\w+)", line)
        function = made.group(1) if made else function
        if line.startswith(("--", "COMMENT ON", "\\")) or not line.strip():
            continue
        text = re.sub(r"'[^']*'", lambda m: "'" + "\x00" * (len(m.group(0)) - 2) + "'", line).split("--")[0]
        found = list(swaps(line, text, SWAPS_SQL))
        if re.match(r"^\s+AND .*[^;(]$", text) or re.match(r"^(GRANT|REVOKE|ALTER) .*;$", text):
            found.append("")
        yield from ((number, function, line, after) for after in found)


def changes(tree, file):
    """Returns all changes of a file of the tree."""
    with open(f"{tree}/{file}", encoding="utf-8") as source:
        lines = source.read().split("\n")
    found, times = [], collections.Counter()
    for number, function, before, after in (of_sql if file.endswith(".sql") else of_c)(lines):
        change = Change(file, number, function, before, after)
        times[change.name] += 1
        # The second of two lines that are the same is another change.
        nth = times[change.name]
        found.append(change if nth == 1 else dataclasses.replace(change, function=f"{function} {nth}"))
    return found
