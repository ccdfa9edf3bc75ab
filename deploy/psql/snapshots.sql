-- Shows what prevents the removal of dead rows, oldest first: sessions, prepared transactions
-- and replication slots.  Requires pg_monitor.
-- Run \i snapshots.sql; to repeat it every 5 s, first run \set every 5.
SELECT * FROM (
    SELECT CASE WHEN a.backend_type = 'walsender' THEN 'walsender' ELSE 'session' END AS holder, a.pid::text AS which, a.usename::text AS role, a.state,
           date_trunc('seconds', clock_timestamp() - a.xact_start) AS for_so_long,
           greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions, left(a.query, 40) AS doing
    FROM pg_stat_activity a
    WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
    UNION ALL
    SELECT 'prepared', p.gid, p.owner::text, NULL, date_trunc('seconds', clock_timestamp() - p.prepared),
           age(p.transaction), format('COMMIT or ROLLBACK PREPARED %L', p.gid)
    FROM pg_prepared_xacts p
    UNION ALL
    SELECT 'slot', r.slot_name::text, NULL, CASE WHEN r.active THEN 'active' ELSE 'INACTIVE' END, NULL,
           age(r.xmin), NULL
    FROM pg_replication_slots r WHERE r.xmin IS NOT NULL) AS h
ORDER BY transactions DESC NULLS LAST
LIMIT 20
\if :{?every}
\watch :every
\else
\g
\endif
