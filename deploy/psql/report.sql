-- Collects information that you can send to someone who helps you.  It contains no payload, key,
-- error message or statement.  Run it as a member of pg_monitor:
--   psql -XqAt -d shop -f deploy/psql/report.sql >idemq-report.txt
SELECT section, line FROM idemq.report();
SELECT 'check', pg_catalog.to_jsonb(c) FROM idemq.check() c;
