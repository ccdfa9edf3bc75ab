"""watcher.py: looks, as often as it can, whether a limit is exceeded; README.md here, arguments in common.py."""

import time

from common import FlowClient

LOOK = """
    INSERT INTO excess (what)
    SELECT format('%s: %s running', q.name, count(*)) FROM idemq.jobs j JOIN idemq.queues q USING (queue_id)
        WHERE j.status = 'running' AND q.name ~ 'limited|elastic' GROUP BY q.name HAVING count(*) > CASE WHEN q.name ~ 'elastic' THEN 4 ELSE 3 END
    UNION ALL
    SELECT format('%s: %s heads of group %s', q.name, count(*), j.group_key) FROM idemq.jobs j JOIN idemq.queues q USING (queue_id)
        WHERE j.group_key IS NOT NULL AND j.finished_at IS NULL AND j.status <> 'blocked' AND q.name !~ 'permits|turns' GROUP BY q.name, j.group_key HAVING count(*) > 1
    UNION ALL
    SELECT format('%s: %s permits of group %s', q.name, count(*), j.group_key) FROM idemq.jobs j JOIN idemq.queues q USING (queue_id)
        WHERE j.status = 'running' AND q.name ~ 'permits|turns' AND j.group_key <> '' GROUP BY q.name, j.group_key
        HAVING count(*) > CASE WHEN q.name ~ 'turns' THEN 4 ELSE 2 END
    UNION ALL
    SELECT format('%s: %s permits used', queue, permits_used) FROM idemq.metrics WHERE queue ~ 'limited|elastic'
        AND permits_used > CASE WHEN queue ~ 'elastic' THEN 4 ELSE 3 END
"""


class Watcher(FlowClient):
    def work(self):
        self.do(lambda: self.execute(LOOK))
        self.do(lambda: self.execute("INSERT INTO looks (running) SELECT max(n) FROM (SELECT count(*) AS n FROM idemq.jobs "
                                     "JOIN idemq.queues USING (queue_id) WHERE status = 'running' AND name ~ 'limited' GROUP BY queue_id) x"))
        time.sleep(0.05)
        return True
