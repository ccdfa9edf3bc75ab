# SQL objects that the library in memory does not work with, because they are too old or newer: a call raises 55000 with the
# hint what to do, nothing changes, the worker says why it stays away, and what is not idemq's goes on.
# at least 33 assertions

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('versions', 'idemq.worker' => 'on', max_prepared_transactions => 4);
my $version = sql($node, 'SHOW idemq.version');
my $is = sub { return "UPDATE pg_extension SET extversion = '$_[0]' WHERE extname = 'idemq'" };
my $rows = 'SELECT j FROM idemq.jobs j ORDER BY id; SELECT q FROM idemq.queues q';

is_sql($node, "SELECT default_version FROM pg_available_extensions WHERE name = 'idemq'", $version, 'the version in memory is the one that is installed');
sql($node, "CREATE TABLE effects (job_id bigint, token bigint);
	CREATE TRIGGER fence BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION idemq.fence('job_id', 'token');
	SELECT idemq.enqueue('q', '1')");

# All wrappers, and calls in C of each kind.
my @wrappers = split /\n/, sql($node, q{SELECT format('SELECT %s(%s)', oid::regproc, (SELECT string_agg('NULL::' || t::regtype, ', ') FROM unnest(proargtypes) t))
	FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace AND prosrc ~ '^idemq_sql_wrapper' AND prorettype <> 'trigger'::regtype ORDER BY 1});
my @calls = (q{SELECT idemq.enqueue('q', '1')}, q{SELECT count(*) FROM idemq.enqueue_many('q', '{1}')}, q{SELECT * FROM idemq.claim('q')}, q{SELECT * FROM idemq.acquire('q', 'k', '1')},
	q{SELECT idemq.commit(1, 1)}, q{SELECT idemq.try_commit(1, 1)}, q{SELECT idemq.commit_once(1)}, q{SELECT idemq.fail(1, 1, 'no')}, q{SELECT idemq.heartbeat(1, 1)},
	q{CALL idemq.wait('q', '1 min')}, q{SELECT idemq.cancel(1)}, q{SELECT idemq.why(1)}, q{SELECT idemq_internal.may_see(1)}, q{SELECT * FROM idemq.metrics}, q{SELECT * FROM idemq.check()},
	q{SELECT idemq.create_queue('other')}, q{SELECT idemq.schedule('s', '0 3 * * *', 'q', '1')}, q{INSERT INTO effects VALUES (1, 1)}, q{UPDATE idemq.jobs SET priority = 1});

foreach my $other ([ '0.9.9', qr/older than the loaded library, version \Q$version\E\nHINT:  Run ALTER EXTENSION idemq UPDATE in this database\./, qr/ \(version 0\.9\.9\) are older/ ],
	[ "$version-beta.2", qr/older than the loaded library, version \Q$version\E\nHINT:  Run ALTER EXTENSION idemq UPDATE in this database\./, qr/ \(version \Q$version-beta.2\E\) are older/ ],
	[ '10.0.0', qr/newer than the loaded library, version \Q$version\E\nHINT:  Install the version of the library that matches the SQL objects, and restart the server\./, qr/ are newer/ ])
{
	my ($number, $refusal, $logged) = @$other;

	sql($node, $is->($number));
	$node->restart;
	is_logged($node, qr/LOG:  idemq is inactive in database "postgres": its SQL objects$logged than the library \(version \Q$version\E\)\n/, "$number: the worker says why it stays away");
	my $before = sql($node, $rows);
	my $caller = session($node);
	cmp_ok(scalar(@wrappers), '>', 20, 'wrappers');
	is(join(' ', grep { scalar($caller->query("$_; \\echo :SQLSTATE")) ne '55000' } @wrappers), '', "$number: each of them raises 55000");
	is(join(' ', grep { scalar($caller->query("$_; \\echo :SQLSTATE")) ne '55000' } @calls), '', "$number: so does each call in C");
	leave($caller);
	foreach my $call ($calls[0], "$wrappers[0]")
	{
		my (undef, undef, $said) = $node->psql('postgres', $call);

		like($said, qr/ERROR:  idemq's SQL objects in this database are $refusal/, "$number: and says what to do: $call");
	}
	is_sql($node, $rows, $before, "$number: nothing has changed");
	is_state($node, "BEGIN; CREATE TABLE other (); PREPARE TRANSACTION 'other'", '00000', "$number: what is not idemq's goes on");
	is_state($node, "COMMIT PREPARED 'other'; DROP TABLE other", '00000', "$number: COMMIT PREPARED, too");
	is_state($node, 'DISCARD ALL', '00000', "$number: DISCARD ALL, too");
}

sql($node, $is->($version));
$node->restart;
worker_pid($node);
is_sql($node, q{SELECT payload FROM idemq.claim('q'); SELECT idemq.commit(id, token) FROM idemq.jobs; SELECT * FROM idemq.check()}, "1\ncommitted", 'those of its own version: all works');
is(unexpected($node, 'workers'), '', 'the worker had no error');
done_testing();
