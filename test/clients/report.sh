#!/bin/sh
# idemq-work -d "$DSN" -q reports -- ./report.sh
exec psql -Xq -o /dev/null -v ON_ERROR_STOP=1 -d "$DSN" -v tick="$IDEMQ_KEY" -v id="$IDEMQ_ID" -v token="$IDEMQ_TOKEN" <<'SQL'
BEGIN;
SELECT idemq.assert_current(:id, :token);
INSERT INTO reports SELECT :'tick', sum(total) FROM sales;
SELECT idemq.commit(:id, :token);
COMMIT;
SQL
