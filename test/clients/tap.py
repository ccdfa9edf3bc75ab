"""tap.py [MODULE...]: runs the tests of modules beside it, and prints one line of TAP per test.

test/t/lib/Reports.pm reads these lines, so that each test becomes an assertion of the .pl file and every skip is visible.
"""

import sys
import unittest


class _Result(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        self.skip = None
        self.troubles = len(self.failures) + len(self.errors) + len(self.unexpectedSuccesses)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.skip = reason

    def stopTest(self, test):
        good = len(self.failures) + len(self.errors) + len(self.unexpectedSuccesses) == self.troubles
        name = test.id().removeprefix("__main__.")
        print(f"{'ok' if good else 'not ok'} - {name}{f' # skip {self.skip}' if self.skip and good else ''}", flush=True)
        super().stopTest(test)


def main(module="__main__"):
    """Runs all tests of the program, or only those named by its arguments; of several modules if None is given."""
    unittest.main(module=module, testRunner=unittest.TextTestRunner(resultclass=_Result, verbosity=0), argv=sys.argv)


if __name__ == "__main__":
    main(None)
