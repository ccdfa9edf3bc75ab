# The three programs of doc/usage/three-programs.md in Python: one each, and all three in one with asyncio, as they stand
# there; by the server itself, and through a pooler in transaction mode that closes what is idle for a second.  What befalls
# them: test/t/lib/ThreePrograms.pm.
# slow: leases of 3 s pass in real time, a failover
# at least 208 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use Test::More;
use ThreePrograms;

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $node = new_server('programs', 'idemq.worker' => 'on', max_connections => 150);

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;

my $provider = provider();
my ($start, @pooler) = pooler($node, default_pool_size => 20, client_idle_timeout => 1, server_idle_timeout => 1);
my $pgbouncer = $start->();
my $command = sub {
	my ($it, $program) = @_;
	my %files = (webhook => 'webhook.py', mailer => 'mailer.py', report => 'report.py', three => 'three.py');

	return ([ '/usr/bin/python3', "$here/$files{$program}" ], DSN => $it->dsn, PROVIDER => "$it->{provider}{url}/mails");
};
my %form = (provider => $provider, command => $command);
my %threads = (%form, http => 1);
my %asyncio = (%form, programs => ['three'], schedules => 1);
my @direct = (ThreePrograms->new($node, 'Python', %threads), ThreePrograms->new($node, 'asyncio', %asyncio));
my @pooled = (ThreePrograms->new($node, 'Python, pooler', %threads, pooler => \@pooler),
	ThreePrograms->new($node, 'asyncio, pooler', %asyncio, pooler => \@pooler));

survives(@direct, @pooled);
$_->ends foreach @pooled;
$pgbouncer->kill_kill;
fails_over($node, @direct)->stop;
$provider->{run}->kill_kill;

done_testing();
