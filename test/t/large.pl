# Large values: documents at the largest limit, errors of a gigabyte, and what of a
# row that a DBA made too large a dead-letter queue keeps.
# slow: documents of 64 MB and errors of a gigabyte
# at least 9 assertions
#
# expects in log: XX000 .*(invalid memory alloc request size|string buffer|cannot enlarge)

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('large', 'idemq.max_document' => '64MB', log_statement => 'none', log_min_error_statement => 'panic');
# 64 MB of text: {"data": "..."} and 2^21 times 32 characters, but for the last of them.
my $large = "jsonb_build_object('data', left(repeat(md5('x'), 2097152), 67108864 - 12))";

my ($id) = sql($node, "SELECT id FROM idemq.enqueue('q', $large)");
is_sql($node, qq{SELECT payload = $large, length(payload::text), idemq.commit(id, token, '"done"') FROM idemq.claim('q')},
	't|67108864|committed', 'a payload of 64 MB comes as it was enqueued');
is_sql($node, "SELECT status, result, length(payload ->> 'data') FROM idemq.job($id)", 'completed|"done"|67108852', 'and stays so');
is_state($node, "SELECT idemq.enqueue('q', jsonb_build_object('a', $large))", '54000', 'a longer one is refused');
is_sql($node, 'SELECT count(*) FROM idemq.jobs', 1, 'and makes no job');

# An error of a gigabyte: which SQLSTATE it has is PostgreSQL's affair.
$id = sql($node, "SELECT id FROM idemq.enqueue('q', '1')");
sql($node, "CREATE TABLE held AS SELECT id, token FROM idemq.claim('q')");
like(sqlstate($node, "SELECT idemq.fail(id, token, repeat('x', 1073741800)) FROM held"), qr/^(54000|XX000)$/, 'an error that is too large');
is_sql($node, "SELECT status, last_error IS NULL, idemq.validate(id, (SELECT token FROM held)) FROM idemq.job($id)", 'running|t|current',
	'leaves the job with its worker');
is_sql($node, "SELECT idemq.fail(id, token, 'small', permanent => true) FROM held", 'dead', 'which fails it otherwise');

# What would make the letter too large is left out of it.
sql($node, "SELECT idemq.create_queue('letters'); SELECT idemq.alter_queue('q', dead_letter_queue => 'letters')");
($id) = sql($node, q{SELECT id FROM idemq.enqueue('q', '1', headers => '{"a": 1}')});
sql($node, "UPDATE idemq.jobs SET payload = to_jsonb(repeat('x', 100 * 1024 * 1024)) WHERE id = $id");
is_sql($node, "SELECT idemq.fail(id, token, 'big', permanent => true) FROM (SELECT id, token FROM idemq.claim('q')) c", 'dead', 'a large job dies');
is_sql($node, "SELECT payload->'payload' IS NULL OR payload->'payload' = 'null', headers, payload->>'last_error' FROM idemq.claim('letters')",
	't|{"a": 1}|big', 'its letter has no payload');

$node->stop;
done_testing();
