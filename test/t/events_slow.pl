# Events and waits, many at once: events before, during and after their waits, some twice, some rolled back.
# slow: random traffic of eight sessions
#
# at least 8 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('events', 'idemq.worker' => 'on', max_connections => 40);

my $jobs = 300;
sql($node, "SELECT idemq.create_queue('many', lease => '1 h', max_running => 8); CREATE TABLE heard (n int, payload jsonb); CREATE SEQUENCE turn;
	SELECT idemq.enqueue('many', to_jsonb(n)) FROM generate_series(1, $jobs) n");
my $worker = q{
	DO $$ DECLARE c record; a record;
	BEGIN
		SELECT * INTO c FROM idemq.claim('many');
		IF NOT FOUND THEN PERFORM pg_sleep(0.005); RETURN; END IF;
		a := idemq.await_event(c.id, c.token, 'n' || c.payload::text, '1 h');
		IF a.outcome <> 'waiting' THEN
			PERFORM idemq.commit(c.id, c.token);
			INSERT INTO heard VALUES (c.payload::int, a.payload);
		END IF;
	END $$;};
my $sends = q{
	\set undo random(1, 3)
	BEGIN;
	SELECT nextval('turn') AS n \gset
	SELECT idemq.send_event('many', 'n' || (:n % JOBS + 1), to_jsonb(:n % JOBS + 1)) \gset
	\if :undo = 1
		ROLLBACK;
	\else
		COMMIT;
	\endif} =~ s/JOBS/$jobs/gr =~ s/\\if :undo = 1/\\set undone :undo = 1\n\\if :undone/r;
my $workers = clients($node, $worker, '-c', 4, '-t', 400);
my $senders = clients($node, $sends, '-c', 4, '-t', $jobs);
is($workers->(), '', 'workers');
is($senders->(), '', 'senders');
sql($node, "SELECT idemq.send_event('many', 'n' || n, to_jsonb(n)) FROM generate_series(1, $jobs) n");
my $rest = clients($node, $worker, '-c', 4, '-t', 2 * $jobs);
is($rest->(), '', 'the rest');
is_sql($node, 'SELECT count(*), count(DISTINCT n), bool_and(payload = to_jsonb(n)) FROM heard', "$jobs|$jobs|t", 'every job heard its event, once');
is_sql($node, "SELECT count(*) FROM idemq.steps s JOIN idemq.jobs j ON j.id = s.job_id WHERE s.state = 'waiting' AND j.finished_at IS NULL", 0, 'none sleeps');
is_sql($node, "SELECT permits_used FROM idemq.metrics WHERE queue = 'many'", 0, 'no permit is lost');
is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'worker.stuck'", '', 'check');
is(unexpected($node), '', 'no error');

$node->stop;
done_testing();
