# idemq-relay, between the outbox of a plain PostgreSQL, like a managed one, and a server with idemq.  Rows with every option,
# roles with few rights, and a relay that is killed at each step, which a lock holds open.  Each row becomes one job, and each
# result arrives in its row.  Crashes, failovers, backups and poolers are in relay_slow.pl.
# takes long
# at least 74 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Brokers;
use Idemq;
use PostgreSQL::Test::Utils;
use Relays;
use Test::More;

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
my ($app, $jobs) = servers();

# What is made, twice, by a role that owns no more than its database; what is not there is said.
command_fails_like([ relay_command('none', 'run') ], qr/IQ005: .*; run idemq-relay create to create the missing objects/, 'without the queue');
command_ok([ relay_command('make', 'create') ], 'created') foreach 1 .. 2;
command_like([ '/usr/bin/python3', '-m', 'idemq.relay', 'sql' ], qr/CREATE TABLE IF NOT EXISTS idemq_outbox\.jobs/, 'its SQL');
command_fails_like([ relay_command('none', 'run'), '--app', dsn('none', $jobs) ], qr/(?:3F000|42P01): .*idemq_outbox.*; run idemq-relay create/, 'without the outbox');
sql($app, "CREATE ROLE owner LOGIN; CREATE DATABASE owned OWNER owner");
my $made = run_log([ '/usr/bin/python3', '-m', 'idemq.relay', 'create', '--app', dsn('make', $app) . ' dbname=owned user=owner', '--idemq', dsn('make', $jobs) ]);
ok($made, 'by a role that owns its database');

# Roles with what the page says that they need, and no more.
sql($app, 'CREATE ROLE shop; CREATE ROLE mover LOGIN; GRANT USAGE ON SCHEMA idemq_outbox TO shop, mover;
	GRANT INSERT, SELECT ON idemq_outbox.jobs TO shop; GRANT SELECT, UPDATE, DELETE ON idemq_outbox.jobs TO mover');
sql($jobs, "CREATE ROLE mover LOGIN; GRANT USAGE ON SCHEMA idemq TO mover; SELECT idemq.create_queue('mine'); SELECT idemq.grant_queue('mine', 'mover', 'enqueue');
	SELECT idemq.grant_queue('outbox_results', 'mover', p) FROM unnest('{enqueue, claim}'::text[]) p");
my $it = { name => 'mover', %{ program([ relay_command('mover', 'run', '--app', dsn('mover', $app) . ' user=mover', '--idemq', dsn('mover', $jobs) . ' user=mover') ]) } };
sql($app, q[SET ROLE shop; INSERT INTO idemq_outbox.jobs (queue, payload, reply) VALUES ('mine', '{}', true), ('q', '{}', false)]);
is_soon($app, q[SELECT string_agg(concat_ws(' ', queue, status, left(error, 5), job_id IS NOT NULL), ', ' ORDER BY id) FROM idemq_outbox.jobs WHERE sent_at IS NOT NULL], 'mine t, q refused 42501 f', 'by roles with few rights');
sql($jobs, q[SELECT idemq.commit(id, token, '"done"') FROM idemq.claim('mine')]);
is_soon($app, q[SELECT result FROM idemq_outbox.jobs WHERE queue = 'mine'], '"done"', 'and the result');
kill_9($it);
sql($app, 'TRUNCATE idemq_outbox.jobs');
command_fails_like([ relay_command('none', 'run', @$_) ], qr/at least 1, and --poll must be greater than 0/, "@$_") foreach [ '--batch', '0' ], [ '--writers', '0' ], [ '--poll', '-1' ];

# What the database cannot say in UTF-8 holds up nothing; null is a payload.
sql($app, q[CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C']);
my @bytes = ('--app', dsn('bytes', $app) . ' dbname=bytes');
command_ok([ relay_command('make', 'create', @bytes) ], 'created in SQL_ASCII');
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, key) VALUES ('mine', '1', 'before'), ('mine', E'"\xff"', 'bytes'), ('mine', 'null', 'null'), ('mine', E'"\xfe"', 'more'), ('mine', '3', 'behind')], 'bytes');
$it = { name => 'bytes', %{ program([ relay_command('bytes', 'run', @bytes) ]) } };
until_true('all are done with', sub { sql($app, 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 'bytes') eq '0' });
is_sql($app, q[SELECT string_agg(concat_ws(' ', key, status, left(error, 5)), ', ' ORDER BY id) FROM idemq_outbox.jobs],
	'before, bytes refused 22021, null, more refused 22021, behind', 'what is no text is refused, and holds up nothing', 'bytes');
is_sql($jobs, q[SELECT payload FROM idemq.jobs WHERE key = 'null'], 'null', 'null is a payload');
kill_9($it);

# Both ways, and what a row may say.
$it = relay();
insert(3);
each_once('three');
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, key, kind, priority, run_at, expires_at, group_key, max_attempts, headers, key_ttl, on_duplicate)
	VALUES ('q', '{"is": 1.00000000000000000000001}', 'full', 'k', 2, '2050-01-01', '2051-01-01', 'g', 7, '{"h": 1}', '1 h', 'ignore')]);
is_soon($jobs, q[SELECT payload::text || kind || priority || (run_at > '2049-12-31')::text || (expires_at BETWEEN '2050-12-30' AND '2051-01-02')::text || group_key || max_attempts || headers
	|| (key_expires_at IS NOT NULL)::text FROM idemq.jobs WHERE key = 'full'], '{"is": 1.00000000000000000000001}k2truetrueg7{"h": 1}true', 'all that a row says is in the job');
# Numbers and nesting that no program need be able to read are passed on.
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, key) VALUES ('q', repeat('9', 5000)::jsonb, 'long'), ('q', (repeat('[', 1500) || repeat(']', 1500))::jsonb, 'deep'), ('q', '1', 'plain')]);
is_soon($jobs, q[SELECT string_agg(key || length(payload::text), ' ' ORDER BY id) FROM idemq.jobs WHERE key IN ('long', 'deep', 'plain')], 'long5000 deep3000 plain1', 'a long number and a deep array are moved, with their neighbour');
# What is refused holds up nothing, and is sent again when it is asked for.
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, key, reply) VALUES ('q', '{"is": 2}', 'full', false), ('later', '{"is": 3}', 'l', true), ('q', '{"is": 4}', 'good', false)]);
wait_until($app, 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 0);
is_sql($app, q[SELECT key, status, left(error, 5), job_id IS NULL FROM idemq_outbox.jobs WHERE status IS NOT NULL ORDER BY id], "full|refused|IQ003|t\nl|refused|IQ005|t", 'what is refused says why');
is_sql($jobs, q[SELECT count(*) FROM idemq.jobs WHERE key = 'good'], 1, 'and the row behind it is a job');
sql($jobs, "SELECT idemq.create_queue('later')");
sql($app, "UPDATE idemq_outbox.jobs SET sent_at = NULL WHERE key = 'l'");
is_soon($jobs, q[SELECT count(*) = 1 FROM idemq.jobs WHERE key = 'l'], 'sent again when the queue is there');
# The rows of a full queue and of a full group wait, stay in order, and do not delay other rows.
sql($jobs, "SELECT idemq.create_queue('small', max_unfinished => 2), idemq.create_queue('tenants', group_max_unfinished => 1)");
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, group_key, key) SELECT 'small', to_jsonb(g), 'a', 'a' || g FROM generate_series(1, 5) g
	UNION ALL SELECT 'tenants', to_jsonb(g), 'b', 'b' || g FROM generate_series(1, 2) g UNION ALL SELECT 'tenants', '3', 'c', 'c' UNION ALL SELECT 'mine', '4', NULL, 'behind']);
is_soon($jobs, q[SELECT count(*) = 1 FROM idemq.jobs WHERE key = 'behind'], 'a row behind those of a full queue is sent');
my $waiting = q[SELECT string_agg(queue || payload, ' ' ORDER BY id) FROM idemq_outbox.jobs WHERE sent_at IS NULL];
is_soon($app, $waiting, 'small3 small4 small5 tenants2', 'rows of a full queue and of a full group wait');
is_sql($app, q[SELECT count(*) FROM idemq_outbox.jobs WHERE queue IN ('small', 'tenants') AND status IS NOT NULL], 0, 'and are not refused');
like(slurp_file($it->{errors}), qr/^idemq-relay: rows wait: IQ007: queue "small" is full/m, 'the relay prints a warning');
sql($jobs, q[SELECT idemq.commit(id, token) FROM idemq.claim('small'); SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE group_key = 'b' AND finished_at IS NULL]);
is_soon($app, $waiting, 'small4 small5', 'and are sent when there is room');
sql($jobs, "SELECT idemq.alter_queue('small', max_unfinished => 0)");
is_soon($app, $waiting, '', 'or when the limit is removed');
is_sql($jobs, q[SELECT string_agg(payload::text, ' ' ORDER BY id) FROM idemq.jobs WHERE group_key = 'a'], '1 2 3 4 5', 'in order');

# The result, whatever becomes of the job; no digit is lost.
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, reply) VALUES ('later', '{"is": 5}', true), ('later', '{"is": 6}', true)]);
wait_until($jobs, "SELECT count(*) = 3 FROM idemq.jobs WHERE queue_id = idemq.queue_id('later')");
my $waiter = session($app);
$waiter->query_safe('LISTEN idemq_outbox_done');
sql($jobs, q[SELECT CASE payload ->> 'is' WHEN '6' THEN idemq.fail(id, token, 'no such order', permanent => true) ELSE idemq.commit(id, token, '{"sum": 0.10000000000000000000001}') END FROM idemq.claim('later', 3)]);
is_soon($app, q[SELECT string_agg(concat_ws(' ', payload ->> 'is', status, result, error), '; ' ORDER BY id) FROM idemq_outbox.jobs WHERE finished_at IS NOT NULL AND reply],
	'3 completed {"sum": 0.10000000000000000000001}; 5 completed {"sum": 0.10000000000000000000001}; 6 dead no such order', 'results are in their rows');
my $told = '';
until_true('and whoever listens is told', sub { ($told .= $waiter->query('SELECT 1')) =~ /Asynchronous notification "idemq_outbox_done" with payload "\d+"/ });
leave($waiter);

# An id that becomes visible behind a later one that was sent.
my $late = session($app);
$late->query_safe(q[BEGIN; INSERT INTO idemq_outbox.jobs (queue, payload) VALUES ('q', '{"n": 4}')]);
rows(1);
insert(1);
wait_until($app, "SELECT count(*) = 1 FROM idemq_outbox.jobs WHERE sent_at IS NOT NULL AND payload ->> 'n' = '5'");
$late->query_safe('COMMIT');
leave($late);
each_once('a lower id that is committed later');

# The order of a group, and nothing of what is rolled back.
sql($app, q[BEGIN; INSERT INTO idemq_outbox.jobs (queue, payload) VALUES ('q', '{"n": 0}'); ROLLBACK;
	INSERT INTO idemq_outbox.jobs (queue, payload, group_key) SELECT 'q', jsonb_build_object('o', g), 'order' FROM generate_series(1, 2500) g]);
each_once('a rollback');
is_sql($jobs, q[SELECT count(*), bool_and(o > before IS NOT FALSE) FROM (SELECT (payload ->> 'o')::int AS o, lag((payload ->> 'o')::int) OVER (ORDER BY id) AS before
	FROM idemq.jobs WHERE group_key = 'order') o], '2500|t', 'a group is in order over several batches');

make_gates();

# Killed at each of them: what waits there is ended with it, or is done by a session whose client is gone, before the next
# relay begins.  relay_slow.pl lets it be done alongside the next relay.
foreach my $number (1 .. 4)
{
	my $node = $number < 3 ? $jobs : $app;

	foreach my $what ('ended', 'done')
	{
		my $name = "killed at $number, $what";
		my $gate = hold_at($number);

		insert(10);
		waits_on($it, $node, held_up($number));
		kill_9($it);
		end_sessions($it, $node, held_up($number)) if $what eq 'ended';
		leave($gate) if $what eq 'done';
		wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = '$it->{name}' AND query LIKE '%${\held_up($number)}%'", 0)
		  if $what eq 'done';
		is_sql($jobs, "SELECT count(*) ${\in_idemq}", $number < 3 ? rows() - 10 : rows(), "$name: jobs that are there") if $what eq 'ended';
		is_sql($app, 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 10, "$name: rows that are to be sent") if $what eq 'ended';
		$it = relay();
		leave($gate) if $what ne 'done';
		each_once($name);
	}
}

# The result: killed with the job in hand, before it is written, and before that is committed.
results('results', sub { sql($jobs, $_[0]) });
foreach my $number (3, 4)
{
	results("a result, killed at $number", sub {
		my $gate = hold_at($number);

		sql($jobs, $_[0]);
		# In autocommit: its COMMIT is of the same statement.
		waits_on($it, $app, 'WITH written AS');
		kill_9($it);
		end_sessions($it, $app, 'WITH written AS') if $number == 3;
		leave($gate);
		$it = relay();
	});
}
kill_9($it);
is_sql($jobs, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check');
$_->stop foreach $app, $jobs;
done_testing();
