"""late.py: how much time the machine has lost, for watchdog.py and steering_account.py; see README.md."""

from bisect import bisect_right

LIMIT = 1.0  # seconds within which idemq must do what it promises to do at once
LATE_FACTOR = 4  # the time that the machine has lost counts this often, because several processes take part


class Late:
    """How much time the machine has lost."""

    def __init__(self, spans):
        self.begins, self.ends, self.sums = [], [], [0.0]
        for begin, end, late in sorted(spans):
            self.begins.append(begin)
            self.ends.append(end)
            self.sums.append(self.sums[-1] + late)

    def between(self, begin, end):
        """Returns the time lost in all spans that overlap this one."""
        first = bisect_right(self.ends, begin)
        last = bisect_right(self.begins, end)
        return max(self.sums[last] - self.sums[first], 0.0) if last > first else 0.0
