-- What script/dev/make-reference puts into doc/reference, each part below a line "made: NAME".
-- :topics has a line "TOPIC|FUNCTION" for each function, in the order of sql/parts.
SET client_min_messages = warning;
SET search_path = pg_catalog, pg_temp;
SET intervalstyle = postgres_verbose;

-- What may stand in a cell of a table.
CREATE FUNCTION pg_temp.cell(t text) RETURNS text LANGUAGE sql AS
	$$SELECT replace(replace(replace(t, '|', '\|'), '<', '&lt;'), '[A-Za-z_][A-Za-z0-9_.-]*', '`[A-Za-z_][A-Za-z0-9_.-]*`')$$;
-- Types as people write them, defaults without their casts.
CREATE FUNCTION pg_temp.short(t text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	change text[];
BEGIN
	FOREACH change SLICE 1 IN ARRAY ARRAY[
		['timestamp with time zone', 'timestamptz'], ['double precision', 'float8'], ['boolean', 'bool'],
		['\minteger\M', 'int'], ['\mIN ', ''], ['::[a-z0-9._]+(\[\])?', ''], ['\midemq\.', ''],
		['((pg_catalog|idemq)\.)?clock_timestamp\(\)', 'now'], [$q$'@ (\d+) secs?'$q$, $q$'\1 s'$q$],
		[$q$'@ $q$, $q$'$q$], [' DEFAULT ', ' = '], ['^SETOF ', 'setof '], ['^TABLE\(', 'setof (']]
	LOOP
		t := regexp_replace(t, change[1], change[2], 'g');
	END LOOP;
	RETURN t;
END $$;

-- Breaks a long signature after commas.
CREATE FUNCTION pg_temp.wrapped(t text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	line text;
	lines text := '';
	part text;
BEGIN
	FOREACH part IN ARRAY string_to_array(t, ', ')
	LOOP
		IF length(line) + length(part) > 100 THEN
			lines := lines || line || E',\n    ';
			line := part;
		ELSE
			line := concat_ws(', ', line, part);
		END IF;
	END LOOP;
	RETURN lines || line;
END $$;

-- A function has a row in its topic's table.  What does not fit into one stands below the table: a
-- long signature, and a comment that is a list (lines that begin with "- ").
\qecho <!-- made: functions -->
WITH topics AS (
	SELECT split_part(line, '|', 1) AS topic, split_part(line, '|', 2) AS name, ord
	FROM regexp_split_to_table(:'topics', E'\n') WITH ORDINALITY AS t (line, ord)
), functions AS (
	SELECT t.topic, min(t.ord) OVER (PARTITION BY t.topic) AS topic_ord, t.ord, p.prokind, p.proname,
		pg_temp.short(pg_get_function_arguments(p.oid)) AS arguments,
		pg_temp.short(pg_get_function_result(p.oid)) AS result,
		coalesce(obj_description(p.oid, 'pg_proc'), '') AS comment,
		CASE WHEN p.proacl::text ~ '[{,]=X' THEN 'everybody' WHEN p.proacl::text ~ 'pg_monitor=X' THEN '`pg_monitor`' ELSE 'owner' END AS who
	FROM pg_proc p JOIN topics t ON t.name = p.proname
	WHERE p.pronamespace = 'idemq'::regnamespace
), lines AS (
	SELECT *, row_number() OVER (PARTITION BY topic ORDER BY ord) = 1 AS is_first,
		split_part(comment, E'\n', 1) AS summary, nullif(strpos(comment, E'\n- '), 0) AS list_at,
		CASE prokind WHEN 'p' THEN 'CALL ' ELSE '' END || proname AS called,
		format('(%s)', arguments) || CASE WHEN result IS NULL OR result = 'void' THEN '' ELSE ' → ' || result END AS signature
	FROM functions
), fits AS (
	SELECT *, length(signature) + length(comment) <= 450 AND list_at IS NULL AS fits,
		-- Without what has a default, and without the columns of a result.
		regexp_replace(regexp_replace(arguments, '\w+ \S+( \S+)? = .*$', '…'), '(, )?OUT .*$', '')
			|| ')' || CASE WHEN result IS NULL OR result = 'void' THEN '' ELSE ' → ' || regexp_replace(result, '\(.*', '(…)') END AS short
	FROM lines
)
SELECT text FROM (
	SELECT topic, topic_ord, 1 AS place, ord,
		CASE WHEN is_first THEN format(E'\n## %s\n\n| function | description | may call it |\n|---|---|---|\n', topic)
			ELSE '' END
		|| CASE WHEN fits THEN format('| `%s%s` | %s | %s |', called, signature, pg_temp.cell(summary), who)
			ELSE format('| `%s(%s` | %s ([more](#%s)) | %s |', called, short, pg_temp.cell(summary), proname, who) END AS text
	FROM fits
	UNION ALL SELECT topic, topic_ord, 2, ord,
		format(E'\n### %s', proname)
		|| CASE WHEN signature = '(' || short THEN '' ELSE format(E'\n\n```text\n%s\n```', pg_temp.wrapped(called || signature)) END
		|| coalesce(E'\n\n' || regexp_replace(pg_temp.cell(substr(comment, list_at + 1)), '^- (\w+(?: \w+)?(?: or \w+)?): ', '- `\1`: ', 'gn'), '')
	FROM fits WHERE NOT fits
) AS page ORDER BY topic_ord, place, ord;
\qecho
\qecho <!-- made: types -->
SELECT E'| type | description | values or columns |\n|---|---|---|';
SELECT format('| `%s` | %s | %s |', t.typname, pg_temp.cell(obj_description(t.oid, 'pg_type')), coalesce(
	(SELECT string_agg('`' || enumlabel || '`', ', ' ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid),
	(SELECT string_agg(format('`%s %s`', attname, pg_temp.short(format_type(atttypid, atttypmod))), ', ' ORDER BY attnum)
	 FROM pg_attribute WHERE attrelid = t.typrelid AND attnum > 0)))
FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
WHERE t.typnamespace = 'idemq'::regnamespace AND t.typcategory <> 'A' AND coalesce(c.relkind, 'c') = 'c'
ORDER BY t.typtype DESC, t.oid;
\qecho <!-- made: views -->
SELECT CASE WHEN a.attnum = 1 THEN format(E'\n## %s\n\n%s\n\n| column | type | |\n|---|---|---|\n', 'idemq.' || c.relname,
		upper(left(obj_description(c.oid, 'pg_class'), 1)) || rtrim(substr(obj_description(c.oid, 'pg_class'), 2), '.') || '.')
		ELSE '' END
	|| format('| `%s` | `%s` | %s |', a.attname, pg_temp.short(format_type(a.atttypid, a.atttypmod)),
		pg_temp.cell(coalesce(col_description(c.oid, a.attnum), '')))
FROM unnest('{jobs,queues,queue_privileges,holds,paused_group_list,attempts,errors,job_errors,audit,metrics,history,running_jobs,workers,memory,schedules,admissions,once_calls,background_worker,maintenance_tasks,prometheus}'::text[]) WITH ORDINALITY AS r (name, ord)
JOIN pg_class c ON c.relname = r.name AND c.relnamespace = 'idemq'::regnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY r.ord, a.attnum;
\qecho
\qecho <!-- made: tables -->
SELECT E'| table | description |\n|---|---|';
SELECT format('| `%s` | %s |', c.oid::regclass, pg_temp.cell(obj_description(c.oid, 'pg_class')))
FROM pg_class c WHERE c.relnamespace = 'idemq_internal'::regnamespace AND c.relkind = 'r'
ORDER BY c.relname;
\qecho <!-- made: settings -->
SELECT E'| setting | default | takes effect | description |\n|---|---|---|---|';
SELECT format('| `%s` | %s | %s | %s |', name,
	CASE unit WHEN 'ms' THEN regexp_replace(boot_val || ' ms', '000 ms$', ' s') WHEN 'kB' THEN boot_val::int / 1024 || ' MB'
		WHEN 'min' THEN boot_val::int / 1440 || ' days' ELSE boot_val END,
	CASE context WHEN 'postmaster' THEN 'restart' WHEN 'sighup' THEN 'reload' ELSE context END,
	pg_temp.cell(concat_ws(' ', short_desc, extra_desc)))
FROM pg_settings WHERE name LIKE 'idemq.%' ORDER BY context, name;
\qecho <!-- made: none -->
