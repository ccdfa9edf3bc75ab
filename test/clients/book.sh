#!/bin/sh
# idemq-work -d "$DSN" -q events -- ./book.sh
exec psql -Xq -o /dev/null -v ON_ERROR_STOP=1 -d "$DSN" -v event="$(cat)" -v id="$IDEMQ_ID" -v token="$IDEMQ_TOKEN" <<'SQL'
BEGIN;
SELECT idemq.assert_current(:id, :token);
UPDATE accounts SET balance = balance + (:'event'::jsonb ->> 'amount')::int WHERE account = :'event'::jsonb ->> 'account';
SELECT idemq.commit(:id, :token);
COMMIT;
SQL
