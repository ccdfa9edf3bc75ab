# The programs of doc/usage/any-language.md for idemq-work --lines, as they are there, in each of their languages that is installed.  With CI=true,
# all of them must be.
# slow: needs Ruby, PHP, Go, and Java with Gson
# at least 21 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Runner;
use Test::More;

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $page = slurp_file("$ENV{IDEMQ_SOURCE}/doc/usage/any-language.md");
my $with_go = "$ENV{IDEMQ_SOURCE}/script/with-go";
my $gson = '/usr/share/java/gson.jar';
my %program = (
	ruby => { name => 'upper.rb', there => 'ruby --version', run => [ 'ruby', "$tmp/upper.rb" ] },
	php => { name => 'upper.php', there => 'php --version', run => [ 'php', "$tmp/upper.php" ] },
	perl => { name => 'upper.pl', there => 'perl --version', run => [ 'perl', "$tmp/upper.pl" ] },
	go => { name => 'upper.go', there => "$with_go go version", build => [ $with_go, 'go', 'build', '-o', "$tmp/upper", "$tmp/upper.go" ], run => [ "$tmp/upper" ] },
	java => { name => 'Upper.java', there => "java --version && test -e $gson", run => [ 'java', '-cp', $gson, "$tmp/Upper.java" ] });

my $node = new_server('lines');
local @ENV{qw(GOFLAGS GOCACHE)} = ('-buildvcs=false', "$tmp/gocache");

foreach my $language (sort keys %program)
{
	my ($name, $there, $build, $run) = @{ $program{$language} }{qw(name there build run)};

	SKIP:
	{
		skip "no $language", 4 if system("($there) >/dev/null 2>&1");
		$page =~ /^```$language\n((?:<\?php )?(?:#|\/\/) \Q$name\E:.*?)^```/ms or die "$name is not on the page";
		append_to_file("$tmp/$name", $1);
		cmp_ok(scalar(split /\n/, $1), '<=', 20, "$language: at most 20 lines");
		system_or_bail(@$build) if $build;
		sql($node, q[
			SELECT count(idemq.enqueue('q', to_jsonb('word ' || n))) FROM generate_series(1, 40) n;
			SELECT idemq.enqueue('q', '["word"]', max_attempts => 1);
			SELECT idemq.enqueue('q', '"<a> \"\u20ac\" \\\\ & \n"')]);
		my ($status, $said) = ended(start_runner($node->connstr('postgres'), '--once', '-j', 2, '--result', '--lines', '--', @$run));
		is($status, 0, "$language: it runs until there are no more lines") or diag $said;
		is_sql($node, q[SELECT count(*) FILTER (WHERE result = to_jsonb(upper(payload #>> '{}'))), count(*) FILTER (WHERE status = 'dead' AND last_error <> '') FROM idemq.jobs WHERE payload::text !~ 'a>'],
			'40|1', "$language: each line is answered, and an error is one");
		is_sql($node, q[SELECT status, lower(result #>> '{}') = lower(payload #>> '{}') FROM idemq.jobs WHERE payload::text ~ 'a>'], 'completed|t', "$language: text that JSON escapes");
		sql($node, "SELECT idemq.purge('q'); DELETE FROM idemq.jobs");
	}
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
