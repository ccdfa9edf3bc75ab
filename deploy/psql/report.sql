-- What to send to somebody who helps you; no payload, key, error's text or statement is in it.  As a
-- member of pg_monitor:
--   psql -XqAt -d shop -f deploy/psql/report.sql >idemq-report.txt
SELECT section, line FROM idemq.report();
SELECT 'check', pg_catalog.to_jsonb(c) FROM idemq.check() c;
