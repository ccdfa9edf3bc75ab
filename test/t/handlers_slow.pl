# Handlers: a process that is stopped when its database is dropped, memory over thousands of jobs, and two more ends of a
# transaction that holds a job's row.  The rest is in handlers.pl.
# slow: PostgreSQL waits five seconds for a process that does not end, and four thousand jobs are run
# at least 11 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('handlers', 'idemq.worker' => 'on', 'max_worker_processes' => 16);
$node->start;
sql($node, q[CREATE EXTENSION idemq;
	CREATE ROLE app LOGIN; CREATE SCHEMA app AUTHORIZATION app;
	GRANT USAGE ON SCHEMA idemq TO app; GRANT EXECUTE ON FUNCTION idemq.set_handler TO app;
	SET ROLE app;
	CREATE TABLE app.done (n int, id bigint, attempt int, pid int DEFAULT pg_backend_pid(), xid xid8 DEFAULT pg_current_xact_id());
	CREATE FUNCTION app.f(payload jsonb) RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
	DECLARE job record;
	BEGIN
		SELECT * INTO job FROM idemq.current_job();
		INSERT INTO app.done (n, id, attempt) VALUES ((payload->>'n')::int, job.id, job.attempt);
		IF payload ? 'sql' THEN
			EXECUTE payload->>'sql';
		END IF;
		RETURN jsonb_build_object('n', payload->'n', 'key', job.key, 'queue', job.queue, 'user', session_user);
	END $$]);

# Makes a queue with a handler of role app.
sub queue
{
	my ($name, $settings, $handler) = @_;

	sql($node, "SELECT idemq.create_queue('$name'" . ($settings ? ", $settings" : '') . ");
		SELECT idemq.grant_queue('$name', 'app', 'claim');
		SET ROLE app; SELECT idemq.set_handler('$name', 'app.f(jsonb)'" . ($handler ? ", $handler" : '') . ')');
	return;
}

# Enqueues a job whose function runs some SQL; answers its id.
sub job
{
	my ($queue, $n, $sql, $more) = @_;

	return sql($node, "SELECT id FROM idemq.enqueue('$queue', jsonb_strip_nulls(jsonb_build_object('n', $n, 'sql', "
			. (defined $sql ? "\$q\$$sql\$q\$" : 'NULL') . '))' . ($more ? ", $more" : '') . ')');
}

# Waits until a queue has nothing left to do.
sub all_done
{
	my ($queue) = @_;

	wait_until($node, "SELECT count(*) = 0 FROM idemq.jobs JOIN idemq.queues USING (queue_id)
		WHERE name = '$queue' AND status NOT IN ('completed', 'dead', 'cancelled')");
	return;
}

# ---- Memory is flat

sql($node, q[CREATE SCHEMA su; CREATE FUNCTION su.m(jsonb) RETURNS jsonb LANGUAGE sql SET search_path = pg_catalog
	AS $$SELECT to_jsonb(sum(used_bytes)) FROM pg_backend_memory_contexts$$;
	SELECT idemq.create_queue('m'); SELECT idemq.set_handler('m', 'su.m(jsonb)')]);
sql($node, "SELECT count(*) FROM idemq.enqueue_many('m', array_fill('{\"n\": 1}'::jsonb, ARRAY[4000]))");
all_done('m');
is_sql($node, "SELECT count(DISTINCT worker), (max(result::text::int) FILTER (WHERE r > 3500)) - (max(result::text::int) FILTER (WHERE r BETWEEN 500 AND 1000)) < 65536
	FROM (SELECT worker, result, row_number() OVER (ORDER BY finished_at, id) r FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'm') j",
	'1|t', 'a process takes no more memory after 4,000 jobs');

# ---- A row that another transaction holds: the one process there is goes on with other handlers

queue('a');
queue('b', undef, 'batch => 10');
sql($node, "CREATE SEQUENCE app.begun; GRANT ALL ON SEQUENCE app.begun TO app;
	CREATE ROLE producer; GRANT USAGE ON SCHEMA idemq TO producer; SELECT idemq.grant_queue('b', 'producer', 'enqueue');
	ALTER SYSTEM SET idemq.max_handler_workers = 1; SELECT pg_reload_conf();
	SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idemq handler'");
my $at_gate = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event = 'advisory'";
my $once = "IF nextval('app.begun') = 1 THEN RAISE 'once'; END IF";

# Asserts that a job of another handler is run.
sub others_run
{
	my ($while) = @_;
	my $other = job('a', 239);

	is_soon($node, "SELECT status FROM idemq.jobs WHERE id = $other", 'completed', "$while: another handler's job is run");
	return;
}

# A role that may only enqueue cancels a job which waits for its turn in a batch that runs one by one, and does not commit.
foreach my $end ('COMMIT', "ROLLBACK PREPARED 'p'")
{
	sql($node, "SELECT idemq.pause('b'), setval('app.begun', 1, false)");
	job('b', 240, "DO \$\$BEGIN $once; PERFORM pg_advisory_xact_lock(42); END\$\$");
	my $id = job('b', 241);
	my $gate = session($node);
	$gate->query_safe('SELECT pg_advisory_lock(42)');
	sql($node, "SELECT idemq.resume('b')");
	wait_until($node, $at_gate);
	my $canceller = session($node);
	like($canceller->query_safe("SET ROLE producer; BEGIN; SELECT idemq.cancel($id)"), qr/cancelled/, 'a job that waits for its turn is cancelled');
	$gate->query_safe('SELECT pg_advisory_unlock(42)');
	others_run('its cancel is open');
	$canceller->query_safe("PREPARE TRANSACTION 'p'") if $end =~ /PREPARED/;
	$canceller->query_safe($end);
	all_done('b');
	is_sql($node, "SELECT status, attempt, last_error, (SELECT count(*) FROM app.done d WHERE d.id = j.id) FROM idemq.jobs j WHERE id = $id",
		$end =~ /^COMMIT/ ? 'cancelled|1||0' : 'completed|1||1', "$end: no attempt has failed");
	is_sql($node, "SELECT outcome, error FROM idemq.attempts WHERE job_id = $id", $end =~ /^COMMIT/ ? 'cancelled|' : 'released|', 'its history');
	leave($gate, $canceller);
}

sql($node, 'ALTER SYSTEM RESET idemq.max_handler_workers; SELECT pg_reload_conf()');

# ---- A process that is stopped when its database is dropped

sql($node, 'CREATE DATABASE other');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q'); CREATE FUNCTION public.f(jsonb) RETURNS void LANGUAGE plpgsql
	SET search_path = pg_catalog AS \$\$BEGIN PERFORM pg_sleep((\$1->>'s')::float8); END\$\$; SELECT idemq.set_handler('q', 'public.f(jsonb)');
	SELECT idemq.enqueue('q', '{\"s\": 100}')", 'other');
wait_until($node, q[SELECT count(*) FROM pg_stat_activity WHERE datname = 'other' AND wait_event = 'PgSleep'], 1);
my $stopped = sql($node, q[SELECT pid FROM pg_stat_activity WHERE datname = 'other' AND wait_event = 'PgSleep']);
kill 'STOP', $stopped;
{
	my $stderr;
	$node->psql('postgres', 'DROP DATABASE other', stderr => \$stderr);
	like($stderr, qr/ERROR:  idemq's handler for this database \(PID $stopped\) has not exited.*HINT:.*has probably been stopped.*kill -CONT $stopped/s,
		'one that is stopped is named by the error');
}
kill 'CONT', $stopped;
wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE datname = 'other' AND wait_event = 'PgSleep' AND pid <> $stopped", 1);
is_state($node, 'DROP DATABASE other', '00000', 'DROP DATABASE does not fail for a handler at work');
$node->stop;
done_testing();
